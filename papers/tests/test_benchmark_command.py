"""Every benchmark at a tiny size: results are checked, numbers are there, no speed is judged."""

import inspect
import itertools
from typing import Any

import numpy as np
import pytest

from sottovoce.core import native
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning.task import Task
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.seeds import WORDS_PER_TRY
from sottovoce.runs.spec import RunSpec, RuntimeSpec
from sottovoce_papers.benchmarks import account, aggregate, design, privatize, seeded, simulate
from sottovoce_papers.benchmarks.equal_rho import rho_of_orders, rotated_update
from sottovoce_papers.benchmarks.measurement import TimedAction, WrongResult, rates

QUICK = "--seconds 0.01"
SHARED = {
    "ratio_to_numpy",
    "ratio_to_torch",
    "fraction_of_limit",
    "limit",
    "limit_per_second",
    "kernels",
    "checked",
    "notes",
    "machine",
}


def measured(cli: Any, command: str) -> dict[str, Any]:
    found: dict[str, Any] = cli("benchmark", *command.split(), *QUICK.split(), "--json").json
    assert set(found) >= SHARED
    assert found["kernels"] == (n.name if (n := native.native()) else "numpy")
    return found


@pytest.mark.parametrize("options", ["", "--bits 3 --threads 2", "--bits 8"])
def test_privatize(cli: Any, options: str) -> None:
    found = measured(cli, f"privatize --dimension 1001 {options}")
    speed, limit = found["coordinates_per_second"], found["limit_per_second"]
    assert found["fraction_of_limit"] == pytest.approx(speed / limit)
    assert found["dimension"] == 1001
    assert found["ratio_to_numpy"] > 0.0
    assert found["first_call_seconds"] > 0.0


@pytest.mark.parametrize(("mechanism", "bits"), [("mvu", 3), ("discrete_gaussian", 16)])
def test_privatize_other_mechanisms(cli: Any, mechanism: str, bits: int) -> None:
    found = measured(cli, f"privatize --dimension 77 --mechanism {mechanism}")
    assert (found["mechanism"], found["bits"]) == (mechanism, bits)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_aggregate(cli: Any, bits: int) -> None:
    found = measured(cli, f"aggregate --dimension 1003 --clients 35 --bits {bits}")
    speed = found["clients_per_second"]
    assert found["coordinates_per_second"] == pytest.approx(1003 * speed)
    assert found["ratio_to_torch"] > 0.0


def test_seeded(cli: Any) -> None:
    found = measured(cli, "seeded --dimension 5000 --updates 20 --clients 20")
    assert (found["payload_bytes"], found["one_bit_payload_bytes"]) == (16, 625)
    # At most 0.2% of rho is truncation's; |error|^2 differs by its own spread, 2/sqrt(5000 * 20).
    assert found["mse_ratio_to_one_bit"] == pytest.approx(1.0, abs=0.01)
    assert abs(found["alignment"] - 1.0) < 4.0 * found["alignment_half_width"]
    assert abs(found["one_bit_alignment"] - 1.0) < 4.0 * found["one_bit_alignment_half_width"]
    assert 1.0 <= found["tries_mean"] <= found["tries_most"] <= found["tries_limit"]
    for key in ("encode_seconds", "encode_seconds_constant_time", "server_seconds_per_client"):
        assert found[key] > 0.0
        assert found[f"one_bit_{key}".removesuffix("_constant_time")] > 0.0


def test_seeded_takes_as_many_seeds_as_it_needs(cli: Any) -> None:
    found = measured(cli, "seeded --dimension 1000 --mu 2.5 --updates 3 --clients 17")
    assert found["payload_bytes"] == 16 * found["blocks"] > 16
    assert found["rho"] == pytest.approx(3.125)


def test_both_sides_of_the_comparison_have_the_rho_that_is_named() -> None:
    for mechanism in seeded.mechanisms_of(3000, 0.7, None):
        rho = rho_of_orders(mechanism.privacy(Adjacency.ZERO_OUT))
        assert rho <= 0.245
        assert rho == pytest.approx(0.245, rel=1e-9)


