"""`privatize` on every registered mechanism: the bits of `encode`, and clear words for the rest."""

from typing import Any

import numpy as np
import pytest

from sottovoce import GaussHermite, L2Ball, SeededRandomness, calibrate
from sottovoce.core.errors import DomainError, RandomnessError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.encoding import Privatizing

KINDS = [one.kind for one in registry.registrations()]
SEEDED = SeededRandomness(1)
ONE_BIT = GaussHermite(input_domain=L2Ball(dimension=6, radius=1.0), levels=2, noise_multiplier=1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_it_gives_the_codes_of_what_is_flattened_and_clipped(kind: str) -> None:
    registration = registry.find(kind)
    domain = registration.example_domain
    mechanism = registration.build(domain, registration.examples[0])
    update = np.linspace(-3.0, 3.0, domain.dimension, dtype=np.float32)
    strict = mechanism.encode(domain.project(update), SEEDED.stream(kind))
    for given in (update, update.reshape(1, -1, 1), update.tolist(), update[::-1][::-1]):
        codes = mechanism.privatize(given, randomness=SEEDED.stream(kind))
        np.testing.assert_array_equal(codes, strict)
    assert mechanism.decode(mechanism.privatize(update)).shape == (domain.dimension,)


def test_tensors_give_the_same_bits() -> None:
    torch = pytest.importorskip("torch")
    values = torch.linspace(-3.0, 3.0, 6).reshape(2, 3)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        tensor = values.to(dtype).T.requires_grad_()
        array = tensor.detach().double().numpy()
        of_tensor = ONE_BIT.privatize(tensor, randomness=SEEDED.stream("t"))
        np.testing.assert_array_equal(
            of_tensor, ONE_BIT.privatize(array, randomness=SEEDED.stream("t"))
        )
    with pytest.raises(DomainError, match="dense array"):
        ONE_BIT.privatize(values.to_sparse())


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (np.ones(6, dtype=int), "holds int64 numbers.*convert it"),
        ([1, 2, 3, 4, 5, 6], "convert it"),
        (np.ones(6, dtype=bool), "holds bool"),
        (np.ones(6, dtype=complex), "expected real"),
        (["a"] * 6, "expected real"),
        (None, "expected real"),
        ([[1.0], [1.0, 2.0]], "concatenate its parts"),
        (0.5, "a single number"),
        ([], "has 0 coordinates"),
        (np.ones((2, 6)), r"has 12 coordinates in shape \(2, 6\), expected 6"),
        ([0.0, np.nan, 0.0, 0.0, 0.0, 0.0], "coordinate 1 is nan"),
        ([0.0, 0.0, 0.0, 0.0, 0.0, -np.inf], "coordinate 5 is -inf"),
    ],
)
def test_what_is_no_update_is_refused_before_a_key_is_drawn(update: Any, words: str) -> None:
    keystream = SEEDED.stream("kept")
    with pytest.raises(DomainError, match=words):
        ONE_BIT.privatize(update, randomness=keystream)
    ONE_BIT.privatize(np.zeros(6), randomness=keystream)


def test_each_call_draws_a_key_of_its_own() -> None:
    ball = L2Ball(dimension=256, radius=1.0)
    mechanism: Privatizing = calibrate(
        "gauss_hermite", levels=2, epsilon=1.0, delta=1e-5, dimension=256
    )
    assert isinstance(mechanism, GaussHermite)
    assert mechanism.input_domain == ball
    codes = {mechanism.privatize(np.zeros(256)).tobytes() for _ in range(3)}
    assert len(codes) == 3
    with pytest.raises(RandomnessError, match="needs a label"):
        mechanism.privatize(np.zeros(256), randomness=SEEDED)
