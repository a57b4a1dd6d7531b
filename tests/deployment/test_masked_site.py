"""What a site refuses of secure sums before anything is trained or charged."""

from pathlib import Path

import pytest
from one_site import BALL, KEYS, a_site, answered, asked

from sottovoce.core.errors import BudgetExhaustedError, LedgerError, PolicyError
from sottovoce.deployment.policy import Terms
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.secure.contribution import MASKED, masked_charges

SIGN = ClampedSign(input_domain=BALL, noise_multiplier=8.0, logit_bound=0.5)
ALLOWED = {"mechanisms": ("clamped_sign",), "honest": 3, "colluders": 2}


def channel(honest: int = 3, colluders: int = 2, protocol: str = "pairwise") -> SecureSum:
    return SecureSum(minimum_clients=honest, colluders=colluders, protocol=protocol)


@pytest.mark.parametrize("protocol", ["pairwise", "two_server"])
def test_no_message_leaves_without_masks_where_a_protocol_is_charged(
    tmp_path: Path, protocol: str
) -> None:
    site = a_site(tmp_path, **ALLOWED)
    request = asked(mechanism=SIGN, channel=channel(protocol=protocol))
    with pytest.raises(PolicyError, match="no message outside of that protocol"):
        answered(site, request)
    assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize(
    ("policy", "sums", "reason"),
    [
        ({"honest": None, "colluders": None}, channel(), "set 'honest' and 'colluders'"),
        ({}, channel(honest=2), "'honest' is 3 at this site"),
        ({}, channel(colluders=1), "'colluders' is 2 at this site"),
        ({}, channel(protocol="simulated"), "'trust_server' is false"),
    ],
)
def test_a_policy_that_promises_more_than_the_run_refuses_it(
    tmp_path: Path, policy: dict[str, int | None], sums: SecureSum, reason: str
) -> None:
    site = a_site(tmp_path, **{**ALLOWED, **policy})
    request = asked(mechanism=SIGN, channel=sums)
    with pytest.raises(PolicyError, match=reason):
        site.check_terms("ada", Terms.of(request.plan, request.part, cohort=10, grade=KEYS.grade))


def test_honest_and_colluders_are_set_together_and_in_range(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="go together"):
        a_site(tmp_path, honest=3)
    for wrong in ({"honest": 1, "colluders": 1}, {"honest": 2, "colluders": 0}):
        with pytest.raises(ValueError, match=r"honest|colluders"):
            a_site(tmp_path, **wrong)
    with pytest.raises(ValueError, match="retries"):
        a_site(tmp_path, retries=-1)


def test_a_charge_for_masked_codes_pays_for_no_other_message(tmp_path: Path) -> None:
    """A plain message under it would show the codes of a client that paid for their sum only."""
    site = a_site(tmp_path, **ALLOWED, trust_server=True)
    simulated = asked(mechanism=SIGN, channel=channel(protocol="simulated"))
    with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
        (due,) = masked_charges(simulated.plan, simulated.part, 1, 1)
        (charge,) = ledger.charge_all([due])
        assert not isinstance(charge, BudgetExhaustedError)
        ledger.store_messages([(charge, MASKED, None)])
    with pytest.raises(LedgerError, match="was sent under other parameters"):
        answered(site, simulated)
