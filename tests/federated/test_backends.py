"""What is simulated is what ships: three ways to collect a round, one law."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_checks import check_resumed
from specs import CLIENT_LEVEL, small_spec

from sottovoce.core.domains import Box, L2Ball
from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.federated.simulation.draws import RowRotation, draw_rows, draw_total, law_of
from sottovoce.learning.clients import DenseRows
from sottovoce.mechanisms.coordinate_laws import Coordinatewise
from sottovoce.mechanisms.registry import Parameters, Registration, registrations
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.runner import run
from sottovoce_papers.trial import trial

ONE_EACH: dict[str, Any] = {
    "data": {"dataset": "digits", "clients": 1438},
    "sampling": {"kind": "epochs", "size": 100},
    "privacy": {"level": "client", "clip_norm": 1.0, "epsilon": 8.0, "delta": 1e-5},
    "algorithm": {
        "kind": "fedavg",
        "server_learning_rate": 0.05,
        "local_learning_rate": 1.0,
    },
    "rounds": 3,
}
LEVELS = {"sample": {}, "client": CLIENT_LEVEL, "one": ONE_EACH}
MECHANISMS: list[dict[str, Any]] = [
    {"kind": "gauss_hermite", "levels": 2},
    {"kind": "gauss_hermite", "levels": 4},
    {"kind": "gaussian"},
    {"kind": "stochastic_sign"},
    {"kind": "seeded_sign", "blocks": "auto", "generator": "auto", "timing": "auto"},
    {"kind": "seeded_step", "length": "auto", "generator": "auto", "timing": "auto"},
]


def model_of(folder: Path) -> Any:
    progress = RunFolder(folder).load_checkpoint()
    assert progress is not None
    return progress.model


def _pairs() -> Iterator[Any]:
    """Every mechanism at both levels; without the rotation, one of codes and one of noise."""
    for mechanism in MECHANISMS:
        name = f"{mechanism['kind']}{mechanism.get('levels', '')}"
        for level, rotation in itertools.product(LEVELS, ("on", "off")):
            # A thousand ledger entries once are enough.
            if level == "one" and (rotation == "on" or mechanism["kind"] != "gauss_hermite"):
                continue
            # Hundreds of records in a sum are thousands of seeds.
            if level == "sample" and mechanism["kind"] == "seeded_sign":
                continue
            quick = rotation == "on" or name in ("gauss_hermite2", "gaussian")
            marks = [] if quick else [pytest.mark.slow]
            label = f"{name}-{level}-{rotation}"
            yield pytest.param(mechanism, LEVELS[level], rotation, id=label, marks=marks)


@pytest.mark.parametrize(("mechanism", "level", "rotation"), list(_pairs()))
def test_packed_messages_are_the_stored_ones(
    tmp_path: Path, mechanism: dict[str, Any], level: dict[str, Any], rotation: str
) -> None:
    changes = {**level, "mechanism": mechanism, "rotation": rotation}
    stored = run(small_spec(**{"rounds": 2, **changes}), tmp_path / "stored")
    # The run's name is part of every keystream's label, and the runtime is part of the name.
    packed = run_as(small_spec(**{"rounds": 2, **changes}), "packed", tmp_path / "packed")
    np.testing.assert_array_equal(model_of(tmp_path / "packed"), model_of(tmp_path / "stored"))
    for key in ("epsilon", "payload_bytes_up_per_message", "total_bytes_up_per_message"):
        assert packed[key] == stored[key], key


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("level", ["sample", "client"])
def test_packed_messages_of_two_groups_are_the_stored_ones(
    tmp_path: Path, level: str, robust: bool
) -> None:
    """Groups have mechanisms of their own, and clients the weights of their sizes."""
    changes: dict[str, Any] = {
        **LEVELS[level],
        "rounds": 2,
        "mechanism": {"kind": "gauss_hermite", "levels": 4},
    }
    privacy = changes.get("privacy", {"level": "sample", "clip_norm": 1.0, "delta": 1e-5})
    groups = [{"clients": 2, "epsilon": 4.0}, {"clients": 1, "epsilon": 20.0}]
    changes["privacy"] = {**privacy, "epsilon": 8.0, "groups": groups}
    if robust:
        algorithm = {"kind": "fedavg", "server_learning_rate": 0.5}
        changes["algorithm"] = {
            **algorithm,
            **changes.get("algorithm", {}),
            "aggregation": {"kind": "median"},
        }
    run(small_spec(**changes), tmp_path / "stored")
    run_as(small_spec(**changes), "packed", tmp_path / "packed")
    np.testing.assert_array_equal(model_of(tmp_path / "packed"), model_of(tmp_path / "stored"))


SHUFFLED: dict[str, Any] = {
    **CLIENT_LEVEL,
    "data": {"dataset": "digits", "clients": 60},
    "privacy": {
        "level": "client",
        "adjacency": "replace-one",
        "clip_norm": 0.5,
        "delta": 1e-3,
    },
    "mechanism": {"kind": "cldp", "epsilon": 1.0},
    "rounds": 4,
}


@pytest.mark.parametrize(
    ("channel", "sampling"),
    [
        # On average 42 of the 60 are drawn, and rounds of fewer ask nobody.
        ({"kind": "shuffler", "minimum_clients": 42}, {"kind": "poisson", "rate": 0.7}),
        ({"kind": "secret_order", "minimum_clients": 60}, {"kind": "epochs", "size": 30}),
    ],
    ids=["shuffler", "secret order"],
)
def test_packed_messages_are_the_shuffled_ones(
    tmp_path: Path, channel: dict[str, Any], sampling: dict[str, Any]
) -> None:
    """A mean does not depend on whose messages were whose; what is charged is the channel's."""
    spec = small_spec(**{**SHUFFLED, "channel": channel, "sampling": sampling})
    stored = run(spec, tmp_path / "stored")
    packed = run_as(spec, "packed", tmp_path / "packed")
    np.testing.assert_allclose(
        model_of(tmp_path / "packed"), model_of(tmp_path / "stored"), rtol=0, atol=3e-6
    )
    same = ("epsilon", "local_epsilon", "central_epsilon", "clients", "payload_bytes_up_per_client")
    for key in same:
        assert packed[key] == stored[key], key
    for name in ("stored", "packed"):
        asked = [row["clients_asked"] for row in RunFolder(tmp_path / name).metrics()]
        assert all(count == 0 or count >= 30 for count in asked)
        assert (0 in asked) == (channel["kind"] == "shuffler")


