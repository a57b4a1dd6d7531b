from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sottovoce.errors import ParameterError
from sottovoce.learning import closed_form, models
from sottovoce.learning.closed_form import (
    clip_factors,
    clipped_sum,
    gradient_norms,
    linear_residuals,
    row_gradients,
)
from sottovoce.learning.task import ClientData, Task

SHAPE, OUTPUTS, NUMBER = (2, 3), 4, 9


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A flat model, flat features, labels, and the rows that vectorised autograd finds."""
    generator = np.random.default_rng(4)
    module = models.build(models.Linear(), SHAPE, OUTPUTS)
    features = torch.as_tensor(generator.normal(size=(NUMBER, *SHAPE)), dtype=torch.float32)
    labels = torch.as_tensor(generator.integers(OUTPUTS, size=NUMBER))
    task = Task(module, features, labels)
    flat = generator.normal(size=task.dimension)
    client = ClientData(name="one", features=features, labels=labels)
    rows = torch.cat([part for _, part in task.sample_gradients(flat, [client])])
    return torch.as_tensor(flat, dtype=torch.float32), features.flatten(1), labels, rows


def test_rows_and_norms_equal_those_of_autograd() -> None:
    flat, features, labels, rows = case()
    residuals = linear_residuals(flat, features, labels)
    torch.testing.assert_close(row_gradients(residuals, features), rows)
    norms = torch.linalg.vector_norm(rows.to(torch.float64), dim=1)
    torch.testing.assert_close(gradient_norms(residuals, features), norms, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip_norm", [0.01, 1.0, 2.0, 100.0])
@pytest.mark.parametrize("chunk", [1, 13, 10**6])
def test_the_clipped_sum_equals_that_of_clipped_rows(
    clip_norm: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closed_form, "MAX_CHUNK_ELEMENTS", chunk)
    flat, features, labels, rows = case()
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    expected = (rows * torch.clamp(clip_norm / norms, max=1.0)).sum(dim=0).to(torch.float64)
    found = clipped_sum(flat, features, labels, clip_norm=clip_norm)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * clip_norm)


def test_one_sample_never_contributes_more_than_the_clip() -> None:
    flat, features, _, _ = case()
    features = 1e3 * features
    weight, bias = flat[:-OUTPUTS].reshape(OUTPUTS, -1), flat[-OUTPUTS:]
    labels = (features @ weight.T + bias).argmin(dim=1)  # the least likely: no gradient is zero
    for position in range(NUMBER):
        one = slice(position, position + 1)
        alone = clipped_sum(flat, features[one], labels[one], clip_norm=0.5)
        assert 0.4999 < float(torch.linalg.vector_norm(alone)) <= 0.5


def test_a_mapped_file_of_half_precision_serves_as_features(tmp_path: Path) -> None:
    flat, features, labels, _ = case()
    halves = features.numpy().astype(np.float16).reshape(NUMBER, *SHAPE)
    halves.tofile(tmp_path / "features")
    mapped = np.memmap(tmp_path / "features", dtype=np.float16, mode="r", shape=(NUMBER, *SHAPE))
    found = clipped_sum(flat, mapped, labels.numpy(), clip_norm=1.0)
    rounded = torch.as_tensor(halves.astype(np.float32)).flatten(1)
    torch.testing.assert_close(found, clipped_sum(flat, rounded, labels, clip_norm=1.0))


def test_a_sample_that_is_not_finite_counts_as_zero() -> None:
    flat, features, labels, _ = case()
    features[2, 0], features[5, 1] = torch.nan, torch.inf
    keep = [n for n in range(NUMBER) if n not in (2, 5)]
    found = clipped_sum(flat, features, labels, clip_norm=1.0)
    torch.testing.assert_close(
        found, clipped_sum(flat, features[keep], labels[keep], clip_norm=1.0)
    )
    factors = clip_factors(linear_residuals(flat, features, labels), features, 1.0)
    assert [n for n, factor in enumerate(factors.tolist()) if factor == 0.0] == [2, 5]


def test_no_samples_sum_to_zero() -> None:
    flat, features, labels, _ = case()
    assert not clipped_sum(flat, features[:0], labels[:0], clip_norm=1.0).any()


def test_a_model_of_another_length_is_refused() -> None:
    flat, features, labels, _ = case()
    with pytest.raises(ParameterError, match="multiple of 7 parameters"):
        linear_residuals(flat[:-1], features, labels)
    with pytest.raises(ParameterError, match="one label a sample"):
        clipped_sum(flat, features, labels[:-1], clip_norm=1.0)
