"""Clipping on the way gives the bytes of clipping first."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core import native
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import packing, registry
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism
from sottovoce.protocol.privatise import encode_update, privatise

KEY = bytes(range(32))
KINDS = [
    ("gauss_hermite", {"levels": 2, "noise_multiplier": 0.7}, "l2"),
    ("gauss_hermite", {"levels": 3, "noise_multiplier": 2.0}, "l2"),
    ("gauss_hermite", {"levels": 64, "noise_multiplier": 0.5}, "l2"),
    ("mvu", {"epsilon": 5.0, "input_bits": 3, "output_bits": 3}, "box"),
    ("mvu", {"epsilon": 1.0, "input_bits": 3, "output_bits": 3}, "far box"),
    ("generalized_rr", {"epsilon": 8.0, "bits": 8}, "box"),
    ("metric_mvu", {"epsilon": 2.0, "metric": "l1", "input_bits": 1, "output_bits": 1}, "l1"),
    ("clamped_sign", {"noise_multiplier": 2.0, "logit_bound": 1.0}, "l2"),
    (
        "discrete_gaussian",
        {"noise_multiplier": 5.0, "bits": 16, "steps_per_radius": "auto"},
        "l2",
    ),
]


def domain_of(name: str, dimension: int) -> Domain:
    match name:
        case "l2":
            return L2Ball(dimension=dimension, radius=1.5)
        case "l1":
            return L1Ball(dimension=dimension, radius=1.5)
        case "box":
            return Box(dimension=dimension, lower=-1.0, upper=1.0)
        case _:
            return Box(dimension=dimension, lower=100.0, upper=101.0)


def updates(name: str, dimension: int, seed: int, reach: float) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if "box" in name:
        middle = 100.5 if "far" in name else 0.0
        return np.asarray(middle + generator.uniform(-reach, reach, dimension))
    return np.asarray(reach * generator.normal(size=dimension) / np.sqrt(dimension))


def first_clipped(mechanism: Mechanism, update: np.ndarray) -> bytes:
    codes = mechanism.encode(mechanism.input_domain.project(update), Keystream(KEY))
    code_format = mechanism.code_format()
    assert isinstance(code_format, LevelCodes)
    return packing.pack(np.asarray(codes, dtype=code_format.dtype), code_format.bits)


@pytest.mark.parametrize(("kind", "parameters", "where"), KINDS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("dimension", [1, 33, 3001])
def test_payloads_are_those_of_projected_codes(
    kind: str, parameters: dict[str, object], where: str, dtype: type, dimension: int
) -> None:
    mechanism = registry.find(kind).build(domain_of(where, dimension), parameters)
    for reach in (0.1, 1.0, 4.0):
        update: Any = updates(where, dimension, seed=3, reach=reach).astype(dtype)
        found = set()
        for level in native.levels():
            with native.using(level):
                found |= {privatise(mechanism, update, Keystream(KEY))}
                found |= {first_clipped(mechanism, update)}
        assert len(found) == 1


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 400), log_reach=st.floats(-40.0, 38.0))
@settings(max_examples=60, deadline=None)
def test_updates_of_any_length_are_clipped_alike(seed: int, size: int, log_reach: float) -> None:
    mechanism = registry.find("gauss_hermite").build(
        domain_of("l2", size), {"levels": 2, "noise_multiplier": 1.0}
    )
    with np.errstate(over="ignore"):
        update = updates("l2", size, seed, 10.0**log_reach).astype(np.float32)
    update = np.nan_to_num(update)
    assert privatise(mechanism, update, Keystream(KEY)) == first_clipped(mechanism, update)


@pytest.mark.parametrize(("kind", "parameters", "where"), KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(
    kind: str, parameters: dict[str, object], where: str, bad: float
) -> None:
    mechanism = registry.find(kind).build(domain_of(where, 40), parameters)
    update = updates(where, 40, seed=1, reach=0.5).astype(np.float32)
    update[7] = bad
    for level in native.levels():
        with native.using(level), pytest.raises(DomainError, match="finite"):
            privatise(mechanism, update, Keystream(KEY))


def test_what_is_no_vector_of_the_dimension_is_refused() -> None:
    mechanism = registry.find("gauss_hermite").build(
        domain_of("l2", 8), {"levels": 2, "noise_multiplier": 1.0}
    )
    for wrong in (np.zeros(7), np.zeros((8, 1)), np.array(["a"] * 8), np.zeros(0)):
        with pytest.raises(DomainError):
            privatise(mechanism, wrong, Keystream(KEY))


def test_strided_and_read_only_updates_are_read_as_they_are() -> None:
    mechanism = registry.find("gauss_hermite").build(
        domain_of("l2", 50), {"levels": 2, "noise_multiplier": 1.0}
    )
    wide = np.random.default_rng(0).normal(size=100).astype(np.float32)
    plain = privatise(mechanism, wide[::2].copy(), Keystream(KEY))
    wide.flags.writeable = False
    assert privatise(mechanism, wide[::2], Keystream(KEY)) == plain


def test_codes_that_are_not_packed_are_refused() -> None:
    mechanism = Gaussian(input_domain=L2Ball(dimension=3, radius=1.0), noise_multiplier=1.0)
    with pytest.raises(ParameterError, match="packed"):
        privatise(mechanism, np.zeros(3), Keystream(KEY))
    assert encode_update(mechanism, np.full(3, 9.0), Keystream(KEY)).dtype == np.float32


@pytest.mark.parametrize(("kind", "parameters", "where"), KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_tensors_of_torch_are_read_exactly(
    kind: str, parameters: dict[str, object], where: str, dtype: str
) -> None:
    torch = pytest.importorskip("torch")
    mechanism = registry.find(kind).build(domain_of(where, 50), parameters)
    wide = torch.from_numpy(updates(where, 100, seed=2, reach=1.0)).to(getattr(torch, dtype))
    exact = wide[::2].double().numpy()
    for update in (wide[::2], wide[::2].clone().requires_grad_()):
        assert privatise(mechanism, update, Keystream(KEY)) == privatise(
            mechanism, exact, Keystream(KEY)
        )


def test_tensors_on_a_device_need_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnDevice:
        is_cuda = True

        def detach(self) -> "OnDevice":
            return self

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    mechanism = registry.find("gauss_hermite").build(
        domain_of("l2", 8), {"levels": 2, "noise_multiplier": 1.0}
    )
    with pytest.raises(ParameterError, match=r"pip install triton.*\.cpu\(\)"):
        privatise(mechanism, OnDevice(), Keystream(KEY))


def test_the_example_of_the_documentation_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(example, {})
