"""Sites, policies, orders, questions, keys and processes of a federation on several machines.

    ledger_total(["sites/a", "sites/b"], delta=1e-5)  # one account over several ledgers

A site runs only code that it has installed, answers only what its own policy allows, and charges
its own ledger before anything leaves. The package is independent of the engine that carries the
messages: it imports `runs` and the packages below it, but not Flower.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.deployment.masked_asking import SumTerms as SumTerms
    from sottovoce.deployment.operators.device import DeviceFolder as DeviceFolder
    from sottovoce.deployment.operators.device import RelayLink as RelayLink
    from sottovoce.deployment.policy import Policy as Policy
    from sottovoce.deployment.site import Site as Site
    from sottovoce.deployment.site_answers import Values as Values
    from sottovoce.deployment.totals import LedgerShare as LedgerShare
    from sottovoce.deployment.totals import LedgerTotal as LedgerTotal
    from sottovoce.deployment.totals import ledger_total as ledger_total
    from sottovoce.deployment.totals import ledger_totals as ledger_totals

export_lazily(
    __name__,
    {
        "operators.device": ["DeviceFolder", "RelayLink"],
        "masked_asking": ["SumTerms"],
        "policy": ["Policy"],
        "site": ["Site"],
        "site_answers": ["Values"],
        "totals": ["LedgerShare", "LedgerTotal", "ledger_total", "ledger_totals"],
    },
)