def test_tries_are_counted_to_the_seed_that_was_sent() -> None:
    mechanism, _ = seeded.mechanisms_of(500, 1.5, 2)

    def stream(seed: int = 4) -> Any:
        return SeededRandomness(seed).stream("tries")

    tries = mechanism.choice().tries
    words = stream().words(WORDS_PER_TRY * tries * 2).reshape(2, tries, WORDS_PER_TRY)
    payload = words[0, 6, :2].tobytes() + words[1, 30, :2].tobytes()
    assert seeded.tries_of(mechanism, payload, stream()) == 7 + 31
    sent = seeded.payload_of(mechanism, rotated_update(500, 1), stream())
    assert 2 <= seeded.tries_of(mechanism, sent, stream()) <= 2 * tries
    with pytest.raises(WrongResult, match="none of the candidates"):
        seeded.tries_of(mechanism, sent, stream(5))


@pytest.mark.parametrize(
    ("options", "levels"),
    [("", 2), ("--messages packed --bits 2 --threads 2", 4), ("--messages none --bits auto", 2)],
)
def test_simulate(cli: Any, options: str, levels: int) -> None:
    found = measured(cli, f"simulate --clients 8 --dimension 40 {options}")
    assert found["clients_per_second"] > 0.0
    assert found["ratio_to_rotation_off"] > 0.0
    assert (found["clients"], found["levels"]) == (8, levels)
    assert sum(found["share_of_stages"].values()) == pytest.approx(1.0, abs=0.01)
    assert {"broadcast", "step", "other"} <= found["share_of_stages"].keys()


def test_simulate_measures_what_a_run_executes_by_default() -> None:
    default = inspect.signature(simulate.measure).parameters
    assert default["messages"].default == RuntimeSpec().messages
    assert default["rotation"].default == RunSpec.model_fields["rotation"].default


def test_train(cli: Any) -> None:
    found = measured(cli, "train --clients 2 --records 3 --batch-size 2 --device cpu")
    assert found["clients_per_second"] > 0.0
    assert found["dimension"] == 94410
    assert "equal those of a loop" in found["checked"]
    assert found["share_of_stages"]["train"] > 0.0


