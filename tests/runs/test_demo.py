import json
import re
from pathlib import Path
from typing import Any

import pytest

from sottovoce.core.errors import OutputError, ParameterError
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.reporting.demo import write_report
from sottovoce.runs.demo import FAVORITE, REFERENCE, VARIANTS, run_demo, variant_spec


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def demo(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("demo")
    return out, run_demo(out, num_seeds=request.param)


def test_the_demo_meets_its_promises(demo: tuple[Path, dict[str, Any]]) -> None:
    """What is promised; four seeds leave about 1% of standard error, hence the margins here.

    In every test run two will do: they are always the same two. `make demo` measures the figures
    themselves with more seeds.
    """
    rows = {row["variant"]: row for row in demo[1]["variants"]}
    assert set(rows) == set(VARIANTS)
    for name, row in rows.items():
        assert row["delta"] == 1e-5
        assert row["adjacency"] == "zero-out"
        if name != "no privacy":
            assert 4.99 < row["epsilon"] <= 5.0
            assert row["accuracy_mean"] > 0.87
    assert rows["no privacy"]["epsilon"] is None
    assert rows[FAVORITE]["bits_per_coordinate"] == 1
    assert demo[1]["comparison"]["payload_ratio_up"] >= 31.0
    assert rows[FAVORITE]["accuracy_mean"] > rows[REFERENCE]["accuracy_mean"] - 0.03


def test_the_budget_is_the_same_for_every_private_variant() -> None:
    privacy = [variant_spec(v, 1).privacy for v in VARIANTS if v != "no privacy"]
    assert len(set(privacy)) == 1


def test_the_report_stands_alone_and_names_what_is_guaranteed(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    page = write_report(demo[1], demo[0] / "report.html").read_text()
    assert not re.search(r"\s(src|href)\s*=|url\(|@import", page)  # nothing from outside
    assert page.count("<figure") == page.count('role="img"') == page.count("<details") == 2
    for words in ("zero-out", "delta = 1e-05", "Sample-level", "one bit", "no guarantee"):
        assert words in page


def test_the_demo_can_be_made_again_but_touches_no_other_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(OutputError, match="not empty"):
        run_demo(tmp_path, num_seeds=2)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_interrupted_demo_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_demo(tmp_path / "demo", num_seeds=2, on_round=stop)
    assert json.loads((tmp_path / "demo" / "demo.json").read_text()) == {}


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="seeds"):
        run_demo(tmp_path / "demo", num_seeds=1)


def test_the_interval_is_students() -> None:
    """Values 1..5: mean 3, t_{.975,4} = 2.776, standard error .7071 (any table of t)."""
    mean, half = mean_and_half_width([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (mean, half) == pytest.approx((3.0, 2.776 * 0.70711), rel=1e-3)
