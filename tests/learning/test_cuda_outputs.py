"""The CUDA layers compute what the layers of a chain compute, also in Triton's interpreter."""

import os

import pytest
import torch
from torch import nn

from sottovoce.learning import layer_gradients
from sottovoce.learning.layer_gradients import Chain, chain_of
from sottovoce.mechanisms.kernels import cuda

pytest.importorskip("triton", reason="Triton is not installed: the CUDA layers are not tested")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not cuda.available():
    pytest.skip("no CUDA device: the CUDA layers are not tested", allow_module_level=True)

from sottovoce.learning.cuda_outputs import ChannelsLast  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
MODELS, SAMPLES = 2, 3

MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "group norm, rectifier and pooling": (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 5),
        ),
        (3, 11, 9),
    ),
    "no normalization": (
        nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 5)
        ),
        (1, 12, 12),
    ),
    "six channels, strides and dilation": (
        nn.Sequential(
            nn.Conv2d(2, 6, (3, 2), stride=(1, 2), padding=(1, 0), dilation=2),
            nn.GroupNorm(3, 6),
            nn.ReLU(),
            nn.MaxPool2d(3),
            nn.Flatten(),
            nn.Linear(12, 5),
        ),
        (2, 10, 9),
    ),
    "pooling without a rectifier": (
        nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.GroupNorm(2, 4),
            nn.MaxPool2d(3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(36, 5),
        ),
        (1, 12, 12),
    ),
    "no bias": (nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False)), (3, 2, 2)),
    "flat": (nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 5)), (3, 2, 2)),
}


def stacked_outputs(
    chain: Chain, parameters: dict[str, torch.Tensor], features: torch.Tensor
) -> torch.Tensor:
    shapes = {name: p.shape[1:] for name, p in parameters.items()}
    form = ChannelsLast(chain, shapes, features.device)
    rows = torch.cat([p.flatten(start_dim=1) for p in parameters.values()], dim=1)
    assert torch.equal(form.leave(form.enter(rows)), rows)
    return form.outputs(form.enter(rows), features)


@pytest.mark.parametrize(("module", "shape"), MODULES.values(), ids=MODULES)
def test_outputs_and_gradients_are_those_of_the_layers(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    chain = chain_of(module.cpu(), shape)
    assert chain is not None
    module.to(DEVICE)
    parameters = {
        name: (0.3 * torch.randn(MODELS, *p.shape, device=DEVICE) + p.detach()).requires_grad_()
        for name, p in module.named_parameters()
    }
    features = torch.randn(MODELS, SAMPLES, *shape, device=DEVICE, requires_grad=True)
    given = [*parameters.values(), features]
    expected = layer_gradients.stacked_outputs(chain, parameters, features)
    found = stacked_outputs(chain, parameters, features)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), given),
        torch.autograd.grad((expected * weights).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("geometry", ["l2", "l1"])
@pytest.mark.parametrize(("module", "shape"), MODULES.values(), ids=MODULES)
def test_clipped_sums_are_those_of_the_layers(
    module: nn.Module, shape: tuple[int, ...], geometry: str
) -> None:
    torch.manual_seed(0)
    chain = chain_of(module.cpu(), shape)
    assert chain is not None
    module.to(DEVICE)
    parameters = {
        name: 0.3 * torch.randn(MODELS, *p.shape, device=DEVICE) + p.detach()
        for name, p in module.named_parameters()
    }
    features = torch.randn(MODELS, SAMPLES, *shape, device=DEVICE)
    labels = torch.randint(5, (MODELS * SAMPLES,), device=DEVICE)

    def losses(outputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), labels, reduction="none")

    form = ChannelsLast(chain, {n: p.shape[1:] for n, p in parameters.items()}, features.device)
    rows = torch.cat([p.flatten(start_dim=1) for p in parameters.values()], dim=1)
    own = form.sample_gradients(form.enter(rows), features, losses)
    expected = layer_gradients.stacked_gradients(chain, parameters, features, losses)
    norms = expected.norms() if geometry == "l2" else expected.l1_norms()
    limit = float(norms.median())
    shares = torch.tensor([1.0, 1.0, 0.0], device=DEVICE).expand(MODELS, 1, SAMPLES)
    for clip in (limit, 1e9):  # Some are clipped, or none.
        torch.testing.assert_close(
            own.clipped_totals(clip, shares, geometry),
            expected.clipped_totals(clip, shares, geometry),
            rtol=1e-4,
            atol=1e-5,
        )


def test_an_infinite_sample_counts_as_zero() -> None:
    module, shape = MODULES["group norm, rectifier and pooling"]
    chain = chain_of(module.cpu(), shape)
    assert chain is not None
    module.to(DEVICE)
    parameters = {n: p.detach()[None] for n, p in module.named_parameters()}
    form = ChannelsLast(
        chain, {n: p.shape[1:] for n, p in parameters.items()}, torch.device(DEVICE)
    )
    rows = form.enter(torch.cat([p.flatten(start_dim=1) for p in parameters.values()], dim=1))
    features = torch.randn(1, SAMPLES, *shape, device=DEVICE)

    def total(given: torch.Tensor) -> torch.Tensor:
        found = form.sample_gradients(rows, given, lambda outputs: outputs.square().sum(dim=2)[0])
        return found.clipped_totals(1.0, torch.ones(1, 1, given.shape[1], device=DEVICE))

    broken = features.clone()
    broken[0, 1] = torch.inf
    torch.testing.assert_close(total(broken), total(features[:, [0, 2]]))


def test_values_that_are_not_finite_stay_so() -> None:
    module, shape = MODULES["group norm, rectifier and pooling"]
    chain = chain_of(module.cpu(), shape)
    assert chain is not None
    module.to(DEVICE)
    parameters = {
        name: p.detach().expand(MODELS, *p.shape).contiguous()
        for name, p in module.named_parameters()
    }
    features = torch.ones(MODELS, SAMPLES, *shape, device=DEVICE)
    features[0, 1] = torch.nan
    finite = torch.isfinite(stacked_outputs(chain, parameters, features)).all(dim=2)
    assert finite.tolist() == [[True, False, True], [True, True, True]]
