"""One path: prepared rows give the bytes of projected, rotated, encoded and packed vectors."""

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
from sottovoce.core.errors import DomainError, ParameterError, WireError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import encoding, registry, row_batches
from sottovoce.mechanisms.encoding import (
    EncodesPacked,
    encode_packed,
    pack_codes,
    prepare,
    take_clipped,
)
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.kernels import cuda
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import Rotation

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
    ("gaussian", {"noise_multiplier": 1.0}, "l2"),
    ("stochastic_sign", {"noise_multiplier": 2.0}, "l2"),
    ("interpolated_mvu", {"epsilon": 3.0, "beta": 0.5, "output_bits": 2}, "l2"),
]
ROTATED = [one for one in KINDS if one[2] == "l2"]


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


def payload_of(mechanism: Mechanism, update: Any, rotation: Rotation | None = None) -> bytes:
    prepared = prepare(mechanism, update, rotation=rotation)
    return encode_packed(prepared, [Keystream(KEY)]).on_cpu().tobytes()


def step_by_step(
    mechanism: Mechanism, update: Any, rotation: Rotation | None = None, key: bytes = KEY
) -> bytes:
    """What the path must give: each step by itself, with all its checks."""
    values = mechanism.input_domain.project(update)
    if rotation is not None:
        values = mechanism.input_domain.check(rotation.forward(values))
    return pack_codes(mechanism.encode(values, Keystream(key)), mechanism.code_format())


@pytest.mark.parametrize(
    ("kind", "parameters", "where", "dimension", "dtype"),
    [
        # Every mechanism in each dimension and each precision, but not in all of their pairs.
        pytest.param(*kind, dimension, dtype, marks=[pytest.mark.slow] * ((i + j + k) % 3 > 0))
        for i, kind in enumerate(KINDS)
        for j, dimension in enumerate([1, 33, 3001])
        for k, dtype in enumerate([np.float16, np.float32, np.float64])
    ],
)
def test_payloads_are_those_of_projected_codes(
    kind: str, parameters: dict[str, object], where: str, dtype: type, dimension: int
) -> None:
    mechanism = registry.find(kind).build(domain_of(where, dimension), parameters)
    for reach in (0.1, 1.0, 4.0):
        update: Any = updates(where, dimension, seed=3, reach=reach).astype(dtype)
        found = set()
        for level in native.levels():
            with native.using(level):
                found |= {payload_of(mechanism, update)}
                found |= {step_by_step(mechanism, update)}
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
    assert payload_of(mechanism, update) == step_by_step(mechanism, update)


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
            payload_of(mechanism, update)


def test_what_is_no_vector_of_the_dimension_is_refused() -> None:
    mechanism = registry.find("gauss_hermite").build(
        domain_of("l2", 8), {"levels": 2, "noise_multiplier": 1.0}
    )
    for wrong in (np.zeros(7), np.zeros((8, 1)), np.array(["a"] * 8), np.zeros(0)):
        with pytest.raises(DomainError):
            payload_of(mechanism, wrong)


def test_strided_and_read_only_updates_are_read_as_they_are() -> None:
    mechanism = registry.find("gauss_hermite").build(
        domain_of("l2", 50), {"levels": 2, "noise_multiplier": 1.0}
    )
    wide = np.random.default_rng(0).normal(size=100).astype(np.float32)
    plain = payload_of(mechanism, wide[::2].copy())
    wide.flags.writeable = False
    assert payload_of(mechanism, wide[::2]) == plain