@pytest.mark.parametrize(
    "mechanism",
    [
        {"kind": "clamped_sign", "logit_bound": 1.0, "noise_multiplier": 20.0},
        {
            "kind": "discrete_gaussian",
            "noise_multiplier": 2.0,
            "bits": 16,
            "steps_per_radius": 100.0,
        },
    ],
    ids=["one bit", "a grid"],
)
def test_packed_messages_have_the_sum_of_stored_ones(
    tmp_path: Path, mechanism: dict[str, Any]
) -> None:
    """Behind a secure sum on average 8.4 of 12 are drawn; rounds of fewer than 8 ask nobody."""
    changes: dict[str, Any] = {
        **CLIENT_LEVEL,
        "data": {"dataset": "digits", "clients": 12},
        "channel": {"kind": "secure_sum", "minimum_clients": 8},
        "sampling": {"kind": "poisson", "rate": 0.7},
        "mechanism": mechanism,
        "rounds": 4,
    }
    changes["privacy"] = {**changes["privacy"], "epsilon": None}
    stored = run(small_spec(**changes), tmp_path / "stored")
    packed = run_as(small_spec(**changes), "packed", tmp_path / "packed")
    np.testing.assert_array_equal(model_of(tmp_path / "packed"), model_of(tmp_path / "stored"))
    assert 0 in [row["clients_asked"] for row in RunFolder(tmp_path / "packed").metrics()]
    same = ("epsilon", "local_epsilon", "payload_bytes_up_per_client")
    assert [packed[key] for key in same] == [stored[key] for key in same]


def run_as(spec: Any, messages: str, folder: Path) -> dict[str, Any]:
    """The spec with other messages, under the same name for its keystreams."""
    from sottovoce.runs.spec import RunSpec

    changed = spec.model_copy(
        update={"runtime": spec.runtime.model_copy(update={"messages": messages})}
    )
    with pytest.MonkeyPatch.context() as patch:
        own = RunSpec.hash.fget  # type: ignore[attr-defined]
        patch.setattr(
            RunSpec,
            "hash",
            property(
                lambda self: own(
                    self.model_copy(update={"runtime": type(self.runtime)(messages="stored")})
                )
            ),
        )
        return run(changed, folder)


@pytest.mark.parametrize("messages", ["packed", "none"])
def test_a_run_without_a_ledger_resumes_bit_for_bit(tmp_path: Path, messages: str) -> None:
    spec = small_spec(runtime={"messages": messages}, checkpoint_every=2)
    check_resumed(spec, tmp_path, stop_after=5)
    assert not (tmp_path / "whole" / "ledger.sqlite").exists()


@pytest.mark.parametrize("messages", ["packed", "none"])
def test_a_trial_ends_as_a_run_does(tmp_path: Path, messages: str) -> None:
    spec = small_spec(runtime={"messages": messages})
    found, expected = trial(spec), run(spec, tmp_path / "run")
    for key in ("accuracy", "epsilon", "spec_hash", "bits_per_coordinate"):
        assert found[key] == expected[key]
    assert found["curve"][-1]["round"] == 6
    assert found["clients_per_second"] > 0