def test_clients_that_get_other_models_together_exit_1(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Task.local_models

    def wrong(self: Task, *given: Any, **named: Any) -> Any:
        for start, rows in right(self, *given, **named):
            yield start, rows * next(factors)

    factors = itertools.cycle([1.0, 1.1])
    monkeypatch.setattr(Task, "local_models", wrong)
    result = cli("benchmark", "train", "--clients", 2, "--records", 10, *QUICK.split())
    assert result.code == 1
    assert "get other models" in result.err


def test_design_says_how_near_the_optimum_it_is(cli: Any) -> None:
    found = measured(cli, "design --input-bits 2 --output-bits 1")
    assert 1.0 <= found["variance_over_lower_bound"] < 1.01
    assert found["scipy_variance_over_ours"] == pytest.approx(1.0, abs=1e-4)
    assert found["fraction_of_limit"] is None
    assert "no limit of the machine" in found["notes"]["limit"]


def test_account_stands_above_its_reference(cli: Any) -> None:
    found = measured(cli, "account --mechanism randomised_response --rounds 10")
    assert found["epsilon"] >= found["reference_epsilon"] > 0.0


def test_account_without_its_peer(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "version", lambda _: None)
    found = measured(cli, "account --rounds 2 --sampling-rate 1")
    assert found["calibrations_per_second"] > 0.0
    assert found["ratio_to_dp_accounting"] is None
    assert "not installed" in found["notes"]["dp_accounting"]


def test_nothing_is_remembered_from_one_measurement_to_the_next() -> None:
    seen: list[float] = []
    for _ in range(2):
        action = account._uncached(seen.append, 0.5)
        action()
        action()
    assert len(set(seen)) == 4


def test_an_epsilon_below_its_reference_exits_1(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "exact_randomized_response", lambda *_: 50.0)
    command = f"account --mechanism randomised_response --rounds 10 {QUICK}"
    result = cli("benchmark", *command.split())
    assert result.code == 1
    assert "below the exact" in result.err


def test_without_torch_its_column_is_empty(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (privatize, aggregate):
        monkeypatch.setattr(module, "version", lambda _: None)
    for command in ("privatize --dimension 50", "aggregate --dimension 50 --clients 2"):
        found = measured(cli, command)
        assert found["ratio_to_torch"] is None
        assert "not installed" in found["notes"]["torch"]


def test_people_see_the_same_fields(cli: Any) -> None:
    out = cli("benchmark", "privatize", "--dimension", 50, *QUICK.split()).out
    assert "coordinates_per_second" in out
    assert "machine.processor" in out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("privatize --dimension 0", "dimension must be"),
        ("privatize --dimension -3", "dimension must be"),
        ("privatize --dimension 10000000000", "GB of memory"),
        ("privatize --bits 0", "bits must be"),
        ("privatize --bits 9", "bits must be"),
        ("privatize --mechanism gaus_hermite", "did you mean 'gauss_hermite'"),
        ("privatize --threads 0", "threads must be"),
        ("privatize --seconds 0", "seconds must be"),
        ("aggregate --bits 9", "bits must be"),
        ("aggregate --clients 0", "clients must be"),
        ("aggregate --dimension 1000000000 --clients 100000", "GB of memory"),
        ("simulate --dimension 900000000 --clients 100000", "GB of memory"),
        ("simulate --bits 9", "bits must be"),
        ("simulate --bits few", "bits must be"),
        ("simulate --messages packd", "did you mean 'packed'"),
        ("simulate --threads 0", "threads must be"),
        ("simulate --threads 257", "threads must be"),
        ("train --batch-size 0", "batch_size must be"),
        ("train --clients 100000 --records 100000", "GB of memory"),
        ("seeded --dimension 0", "dimension must be"),
        ("seeded --mu 0", "mu must be"),
        ("seeded --mu -1", "mu must be"),
        ("seeded --mu nan", "mu must be"),
        ("seeded --mu 5 --blocks 1", "use blocks = 18"),
        ("seeded --blocks 0", "blocks must be"),
        ("seeded --mu 300", "gauss_hermite"),
        ("seeded --updates 1", "updates must be"),
        ("seeded --clients 0", "clients must be"),
        ("seeded --dimension 9000000000", "GB of memory"),
        ("design --output-bits 9", "output_bits must be"),
        ("account --mechanism gausian", "did you mean 'gaussian'"),
        ("account --sampling-rate 0", "rate must be"),
        ("account --rounds 0", "rounds must be"),
    ],
)
def test_bad_sizes_are_refused_in_a_line(cli: Any, command: str, says: str) -> None:
    result = cli("benchmark", *command.split())
    assert result.code == 2
    assert says in result.err
    assert result.err.count("\n") == 1


