"""Clients train from what is sent down, and what is sent down is what is counted."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_checks import EVERY_BYTE, check_resumed, progress_of
from specs import small_spec

from sottovoce.core.domains import Floats, Vector
from sottovoce.core.errors import WireError
from sottovoce.federated import rounds, training
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.fedavg import SampleClippedGradient
from sottovoce.federated.algorithms.scaffold import Scaffold
from sottovoce.federated.training import Halted, Progress, Training
from sottovoce.protocol.broadcast import (
    DOWNLINK_FORMATS,
    DownlinkFormat,
    as_received,
    pack,
    unpack,
)
from sottovoce.protocol.message import HEADER_BYTES
from sottovoce.runs.build import build
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

BYTES = {"float32": 4 * 650, "float16": 2 * 650, "bfloat16": 2 * 650, "int8": 650 + 4 * 3}
LOCAL = {"local_steps": 2, "local_learning_rate": 0.5}
CLIENT_LEVEL: dict[str, Any] = {
    "privacy": {"level": "client", "clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5},
    "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0, **LOCAL},
    "mechanism": {"kind": "gaussian"},
}
SCAFFOLD = {**CLIENT_LEVEL, "algorithm": {**CLIENT_LEVEL["algorithm"], "kind": "scaffold"}}
NBAFL = {**CLIENT_LEVEL, "algorithm": {"kind": "nbafl", **LOCAL}}
CENTRAL = {**CLIENT_LEVEL, "channel": {"kind": "central"}}
RUNS: dict[str, dict[str, Any]] = {
    "sample stored": {"runtime": {}},
    "sample packed": {"runtime": {"messages": "packed"}},
    "sample none": {"runtime": {"messages": "none"}},
    "client stored": {**CLIENT_LEVEL, "runtime": {}},
    "scaffold stored": {**SCAFFOLD, "runtime": {}},
    "scaffold none": {**SCAFFOLD, "runtime": {"messages": "none"}},
    "nbafl stored": {**NBAFL, "runtime": {}},
    "central": {**CENTRAL, "runtime": {"messages": "none"}},
}
every_format = pytest.mark.parametrize("downlink", DOWNLINK_FORMATS)


def a_spec(case: dict[str, Any], downlink: str, **changes: Any) -> RunSpec:
    runtime = {**case.get("runtime", {}), "downlink": downlink}
    return small_spec(**{"rounds": 3, **case, **changes, "runtime": runtime})


def read(vector: Floats, downlink: DownlinkFormat) -> Vector:
    return unpack(pack(vector, downlink), len(vector), downlink)


@pytest.mark.parametrize(
    ("name", "downlink"),
    [
        pytest.param(name, downlink, marks=[] if quick else [pytest.mark.slow])
        for name in RUNS
        for downlink in DOWNLINK_FORMATS
        for quick in [name == "sample stored" or downlink in ("float32", "int8")]
    ],
)
def test_a_run_in_each_format_finishes_and_counts_its_bytes(
    tmp_path: Path, name: str, downlink: DownlinkFormat
) -> None:
    spec = a_spec(RUNS[name], downlink)
    result = run(spec, tmp_path / "run")
    vectors = 2 if "scaffold" in name else 1
    assert result["rounds"] == 3
    assert result["payload_bytes_down_per_message"] == vectors * BYTES[downlink]
    assert result["total_bytes_down_per_message"] == vectors * (BYTES[downlink] + HEADER_BYTES)
    for row in RunFolder(tmp_path / "run").metrics():
        assert row["payload_bytes_down"] == 4 * vectors * BYTES[downlink]
    if downlink == "int8":
        assert run(spec, tmp_path / "again") == result


@every_format
@pytest.mark.parametrize("messages", ["stored", "packed", "none"])
def test_clients_start_from_what_the_server_sent_and_it_is_packed_once_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: str, downlink: DownlinkFormat
) -> None:
    starts: list[Floats] = []
    packed: list[Floats] = []
    updates = SampleClippedGradient.updates

    def watched(self: Any, task: Any, clients: Any, step: ClientStepInput) -> Any:
        starts.append(step.model)
        return updates(self, task, clients, step)

    def counted(vector: Floats, number_format: DownlinkFormat) -> Floats:
        packed.append(vector)
        return as_received(vector, number_format)

    monkeypatch.setattr(SampleClippedGradient, "updates", watched)
    monkeypatch.setattr(training, "as_received", counted)
    monkeypatch.setattr(rounds, "MAX_COORDINATES_IN_MEMORY", 1)  # one client at a time
    spec = a_spec({"runtime": {"messages": messages}}, downlink)
    run(spec, tmp_path / "run")
    assert len(packed) == 3
    per_round = 4 if messages == "stored" else 1
    assert len(starts) == 3 * per_round
    for number, start in enumerate(starts):
        np.testing.assert_array_equal(start, read(packed[number // per_round], downlink))
    final = progress_of(tmp_path / "run").model
    assert final.dtype == np.float64
    assert not np.array_equal(final, read(final, downlink))  # the server's own is not rounded


@every_format
@pytest.mark.parametrize("case", [CLIENT_LEVEL, SCAFFOLD], ids=["fedavg", "scaffold"])
def test_updates_are_relative_to_what_was_sent(
    case: dict[str, Any], downlink: DownlinkFormat
) -> None:
    """Clients that hardly learn leave the server's model alone, to the last bit."""
    idle = {**case, "algorithm": {**case["algorithm"], "local_learning_rate": 1e-30}}
    if case is SCAFFOLD:
        idle["algorithm"]["control_clip_norm"] = 1.0
    simulation = without_noise(idle, downlink)
    model = np.random.default_rng(1).normal(size=650)  # no format holds it exactly
    state = simulation.algorithm.initialize(model)
    after = stepped(simulation, Progress(rounds_done=0, model=model, algorithm_state=state))
    np.testing.assert_array_equal(after.model, model)


