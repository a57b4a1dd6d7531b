"""Attacks on models and messages, and audits that compare measured leakage with certified epsilon.

    for finding in check("gauss_hermite"):  # the contract that every mechanism must meet
        print(finding)

Audits return lower bounds on epsilon and delta that hold with a stated confidence. A lower bound
above the certificate proves a fault; one below it proves nothing. Membership inference attacks of
plug-ins are added with `register`. This package imports `sottovoce.runs` and the packages below it.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.auditing.attacks.context import AttackContext as AttackContext
    from sottovoce.auditing.attacks.context import MembershipScores as MembershipScores
    from sottovoce.auditing.attacks.context import register as register
    from sottovoce.auditing.contract import Case as Case
    from sottovoce.auditing.contract import ContractError as ContractError
    from sottovoce.auditing.contract import Finding as Finding
    from sottovoce.auditing.contract import check as check
    from sottovoce.auditing.mechanism_audit import MechanismAudit as MechanismAudit
    from sottovoce.auditing.mechanism_audit import audit_mechanism as audit_mechanism
    from sottovoce.auditing.run_audit import audit_run as audit_run
    from sottovoce.auditing.verdict import Certificate as Certificate
    from sottovoce.auditing.verdict import Verdict as Verdict

export_lazily(
    __name__,
    {
        "attacks.context": ["MembershipScores", "AttackContext", "register"],
        "contract": ["Case", "ContractError", "Finding", "check"],
        "mechanism_audit": ["MechanismAudit", "audit_mechanism"],
        "run_audit": ["audit_run"],
        "verdict": ["Certificate", "Verdict"],
    },
)
