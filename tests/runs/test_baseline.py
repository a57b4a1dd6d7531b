"""`private=False`: the same training without noise, clipping, rounding, budgets and ledger."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specs import LOCAL_STEPS, small_spec, small_table

import sottovoce
from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.runs.baseline import without_privacy

RNG = np.random.default_rng(5)
LABELS = np.arange(120) % 3
DATA = RNG.normal(size=(3, 6))[LABELS] + 0.3 * RNG.normal(size=(120, 6)), LABELS

CLIENT: dict[str, Any] = {"level": "client", "clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5}
SCAFFOLD = LOCAL_STEPS | {"kind": "scaffold"}
RUNS: dict[str, dict[str, Any]] = {
    "sample": {},
    "client": {"privacy": CLIENT, "algorithm": LOCAL_STEPS},
    "groups": {
        "privacy": CLIENT | {"groups": [{"clients": 1, "epsilon": 2.0}]},
        "algorithm": LOCAL_STEPS | {"budget_penalty": True},
    },
    "scaffold": {"privacy": CLIENT, "algorithm": SCAFFOLD},
    "sum": {
        "channel": {"kind": "secure_sum", "minimum_clients": 4},
        "mechanism": {"kind": "discrete_gaussian"},
    },
    "shuffler": {
        "privacy": CLIENT | {"adjacency": "replace-one"},
        "algorithm": LOCAL_STEPS,
        "channel": {"kind": "shuffler", "minimum_clients": 4},
    },
    "rounded": {"runtime": {"downlink": "int8"}, "rotation": "on"},
}


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_a_baseline_of_any_run_trains_without_privacy_and_without_a_ledger(
    changes: dict[str, Any],
) -> None:
    given = small_table(**changes, rounds=2) | {"data": {"clients": 4}}
    run = sottovoce.simulate(given, data=DATA, private=False)
    assert run.accuracy is not None
    assert run.accuracy > 0.6
    assert run.name == "small-no-privacy"
    assert run.epsilon == float("inf")
    assert run.warnings[0].startswith("not private")
    assert not (run.folder / "ledger.sqlite").exists()


def test_without_clipping_it_is_plain_gradient_descent(tmp_path: Path) -> None:
    given = small_table(rounds=1) | {"data": {"clients": 1}}
    table = given | {"privacy": given["privacy"] | {"clip_norm": 1e-3}}
    free, clipped = (
        sottovoce.simulate(table, data=(*DATA, *DATA), private=False, keep_clipping=keep)
        for keep in (False, True)
    )
    features, labels = DATA
    weight = (np.full((len(labels), 3), 1 / 3) - np.eye(3)[labels]).T @ features / len(labels)
    norms = [float(np.linalg.norm(run.model)) for run in (free, clipped)]
    np.testing.assert_allclose(free.model[:18].reshape(3, 6), -weight, rtol=1e-4)
    assert norms[1] <= 1e-3 < norms[0]
    assert len({run.spec["name"] for run in (free, clipped)} | {"small"}) == 3


def test_what_is_switched_off_is_written_into_the_spec() -> None:
    spec = small_spec(channel={"kind": "shuffler", "minimum_clients": 4})
    free = without_privacy(spec)
    assert free.hash != spec.hash != without_privacy(spec, keep_clipping=True).hash
    assert free.mechanism.kind == "no_privacy"
    assert free.channel.kind == "direct"
    assert (free.privacy.epsilon, free.rotation, free.runtime.messages) == (None, "off", "none")
    assert (free.seed, free.rounds, free.algorithm) == (spec.seed, spec.rounds, spec.algorithm)


def test_what_has_no_baseline_is_refused() -> None:
    sites = small_spec(data={"dataset": "digits", "sites": {"a": 5}})
    with pytest.raises(ConfigError, match="on other machines"):
        without_privacy(sites)
    with pytest.raises(ConfigError, match="noise of its own"):
        without_privacy(small_spec(algorithm={"kind": "nbafl", "local_learning_rate": 0.1}))
    with pytest.raises(ParameterError, match="give private=False too"):
        sottovoce.simulate(small_table(), keep_clipping=True)


def test_the_command_keeps_the_baseline_apart(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[2] / "examples" / "one_bit.toml"
    quick = ("--set", "rounds=2", "--set", "data.clients=3", "--no-privacy")
    ended = cli("run", example, *quick)
    assert ended.code == 0
    assert "warning: not private" in ended.err
    assert "Nothing is protected" in ended.out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["one-bit-no-privacy"]
    alone = cli("run", example, "--keep-clipping")
    assert alone.code == 2
    assert "add --no-privacy" in alone.err