def test_a_wrong_payload_exits_1(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = privatize.payload_of

    def wrong_on_numpy(*given: Any) -> bytes:
        payload = right(*given)
        flipped = bytes([payload[0] ^ 1])
        return payload if native.native() else flipped + payload[1:]

    if native.native() is None:
        pytest.skip("without the C kernels there is nothing that could differ")
    monkeypatch.setattr(privatize, "payload_of", wrong_on_numpy)
    result = cli("benchmark", "privatize", "--dimension", 99, *QUICK.split())
    assert result.code == 1
    assert "wrong result, nothing was timed: the payload" in result.err
    assert result.out == ""


def test_a_wrong_mean_exits_1(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = aggregate.mean_of
    monkeypatch.setattr(aggregate, "mean_of", lambda *given: right(*given) * (1.0 + 1e-6))
    result = cli("benchmark", "aggregate", "--dimension", 99, "--clients", 3, *QUICK.split())
    assert result.code == 1
    assert "differs from a plain sum" in result.err


def test_a_wrong_seed_exits_1(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = seeded.mean
    monkeypatch.setattr(seeded, "mean", lambda *given: right(*given) * (1.0 + 1e-6))
    result = cli("benchmark", "seeded", "--dimension", 99, *QUICK.split())
    assert result.code == 1
    assert "differs from that of decoded messages" in result.err


def test_a_wrong_round_exits_1(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    models = iter([np.zeros(3), np.ones(3)])
    monkeypatch.setattr(simulate, "_model_after_one_round", lambda _: next(models))
    result = cli("benchmark", "simulate", "--clients", 8, "--dimension", 40, *QUICK.split())
    assert result.code == 1
    assert "model after a round" in result.err


def test_a_design_worse_than_a_linear_program_exits_1(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(design, "_solve_linear_program", lambda _: 0.5)
    result = cli("benchmark", "design", "--input-bits", 1, "--output-bits", 1, *QUICK.split())
    assert result.code == 1
    assert "linear program" in result.err


def test_yardsticks_draw_from_the_same_law() -> None:
    """Else they would be compared with something easier: means of many codes agree."""
    for kind, bits in (("gauss_hermite", 1), ("gauss_hermite", 2), ("gauss_hermite", 3),
                       ("mvu", 3), ("discrete_gaussian", 16)):  # fmt: skip
        case = privatize.case_of(kind, 40_000, bits)
        update = np.full(40_000, 0.7, dtype=np.float32)
        if kind != "mvu":
            update[1::2] *= -1.0
            update *= 1e4  # clipped, and of full norm
        plain = case.yardstick.payload(update, np.random.default_rng(1))
        values = _decoded(case, plain)
        law = case.mechanism.law(case.mechanism.input_domain.project(update))
        spread = float(np.sqrt(law.variance().mean() / 20_000))
        for half in (slice(0, None, 2), slice(1, None, 2)):
            expected = float(law.mean()[half].mean())
            assert float(values[half].mean()) == pytest.approx(expected, abs=5 * spread), kind
        torch = pytest.importorskip("torch")
        torch.manual_seed(1)
        eager = case.yardstick.torch_payload(torch.from_numpy(update)).numpy().tobytes()
        values = _decoded(case, eager)
        for half in (slice(0, None, 2), slice(1, None, 2)):
            expected = float(law.mean()[half].mean())
            assert float(values[half].mean()) == pytest.approx(expected, abs=5 * spread), kind


def _decoded(case: privatize.BenchmarkCase, payload: bytes) -> Any:
    from sottovoce.mechanisms import packing

    codes = packing.unpack(payload, case.mechanism.input_domain.dimension, case.bits)
    return case.mechanism.decode(codes)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_every_level_of_the_kernels_passes_the_checks(bits: int) -> None:
    case = privatize.case_of("gauss_hermite", 2077, bits)
    assert isinstance(case.mechanism, GaussHermite)
    payloads = aggregate.payloads_of(37, 2077, bits)
    for level in native.levels():
        with native.using(level):
            privatize.check(case, privatize.update_of(case.mechanism.input_domain))
            aggregate.check(case.mechanism, payloads)


@pytest.mark.parametrize("bits", range(1, 9))
def test_plain_and_eager_codes_unpack_what_was_packed(bits: int) -> None:
    import torch

    from sottovoce.mechanisms import packing

    codes = np.random.default_rng(bits).integers(0, 1 << bits, 1001).astype(np.uint8)
    payload = np.frombuffer(packing.pack(codes, bits), np.uint8)
    assert np.array_equal(aggregate.plain_codes(payload, 1001, bits), codes)
    eager = aggregate._eager_codes(torch.from_numpy(payload.copy()), 1001, bits)
    assert np.array_equal(eager.numpy(), codes)


def test_rates_let_everyone_have_three_turns() -> None:
    turns = {"quick": 0, "slow": 0}

    def turn(name: str) -> TimedAction:
        def run() -> None:
            turns[name] += 1

        return TimedAction(run, 1.0)

    found = rates({name: turn(name) for name in turns}, 1e-5)
    assert min(turns.values()) >= 3
    assert min(found.values()) > 0.0


def test_payloads_have_zeros_after_the_last_code() -> None:
    payloads = aggregate.payloads_of(5, 13, 3)
    ball = privatize.case_of("gauss_hermite", 13, 3).mechanism
    assert isinstance(ball, GaussHermite)
    assert aggregate.mean_of(ball, payloads).shape == (13,)