@every_format
def test_the_control_variate_that_scaffold_sends_down_is_rounded_too(
    monkeypatch: pytest.MonkeyPatch, downlink: DownlinkFormat
) -> None:
    """And stays the mean of the clients' own, which move by what the server hears of."""
    seen: list[ClientStepInput] = []
    client_steps = Scaffold.client_steps

    def watched(self: Any, task: Any, clients: Any, step: ClientStepInput) -> Any:
        seen.append(step)
        return client_steps(self, task, clients, step)

    monkeypatch.setattr(Scaffold, "client_steps", watched)
    simulation = without_noise(SCAFFOLD, downlink)
    progress = simulation.start()
    for _ in range(4):
        before = progress
        progress = stepped(simulation, before)
        state = before.algorithm_state
        np.testing.assert_array_equal(seen[-1].state["control"], read(state["control"], downlink))
        np.testing.assert_array_equal(seen[-1].state["client_controls"], state["client_controls"])
    control = progress.algorithm_state["control"]
    assert control.any()
    assert not np.array_equal(control, read(control, downlink))
    mean = progress.algorithm_state["client_controls"].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(control, mean, rtol=0, atol=1e-6)


def without_noise(case: dict[str, Any], downlink: str) -> Training:
    resolved = resolve(
        load_inputs(
            a_spec(
                {**case, "runtime": {"messages": "packed"}},
                downlink,
                privacy={"level": "client", "clip_norm": 5.0, "delta": 1e-5},
                mechanism={"kind": "no_privacy"},
            )
        )
    )
    return build(resolved)


def stepped(simulation: Training, progress: Progress) -> Progress:
    outcome = simulation.step(progress)
    assert not isinstance(outcome, Halted)
    return outcome[0]


@functools.cache
def accuracy_after_twenty_rounds(downlink: DownlinkFormat) -> float:
    simulation = without_noise(CLIENT_LEVEL, downlink)
    progress = simulation.start()
    for _ in range(20):
        progress = stepped(simulation, progress)
    return simulation.task.evaluate(progress.model).score


@pytest.mark.parametrize("downlink", ["float16", "bfloat16", "int8"])
def test_digits_are_learned_from_fewer_bytes_as_well(downlink: DownlinkFormat) -> None:
    assert accuracy_after_twenty_rounds("float32") > 0.85
    fewer = accuracy_after_twenty_rounds(downlink)
    assert fewer > accuracy_after_twenty_rounds("float32") - 0.03


@pytest.mark.parametrize("case", [{}, SCAFFOLD], ids=["sample", "scaffold"])
def test_a_resumed_run_sends_what_it_would_have_sent(tmp_path: Path, case: dict[str, Any]) -> None:
    spec = a_spec(case, "int8", checkpoint_every=1)
    check_resumed(spec, tmp_path, stop_after=2, same_files=EVERY_BYTE)


def test_a_model_that_does_not_fit_ends_the_run_before_anyone_is_charged(tmp_path: Path) -> None:
    wild = {"algorithm": {"kind": "fedavg", "server_learning_rate": 1e7}}
    with pytest.raises(WireError, match=r"float16 is 65504; .*runtime.downlink = 'bfloat16'"):
        run(a_spec(wild, "float16", checkpoint_every=1), tmp_path / "run")
    with RunFolder(tmp_path / "run").ledger() as ledger:
        assert ledger.num_charges == 4  # the first round's, which was sent
    assert progress_of(tmp_path / "run").rounds_done == 1
    assert run(a_spec(wild, "bfloat16"), tmp_path / "wider")["rounds"] == 3
