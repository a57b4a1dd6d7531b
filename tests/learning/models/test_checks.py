import pytest
import torch
from torch import nn

from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.learning.models.modules import (
    check_module,
    select_trainable,
    trainable_parameters,
)


class Inner(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(2, 2), layer)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(2),
        nn.BatchNorm2d(2, track_running_stats=False),
        nn.SyncBatchNorm(2),
        nn.InstanceNorm1d(2, track_running_stats=True),
    ],
)
def test_statistics_over_samples_are_refused_with_path_and_remedy(layer: nn.Module) -> None:
    with pytest.raises(ParameterError, match=r"'block\.1'.*GroupNorm \(group normalization\)"):
        check_module(Inner(layer))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(2), nn.InstanceNorm1d(2, track_running_stats=True)]
)
def test_fixed_statistics_are_allowed_in_eval_mode(layer: nn.Module) -> None:
    check_module(Inner(layer.eval()))


def test_batch_normalization_without_statistics_is_refused_in_eval_mode_too() -> None:
    with pytest.raises(ParameterError, match="mixes the samples"):
        check_module(Inner(nn.BatchNorm1d(2, track_running_stats=False).eval()))


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.1), nn.GroupNorm(1, 2), nn.InstanceNorm1d(2), nn.LayerNorm(2)]
)
def test_layers_that_keep_samples_apart_are_allowed(layer: nn.Module) -> None:
    check_module(Inner(layer))


def test_constant_buffers_are_allowed() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("pixel_mean", torch.ones(2))
    check_module(module)


def test_the_module_itself_is_named() -> None:
    with pytest.raises(ParameterError, match="the module itself"):
        check_module(nn.BatchNorm1d(2))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_lazy_layer_is_refused() -> None:
    with pytest.raises(ParameterError, match="no size yet"):
        check_module(nn.Sequential(nn.LazyLinear(2)))


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(ParameterError, match="no parameters"):
        check_module(nn.Flatten())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_parameters_of_another_precision_are_refused_with_path_and_remedy(
    dtype: torch.dtype,
) -> None:
    module = Inner(nn.LayerNorm(2).to(dtype))
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(ParameterError, match=rf"'block\.1'.*weight in {kind}.*module\.float\(\)"):
        check_module(module)


def test_buffers_of_another_precision_are_allowed() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("num_pixels", torch.ones(2, dtype=torch.int64))
    check_module(module)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def test_a_module_of_frozen_parameters_only_is_refused_with_what_to_do() -> None:
    with pytest.raises(ParameterError, match=r"model\.trainable.*requires_grad=True"):
        check_module(two_layers().requires_grad_(False))
    some = two_layers()
    some[0].requires_grad_(False)  # type: ignore[index]
    check_module(some)


def test_patterns_freeze_all_parameters_but_those_that_they_match() -> None:
    module = two_layers().requires_grad_(False)
    select_trainable(module, ["1.*", "0.b?as"])
    assert list(trainable_parameters(module)) == ["0.bias", "1.weight", "1.bias"]
    select_trainable(module, [])
    assert list(trainable_parameters(module)) == ["0.bias", "1.weight", "1.bias"]


def test_a_pattern_that_matches_nothing_is_refused_with_near_names() -> None:
    with pytest.raises(UnknownNameError, match=r"'1\.weights' .* as 1\.weight, "):
        select_trainable(two_layers(), ["0.*", "1.weights"])
