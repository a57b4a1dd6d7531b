"""The command `deploy ask`: what it refuses before it asks, and what it prints."""

from pathlib import Path
from typing import Any

import pytest
from two_operators import create_operators

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
        ("--channel shuffler", "name the folder of a relay's collector"),
        ("--colluders 2", "--colluders is of use only where tallies are hidden"),
        ("--minimum-clients 3", "add --channel secure_sum, or leave it out"),
        ("--channel direct --delta 1e-6", "--delta is of use only"),
        ("--minimum-sites 0", "--minimum-sites must be an integer from 1"),
        ("--deadline 0", "--deadline must be"),
    ],
)
def test_a_secure_sum_that_cannot_be_is_refused_before_any_site_is_asked(
    cli: Any, options: str, said: str
) -> None:
    result = cli(*ASK.split(), *options.split())
    assert result.code == 2
    assert said in result.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--channel local", "use 'secure_sum', or 'shuffler' if each client has one person"),
        ("--channel direct", "use 'secure_sum', or 'shuffler' if each client has one person"),
        ("--minimum-sites 2", "--minimum-sites is for a federation"),
        ("--channel shuffler --mechanism laplace", "--mechanism mvu"),
        ("--delta 0", "delta"),
        ("", "0 clients were admitted"),
    ],
)
def test_what_a_collector_cannot_ask_is_refused_before_anyone_is_asked(
    cli: Any, collector: Path, options: str, said: str
) -> None:
    result = cli(*ASK.replace("nowhere", str(collector)).split(), *options.split())
    assert result.code == 2
    assert said in result.err
    assert not any((collector / "runs").iterdir())


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_operators(tmp_path_factory.mktemp("operators")).collector.folder


def test_a_relay_asks_nobody(cli: Any, collector: Path) -> None:
    result = cli(*ASK.replace("nowhere", str(collector.parent / "relay")).split())
    assert result.code == 2
    assert "is not a collector's folder" in result.err


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


def test_the_clients_of_a_relay_are_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = {
        "statistic": "histogram",
        "labels": ["[0, 1)", "[1, 2]"],
        "estimate": [0.4, 0.6],
        "interval": [None, None],
        "people": 1600,
        "epsilon": 2.0,
        "bits_per_person": 1,
        "mechanism": "generalized_rr",
        "notes": [],
        "clients": {"admitted": 2000, "answered": 1601, "dropped": 1},
        "shuffler": {
            "central_epsilon": 0.4525,
            "delta": 1e-6,
            "local_epsilon": 2.0,
            "promise": "relay and collector do not work together",
        },
    }
    _print(found, tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "0.4525 at delta 1e-06" in printed
    assert "relay and collector do not work together" in printed
    assert "clients that answered 1601" in printed
    assert "messages that were no answer 1" in printed
