import pytest
import torch
from torch import nn

from sottovoce.core.errors import ParameterError
from sottovoce.learning.models.modules import check_module


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
    "layer",
    [
        nn.Dropout(0.1),
        nn.AlphaDropout(0.1),
        nn.Dropout2d(0.5),
        nn.RReLU(),
        nn.LSTM(2, 2, num_layers=2, dropout=0.2),
        nn.MultiheadAttention(2, 1, dropout=0.2),
    ],
)
def test_random_layers_are_refused(layer: nn.Module) -> None:
    with pytest.raises(ParameterError, match=r"'block\.1'.*is random"):
        check_module(Inner(layer))


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.0), nn.GroupNorm(1, 2), nn.InstanceNorm1d(2), nn.LayerNorm(2)]
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


def test_frozen_parameters_are_refused_by_name_with_what_to_do() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    named = r"'0\.weight', '0\.bias'; .*requires_grad=True"
    with pytest.raises(ParameterError, match=named) as told:
        check_module(module)
    assert "'1." not in str(told.value)
    many = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5))).requires_grad_(False)
    with pytest.raises(ParameterError, match="and 2 more"):
        check_module(many)
