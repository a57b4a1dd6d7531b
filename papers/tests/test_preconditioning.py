from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sottovoce.core.errors import ParameterError
from sottovoce_papers.features import preconditioning
from sottovoce_papers.features.preconditioning import (
    Preconditioner,
    PublicGeometry,
    learn,
    learn_discriminants,
    scales,
)


def public(count: int = 400, width: int = 30, seed: int = 0) -> NDArray[np.float32]:
    """Features off centre, with variances 1, 1/2, 1/4, ... along random directions."""
    generator = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(generator.standard_normal((width, width)))
    values = generator.standard_normal((count, width)) * 0.5 ** (np.arange(width) / 2)
    features: NDArray[np.float32] = (values @ turn.T + 3).astype(np.float32)
    return features


def geometry_of(features: NDArray[np.float32], components: int = 5) -> PublicGeometry:
    return learn(features, components, np.random.default_rng(1))


@pytest.mark.parametrize("shape", [(400, 30), (25, 60)])
def test_mean_directions_and_eigenvalues_are_those_of_the_covariance(
    shape: tuple[int, int],
) -> None:
    features = public(*shape)
    found = geometry_of(features)
    values, vectors = np.linalg.eigh(np.cov(features.T.astype(np.float64), bias=True))
    np.testing.assert_allclose(found.mean, features.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.eigenvalues, values[::-1][:5], rtol=1e-4)
    overlap = np.abs(np.sum(found.directions * vectors[:, ::-1][:, :5], axis=0))
    np.testing.assert_allclose(overlap, 1, atol=1e-3)


def test_a_wide_spectrum_is_found_although_the_subspace_is_not_everything() -> None:
    features = public(600, 200, seed=3)
    found = geometry_of(features, 10)  # a subspace of 32 out of 200
    values = np.linalg.eigvalsh(np.cov(features.T.astype(np.float64), bias=True))
    np.testing.assert_allclose(found.eigenvalues, values[::-1][:10], rtol=1e-3)


def test_the_same_seed_gives_the_same_geometry() -> None:
    first, second = geometry_of(public()), geometry_of(public())
    np.testing.assert_array_equal(first.directions, second.directions)


def test_features_on_disk_give_the_same_in_small_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = public()
    np.save(tmp_path / "public.npy", features)
    mapped = np.load(tmp_path / "public.npy", mmap_mode="r")
    whole = geometry_of(features)
    monkeypatch.setattr(preconditioning, "CHUNK_ELEMENTS", 7 * features.shape[1])
    chunked = geometry_of(mapped)
    np.testing.assert_allclose(chunked.mean, whole.mean, atol=1e-6)
    np.testing.assert_allclose(chunked.eigenvalues, whole.eigenvalues, rtol=1e-4)
    np.testing.assert_array_equal(mapped, features)  # let go, and read again


def test_discriminants_find_what_differs_between_things_below_louder_variation() -> None:
    generator = np.random.default_rng(5)
    things = np.repeat(generator.standard_normal((150, 1)), 4, axis=0)  # one number says which
    loud = 2 * generator.standard_normal((600, 3))
    quiet = 0.1 * generator.standard_normal((600, 16))
    features = np.concatenate([loud, quiet], axis=1)
    features[:, 10] += things[:, 0]
    found = learn_discriminants(features, 19, 4, np.random.default_rng(1))
    first = np.abs(found.directions[:, 0])
    assert int(first.argmax()) == 10
    assert np.delete(first, 10).max() < 0.2 * first[10]
    assert found.eigenvalues[0] > 5 * found.eigenvalues[1]
    # The principal direction of the same features is a loud one.
    assert int(np.abs(geometry_of(features.astype(np.float32), 1).directions[:, 0]).argmax()) < 3


