"""A site has one account whatever it is called, and data whose classes all sites number alike."""

import json
from pathlib import Path

import pytest
from ledger_files import make_version_2
from typer.testing import CliRunner

from sottovoce.cli.main import app
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import PolicyError
from sottovoce.deployment.site import read_site
from sottovoce.federated.cohorts import FixedSize
from sottovoce.ledger import seal
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import GaussianNoise, Repeated
from sottovoce.runs.loading import load
from sottovoce.runs.resolve import oversampled

ROOT = Path(__file__).parent.parent.parent
SITE = """
name = "after"

[policy]
mechanisms = ["gauss_hermite"]
level = "client"
adjacency = "zero-out"
epsilon_per_round = 2.0
epsilon_total = 10.0
delta = 1e-6
smallest_cohort = 1
"""


def test_ledger_show_adds_up_what_a_site_spent_under_all_its_names(tmp_path: Path) -> None:
    ball = L2Ball(dimension=1000, radius=1.0)
    mechanism = GaussHermite(input_domain=ball, levels=2, noise_multiplier=5.0)
    event = mechanism.privacy(Adjacency.ZERO_OUT)
    (tmp_path / "site.toml").write_text(SITE)
    seal.create(tmp_path)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for number, name in enumerate(["before", "before", "after"]):
            release = Release(unit=Unit.CLIENT, run="run", client=name, round=number, uplink=0)
            ledger.charge(release, 0, event)
    shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path), "--json"])
    (row,) = json.loads(shown.output)
    expected = privacy_spent(Repeated(event=event, count=3), 1e-6)
    assert (row["client"], row["charges"], row["budget"]) == ("after", 3, 10.0)
    assert (row["epsilon"], row["delta"]) == (expected.epsilon, 1e-6)
    # Counted for orders that may depend on answers: half of delta is the first event's.
    counted = privacy_spent(Repeated(event=event, count=3), 5e-7)
    assert row["left"] == pytest.approx(10.0 - counted.epsilon)


def test_ledger_show_leaves_a_site_s_ledger_of_an_earlier_version_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    path = tmp_path / "ledger.sqlite"
    with Ledger(path, create=True) as ledger:
        release = Release(unit=Unit.CLIENT, run="run", client="after", round=1, uplink=0)
        ledger.charge(release, 0, GaussianNoise(mu=0.1, adjacency=Adjacency.ZERO_OUT))
    make_version_2(path)
    before = path.read_bytes()
    shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path), "--json"])
    assert json.loads(shown.stdout)[0]["charges"] == 1
    assert path.read_bytes() == before


def test_classes_that_each_site_would_number_for_itself_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE + '\n[data]\ndataset = "hf:/srv/images"\nclasses = 3\n')
    with pytest.raises(PolicyError, match="numbers classes in the order of their occurrence"):
        read_site(path)


@pytest.mark.parametrize(("size", "factor", "asked"), [(50, 1.1, 55), (50, 1.11, 56), (3, 1.0, 3)])
def test_oversampling_asks_for_no_client_more_than_it_says(
    size: int, factor: float, asked: int
) -> None:
    changes = ["sampling.kind=fixed_size", f"sampling.size={size}", "data.clients=100"]
    spec = load(ROOT / "examples" / "one_bit.toml", [*changes, f"deployment.oversampling={factor}"])
    assert oversampled(spec) == FixedSize(size=asked)