def test_budgets_stop_clients_in_memory_as_in_the_ledger(tmp_path: Path) -> None:
    loud = {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 2.0}
    privacy = {
        "level": "sample",
        "clip_norm": 1.0,
        "epsilon": 40.0,
        "delta": 1e-5,
        "groups": [{"clients": 1, "epsilon": 4.0}],
    }
    results = {
        messages: run(
            small_spec(privacy=privacy, mechanism=loud, runtime={"messages": messages}),
            tmp_path / messages,
        )
        for messages in ("stored", "packed", "none")
    }
    for messages in ("packed", "none"):
        for key in ("epsilon", "groups", "clients", "clients_out_of_budget"):
            assert results[messages][key] == results["stored"][key], (messages, key)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"randomness": "system"}, "seeded"),
        ({"channel": {"kind": "secure_sum", "minimum_clients": 3}}, "stored"),
        (
            {"mechanism": {"kind": "discrete_gaussian", "bits": 16, "steps_per_radius": "auto"}},
            "packed",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trial(small_spec(**{"runtime": {"messages": "none"}, **changes}))


def test_a_trial_of_stored_messages_is_refused() -> None:
    with pytest.raises(ConfigError, match="packed"):
        trial(small_spec())


# -- the laws that are drawn ---------------------------------------------------------------


# These say nothing of a coordinate: their finite law is drawn from, as a plug-in's would be.
FINITE = ("clamped_sign",)
DESCRIBED = [
    pytest.param(registration, example, id=f"{registration.kind}-{number}")
    for registration in registrations()
    if registration.kind in FINITE or issubclass(registration.factory, Coordinatewise)  # type: ignore[arg-type]
    for number, example in enumerate(registration.examples)
]


def described(registration: Registration, example: Parameters) -> Any:
    """On the first example domain on which coordinates are treated one by one."""
    built = (registration.build(domain, example) for domain in registration.example_domains)
    return next((one for one in built if says_what_it_does(one)), None)


def says_what_it_does(mechanism: Any) -> bool:
    try:
        law_of(mechanism)
    except ParameterError:  # not on this domain
        return False
    return True


@pytest.mark.parametrize(("registration", "example"), DESCRIBED)
def test_drawn_values_have_the_declared_mean_and_variance(
    registration: Registration, example: Parameters
) -> None:
    mechanism = described(registration, example)
    if mechanism is None:
        pytest.skip("treats coordinates together on all its domains")
    domain = mechanism.input_domain
    if isinstance(domain, L2Ball):
        value = np.linspace(-1.0, 1.0, domain.dimension) * 0.5 * domain.radius
    else:
        low, high = (domain.lower, domain.upper) if isinstance(domain, Box) else (-0.1, 0.1)
        value = np.linspace(low, high, domain.dimension)
    law = mechanism.law(domain.project(value))
    count = 1000 if registration.kind in FINITE else 20_000  # row by row
    rows = torch.tensor(domain.project(value), dtype=torch.float32).repeat(count, 1)
    generator = torch.Generator().manual_seed(3)
    drawn = draw_rows(law_of(mechanism), rows, generator).double()
    spread = np.sqrt(law.variance() / len(rows))
    assert (np.abs(drawn.mean(dim=0).numpy() - law.mean()) <= 5.0 * spread + 1e-6).all()
    fourth = drawn.sub(drawn.mean(dim=0)).pow(4).mean(dim=0).numpy()
    of_variance = np.sqrt(np.maximum(fourth - law.variance() ** 2, 0.0) / len(rows))
    difference = np.abs(drawn.var(dim=0).numpy() - law.variance())
    assert (difference <= 5.0 * of_variance + 1e-6 * law.variance()).all()
    total = draw_total(law_of(mechanism), DenseRows(rows), torch.ones(len(rows)), generator)
    error = np.abs(total.double().numpy() / len(rows) - law.mean())
    assert (error <= 5.0 * spread + 1e-4).all()


@pytest.mark.parametrize("dimension", [1, 8, 13, 650])
def test_rows_are_rotated_as_vectors_are(dimension: int) -> None:
    rotation = Rotation.of_round("run", 3, dimension)
    rows = np.random.default_rng(0).normal(size=(4, dimension))
    turn = RowRotation(rotation, torch.device("cpu"))
    turned = turn.forward(torch.tensor(rows, dtype=torch.float32))
    expected = np.stack([rotation.forward(row) for row in rows])
    np.testing.assert_allclose(turned.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(turn.inverse(turned).numpy(), rows, atol=1e-5)
