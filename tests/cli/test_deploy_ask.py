"""The command `deploy ask`: what it refuses before it asks, and what it prints."""

from pathlib import Path
from typing import Any

import pytest

from sottovoce.cli.deploy_ask import _print

ASK = "deploy ask nowhere mean --about age --lower 0 --upper 1 --epsilon 1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--channel secure-sum", "did you mean 'secure_sum'?"),
        ("--channel secure_sum --colluders 0", "colluders must be an integer from 1"),
        ("--channel secure_sum --minimum-clients 1", "minimum_clients must be an integer from 2"),
        ("--channel secure_sum --delta 2", "delta"),
        ("--channel secure_sum --mechanism laplace", "--mechanism mvu"),
    ],
)
def test_a_secure_sum_that_cannot_be_is_refused_before_any_site_is_asked(
    cli: Any, options: str, said: str
) -> None:
    result = cli(*ASK.split(), *options.split())
    assert result.code == 2
    assert said in result.err


def test_both_epsilons_are_printed_with_what_they_assume(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = {
        "statistic": "mean",
        "estimate": 40.0,
        "interval": [39.0, 41.0],
        "people": 1600,
        "epsilon": 2.0,
        "bits_per_person": 3,
        "mechanism": "mvu",
        "notes": [],
        "sites": {"answered": {"a": 700, "b": 900}, "failed": {"c": "it is offline"}},
        "secure_sum": {
            "central_epsilon": 0.4525,
            "delta": 1e-6,
            "local_epsilon": 2.0,
            "promise": "at most 1 of the sites work together with the server",
        },
    }
    _print(found, tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "0.4525 at delta 1e-06" in printed
    assert "at most 1 of the sites work together with the server" in printed
    assert "epsilon if the code is seen 2" in printed
    assert "sites that did not 1" in printed