def test_along_a_discriminant_variants_have_variance_one() -> None:
    generator = np.random.default_rng(6)
    things = np.repeat(generator.standard_normal((200, 5)), 6, axis=0)
    features = things + generator.standard_normal((1200, 5)) * [5.0, 2.0, 1.0, 3.0, 4.0]
    found = learn_discriminants(features, 5, 6, np.random.default_rng(1)).leading(3)
    runs = ((features - found.mean) @ found.directions).reshape(200, 6, 3)
    np.testing.assert_allclose(runs.var(axis=1, ddof=1).mean(axis=0), 1, rtol=0.25)


def test_runs_must_be_whole() -> None:
    with pytest.raises(
        ParameterError, match="400 public samples are not a multiple of the 3 variants"
    ):
        learn_discriminants(public(), 2, 3, np.random.default_rng(1))
    with pytest.raises(ParameterError, match="variants must be an integer from 2"):
        learn_discriminants(public(), 2, 1, np.random.default_rng(1))


def test_scales_grow_as_the_public_variance_shrinks() -> None:
    found = geometry_of(public())
    relative = found.eigenvalues / found.eigenvalues[0]
    np.testing.assert_allclose(scales(found, 1.0), (relative + 1e-4) ** -0.5)
    np.testing.assert_allclose(scales(found, 0.0), 1)


def test_coordinates_are_the_formula_with_unit_norm_and_a_bias() -> None:
    found, samples = geometry_of(public()), public(7, seed=0)
    coordinates = Preconditioner(geometry=found, exponent=0.5, bias=0.1).apply(samples)
    z = (samples - found.mean) @ found.directions * scales(found, 0.5)
    np.testing.assert_allclose(
        coordinates[:, :5], z / np.linalg.norm(z, axis=1, keepdims=True), rtol=1e-3, atol=1e-5
    )
    np.testing.assert_array_equal(coordinates[:, 5], np.float32(0.1))
    np.testing.assert_allclose(np.linalg.norm(coordinates[:, :5], axis=1), 1, rtol=1e-5)


def test_a_sample_is_turned_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    preconditioner = Preconditioner(geometry=geometry_of(public()), exponent=0.5, bias=0.1)
    samples = public(9, seed=2).astype(np.float16)
    whole = preconditioner.apply(samples)
    monkeypatch.setattr(preconditioning, "CHUNK_ELEMENTS", 60)  # two samples at once
    parts = list(preconditioner.chunks(samples))
    assert [(part.start, part.stop) for part, _ in parts] == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
        (8, 9),
    ]
    np.testing.assert_allclose(np.concatenate([v for _, v in parts]), whole, atol=1e-5)


def test_the_public_mean_itself_becomes_the_bias_alone() -> None:
    found = geometry_of(public())
    coordinates = Preconditioner(geometry=found, exponent=0.5, bias=0.2).apply(found.mean[None])
    np.testing.assert_allclose(coordinates, [[0, 0, 0, 0, 0, 0.2]])


def test_features_in_maps_are_taken_as_rows() -> None:
    maps = public(50, 24).reshape(50, 2, 3, 4)
    assert geometry_of(maps).mean.shape == (24,)


def test_wrong_parameters_are_refused() -> None:
    found = geometry_of(public())
    with pytest.raises(ParameterError, match="components must be an integer from 1 to 30, got 31"):
        geometry_of(public(), 31)
    with pytest.raises(ParameterError, match="exponent must lie between 0 and 2, got -1"):
        Preconditioner(geometry=found, exponent=-1, bias=0.1)
    with pytest.raises(ParameterError, match="bias must be finite"):
        Preconditioner(geometry=found, exponent=1, bias=float("nan"))
    with pytest.raises(
        ParameterError, match="features have 4 values per sample, but the public ones have 30"
    ):
        Preconditioner(geometry=found, exponent=1, bias=0.1).apply(np.zeros((2, 4), np.float32))
    with pytest.raises(ParameterError, match="public features must be finite"):
        geometry_of(np.full((10, 3), np.nan, dtype=np.float32), 1)