@pytest.mark.parametrize(("kind", "parameters", "where"), KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", ["1", "3"])
def test_many_rows_are_those_of_one_at_a_time(
    kind: str,
    parameters: dict[str, object],
    where: str,
    dtype: type,
    threads: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOTTOVOCE_THREADS", threads)
    dimension = 3001
    mechanism = registry.find(kind).build(domain_of(where, dimension), parameters)
    reaches = (0.1, 1.0, 4.0, 1e-30, 2.0, 0.0)
    rows: Any = np.stack([updates(where, dimension, 3, reach) for reach in reaches])
    rows = rows.astype(dtype)
    keys = [bytes([i]) * 32 for i in range(len(rows))]
    rotations = [None, Rotation(bytes(32), dimension)] if where == "l2" else [None]
    for rotation in rotations:
        packed = encode_packed(
            prepare(mechanism, rows, rotation=rotation), [Keystream(key) for key in keys]
        )
        assert len(packed) == len(rows)
        for row, key, payload, codes in zip(
            rows, keys, packed.on_cpu(), packed.codes(), strict=True
        ):
            assert payload.tobytes() == step_by_step(mechanism, row, rotation, key)
            assert pack_codes(codes, mechanism.code_format()) == payload.tobytes()


@pytest.mark.parametrize(("kind", "parameters", "where"), ROTATED)
def test_rotated_rows_lie_in_the_ball_and_in_float64(
    kind: str, parameters: dict[str, object], where: str
) -> None:
    """So that nothing need be checked after the charge: `step_by_step` would raise."""
    for dimension in (1, 2, 33, 700, 3001):
        mechanism = registry.find(kind).build(domain_of(where, dimension), parameters)
        rotation = Rotation(bytes(range(32)), dimension)
        rows = np.stack([updates(where, dimension, 3, reach) for reach in (1.0, 4.0, 1e200)])
        prepared = prepare(mechanism, rows, rotation=rotation)
        for i, row in enumerate(rows):
            found = prepared.vector(i)
            expected = rotation.forward(mechanism.input_domain.project(row))
            assert found.tobytes() == expected.tobytes()
            mechanism.input_domain.check(found)


@pytest.mark.parametrize(("kind", "dimension"), [("box", 64), ("l2", 63), ("l2", 128)])
def test_a_rotation_needs_a_euclidean_ball_of_its_dimension(kind: str, dimension: int) -> None:
    made = {"box": ("mvu", {"epsilon": 5.0, "input_bits": 3, "output_bits": 3})}
    name, parameters = made.get(kind, ("gauss_hermite", {"levels": 2, "noise_multiplier": 1.0}))
    mechanism = registry.find(name).build(domain_of(kind, dimension), parameters)
    with pytest.raises(ParameterError, match="a rotation of 64 coordinates needs the domain"):
        prepare(mechanism, np.ones(dimension), rotation=Rotation(bytes(32), 64))


def test_only_what_was_prepared_is_encoded_each_row_from_its_own_stream() -> None:
    mechanism = registry.find("gauss_hermite").build(
        domain_of("l2", 8), {"levels": 2, "noise_multiplier": 1.0}
    )
    rows = prepare(mechanism, np.ones((3, 8)))
    with pytest.raises(ParameterError, match="one keystream for each"):
        encode_packed(rows, [Keystream(KEY)])
    (chosen,) = encode_packed(rows.take([1]), [Keystream(KEY)]).on_cpu()
    assert chosen.tobytes() == payload_of(mechanism, np.ones(8))
    assert len(encode_packed(prepare(mechanism, np.ones((0, 8))), [])) == 0
    with pytest.raises(DomainError, match="rows of 8 numbers"):
        prepare(mechanism, np.ones((3, 7)))


def test_one_bit_is_never_unpacked_and_norms_are_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mechanism = registry.find("gauss_hermite").build(
        domain_of("l2", 3000), {"levels": 2, "noise_multiplier": 1.0}
    )
    norms: list[int] = []
    clip_factors = row_batches.clip_factors

    def counted(rows: Any, ball: L2Ball) -> Any:
        norms.extend(range(len(rows)))
        return clip_factors(rows, ball)

    monkeypatch.setattr(encoding, "clip_factors", counted)
    monkeypatch.setattr(GaussHermite, "encode", None)
    monkeypatch.setattr(np, "unpackbits", None)
    rows = np.random.default_rng(0).normal(size=(4, 3000))
    for rotation in (None, Rotation(bytes(32), 3000)):
        norms.clear()
        encode_packed(prepare(mechanism, rows, rotation=rotation), [Keystream(KEY) for _ in rows])
        assert len(norms) == len(rows)


class OnlyEncodes:
    """A plug-in that offers what the protocol asks for and nothing else."""

    def __init__(self, inner: Mechanism) -> None:
        self._inner = inner
        self.input_domain, self.code_format = inner.input_domain, inner.code_format
        self.encode, self.decode, self.law = inner.encode, inner.decode, inner.law
        self.privacy, self.sampling = inner.privacy, inner.sampling


@pytest.mark.parametrize(("kind", "parameters", "where"), KINDS)
def test_a_mechanism_with_nothing_but_encode_gives_the_same_bytes(
    kind: str, parameters: dict[str, object], where: str
) -> None:
    mechanism = registry.find(kind).build(domain_of(where, 700), parameters)
    plain: Any = OnlyEncodes(mechanism)
    assert not isinstance(plain, EncodesPacked)
    update = updates(where, 700, seed=4, reach=2.0).astype(np.float32)
    assert payload_of(plain, update) == payload_of(mechanism, update)


def test_codes_of_another_shape_are_refused() -> None:
    """One code of four bits too few would fill as many bytes, and be read as a zero."""
    mechanism = registry.find("mvu").build(
        Box(dimension=7, lower=-1.0, upper=1.0), {"epsilon": 1.0, "input_bits": 4, "output_bits": 4}
    )
    for cut in (lambda codes: codes[:-1], lambda codes: codes[None]):
        plain: Any = OnlyEncodes(mechanism)
        plain.encode = lambda *given, cut=cut: cut(mechanism.encode(*given))
        with pytest.raises(WireError, match=r"shape \(7,\)"):
            payload_of(plain, np.zeros(7))


def test_rows_that_were_clipped_before_are_taken_as_they_are() -> None:
    mechanism = registry.find("gauss_hermite").build(
        domain_of("l2", 50), {"levels": 2, "noise_multiplier": 1.0}
    )
    rows = updates("l2", 100, seed=2, reach=9.0).astype(np.float32).reshape(2, 50)
    prepared = take_clipped(mechanism, rows)
    assert prepared.rows is rows
    assert prepared.scales is None


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
        assert payload_of(mechanism, update) == payload_of(mechanism, exact)


def test_without_triton_the_cpu_serves_tensors_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class OnDevice:
        """What prepare asks of a tensor there."""

        is_cuda = True

        def detach(self) -> "OnDevice":
            return self

        def cpu(self) -> Any:
            return torch.ones(8)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(cuda, "available", cuda.available.__wrapped__)
    mechanism = registry.find("gauss_hermite").build(
        domain_of("l2", 8), {"levels": 2, "noise_multiplier": 1.0}
    )
    prepared = prepare(mechanism, OnDevice())
    assert not prepared.on_device
    assert payload_of(mechanism, OnDevice()) == payload_of(mechanism, np.ones(8))


def test_the_example_of_the_documentation_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "kernels.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(example, {})
