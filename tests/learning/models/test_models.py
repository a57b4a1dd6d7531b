"""What every model must keep, and its number of parameters."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, mse_loss

from sottovoce.core.errors import ParameterError
from sottovoce.learning import models
from sottovoce.learning.clients import ClientData
from sottovoce.learning.models import InputShape, Model
from sottovoce.learning.models.modules import check_module, glorot_limit, he_limit
from sottovoce.learning.task import Task
from sottovoce_papers.models.femnist_convnet import FemnistConvnet
from sottovoce_papers.models.resnet18 import Resnet18
from sottovoce_papers.models.small_cifar_cnn import SmallCifarCnn
from sottovoce_papers.models.strided_cnn import StridedCnn
from sottovoce_papers.models.tanh_convnet import TanhConvnet
from sottovoce_papers.models.udp_medical_cnn import UdpMedicalCnn
from sottovoce_papers.models.udp_mnist_cnn import UdpMnistCnn
from sottovoce_papers.models.wind_cnn import WindCnn

CASES: list[tuple[Model, InputShape, int, int]] = [
    (models.Linear(), (64,), 10, 650),
    (models.Linear(), (1, 28, 28), 10, 7_850),
    (models.Mlp(hidden_units=32), (1, 8, 8), 10, 2_410),
    (TanhConvnet(), (1, 28, 28), 10, 50_618),
    (TanhConvnet(bounded_outputs=False), (1, 28, 28), 10, 50_618),
    (FemnistConvnet(), (1, 28, 28), 62, 461_630),
    (UdpMnistCnn(), (1, 28, 28), 10, 21_840),
    (UdpMedicalCnn(), (1, 28, 28), 6, 64_774),
    (UdpMedicalCnn(), (3, 32, 32), 6, 77_350),
    (SmallCifarCnn(), (3, 32, 32), 10, 94_986),
    (StridedCnn(), (3, 32, 32), 10, 33_834),
    (Resnet18(), (3, 32, 32), 10, 11_173_962),
    (WindCnn(), (4, 48), 1, 15_281),
]
SMALL: list[tuple[Model, InputShape, int]] = [
    (models.Linear(), (1, 5, 5), 3),
    (models.Mlp(hidden_units=4), (2, 3), 3),
    (TanhConvnet(), (1, 18, 18), 3),
    (FemnistConvnet(), (1, 8, 8), 3),
    (UdpMnistCnn(), (1, 16, 16), 3),
    (UdpMedicalCnn(), (3, 16, 16), 3),
    (SmallCifarCnn(), (3, 8, 8), 3),
    (StridedCnn(), (3, 8, 8), 3),
    (Resnet18(), (3, 8, 8), 3),
    (WindCnn(), (3, 12), 1),
    (
        models.UserModule(factory="flat_network:hidden_layer"),
        (5,),
        3,
    ),
]


def name(case: tuple[Model, *tuple[object, ...]]) -> str:
    return type(case[0]).__name__


def make(model: Model, shape: InputShape, outputs: int, seed: int = 0) -> nn.Module:
    return models.create(model, shape, outputs, np.random.default_rng(seed))


def data(shape: InputShape, outputs: int, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(number, *shape, generator=generator)
    return features, torch.randint(0, max(outputs, 2), (number,), generator=generator)


def sample_loss(outputs: Tensor, label: Tensor) -> Tensor:
    if outputs.shape[1] == 1:
        return mse_loss(outputs[:, 0], label[None].to(torch.float32))
    return cross_entropy(outputs, label[None])


@pytest.mark.parametrize(("model", "shape", "outputs", "count"), CASES, ids=map(name, CASES))
def test_the_number_of_parameters_is_the_documented_one(
    model: Model, shape: InputShape, outputs: int, count: int
) -> None:
    module = models.build(model, shape, outputs)
    assert sum(parameter.numel() for parameter in module.parameters()) == count
    check_module(module)


@pytest.mark.parametrize(("model", "shape", "outputs", "count"), CASES, ids=map(name, CASES))
def test_parameters_can_be_counted_without_memory_for_them(
    model: Model, shape: InputShape, outputs: int, count: int
) -> None:
    """So a site knows how large a model is before it builds what somebody else asks for."""
    with torch.device("meta"):
        module = models.build(model, shape, outputs)
    assert sum(parameter.numel() for parameter in module.parameters()) == count
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}


@pytest.mark.parametrize(("model", "shape", "outputs"), SMALL, ids=map(name, SMALL))
def test_vectorized_sample_gradients_equal_a_loop(
    model: Model, shape: InputShape, outputs: int
) -> None:
    module = make(model, shape, outputs)
    features, labels = data(shape, outputs, 2)

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return sample_loss(functional_call(module, parameters, (x[None],)), y)

    current = {name: parameter.detach() for name, parameter in module.named_parameters()}
    rows = vmap(grad(loss), in_dims=(None, 0, 0))(current, features, labels)
    for position in range(2):
        module.zero_grad()
        value = sample_loss(module(features[position : position + 1]), labels[position])
        value.backward()  # type: ignore[no-untyped-call]
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(rows[name][position], parameter.grad, rtol=2e-4, atol=1e-5)


CLASSIFIERS = [case for case in SMALL if case[2] > 1 and not isinstance(case[0], Resnet18)]


@pytest.mark.parametrize(("model", "shape", "outputs"), CLASSIFIERS, ids=map(name, CLASSIFIERS))
def test_clients_trained_side_by_side_take_the_step_of_one_alone(
    model: Model, shape: InputShape, outputs: int
) -> None:
    module = make(model, shape, outputs)
    clients = []
    for number in (1, 3):
        features, labels = data(shape, outputs, number)
        clients.append(ClientData(name=str(number), features=features, labels=labels))
    task = Task(module, clients[0].features, clients[0].labels)
    start = task.initial_model()
    ((_, rows),) = task.local_models(start, clients, steps=1, learning_rate=0.1)
    for position, row in enumerate(rows):
        module.zero_grad()
        loss = cross_entropy(module(clients[position].features), clients[position].labels)
        loss.backward()  # type: ignore[no-untyped-call]
        steps = [p - 0.1 * p.grad for p in module.parameters() if p.grad is not None]
        expected = torch.cat([step.detach().reshape(-1) for step in steps])
        torch.testing.assert_close(row, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(("model", "shape", "outputs"), SMALL, ids=map(name, SMALL))
def test_a_flat_float64_model_comes_back_unchanged(
    model: Model, shape: InputShape, outputs: int
) -> None:
    module = make(model, shape, outputs)
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().to(torch.float64)
    other = make(model, shape, outputs, seed=1)
    torch.nn.utils.vector_to_parameters(flat.to(torch.float32), other.parameters())
    features, _ = data(shape, outputs, 2)
    with torch.no_grad():
        torch.testing.assert_close(module(features), other(features), rtol=0.0, atol=0.0)
    assert Task(module, features, torch.zeros(2)).dimension == len(flat)


@pytest.mark.parametrize(("model", "shape", "outputs"), SMALL, ids=map(name, SMALL))
def test_initial_weights_follow_from_our_generator_alone(
    model: Model, shape: InputShape, outputs: int
) -> None:
    before = torch.random.get_rng_state()
    first = make(model, shape, outputs)
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        second = make(model, shape, outputs)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    third = make(model, shape, outputs, seed=1)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), third.parameters(), strict=True)]
    assert all(same) == isinstance(model, models.Linear)


def test_layers_start_by_the_rule_of_their_type() -> None:
    module = make(Resnet18(), (3, 8, 8), 10)
    for layer in module.modules():
        match layer:
            case nn.Conv2d():
                limit = he_limit(layer.weight)
                assert 0.99 * limit < float(layer.weight.detach().abs().max()) <= limit
            case nn.Linear():
                assert float(layer.weight.detach().abs().max()) <= glorot_limit(layer.weight)
                assert not layer.bias.any()
            case nn.GroupNorm():
                assert bool((layer.weight == 1.0).all())
                assert not layer.bias.any()


def test_the_first_hidden_layer_draws_as_glorot_says() -> None:
    module = make(models.Mlp(hidden_units=3), (5,), 2)
    generator = np.random.default_rng(0)
    weights = [parameter for parameter in module.parameters() if parameter.dim() == 2]
    for weight in weights:
        limit = np.sqrt(6.0 / sum(weight.shape))
        expected = generator.uniform(-limit, limit, size=tuple(weight.shape))
        torch.testing.assert_close(weight.detach(), torch.as_tensor(expected, dtype=torch.float32))


def test_bounded_outputs_lie_within_one() -> None:
    features = 50.0 * data((1, 18, 18), 3, 4)[0]
    with torch.no_grad():
        bounded = make(TanhConvnet(), (1, 18, 18), 3)(features)
        free = make(TanhConvnet(bounded_outputs=False), (1, 18, 18), 3)(features)
    torch.testing.assert_close(torch.tanh(free), bounded)
    assert float(bounded.abs().max()) <= 1.0


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (FemnistConvnet(), (784,)),
        (UdpMnistCnn(), (1, 15, 28)),
        (TanhConvnet(), (1, 17, 17)),
        (UdpMedicalCnn(), (3, 8, 8)),
        (SmallCifarCnn(), (3, 7, 7)),
        (Resnet18(), (32, 32)),
        (WindCnn(), (4, 3)),
    ],
)
def test_samples_of_the_wrong_shape_are_refused(model: Model, shape: InputShape) -> None:
    with pytest.raises(ParameterError, match="reshape the data"):
        models.build(model, shape, 10)


@pytest.mark.parametrize("shape", [64, (), (0,), (3, -1)])
def test_a_shape_that_is_none_is_refused(shape: InputShape) -> None:
    with pytest.raises(ParameterError, match="input_shape"):
        models.build(models.Linear(), shape, 10)


@pytest.mark.parametrize("groups", [0, 7, 128])
def test_groups_must_divide_the_channels(groups: int) -> None:
    for model in (Resnet18, SmallCifarCnn):
        with pytest.raises(ParameterError, match="groups"):
            model(groups=groups)


def test_a_layer_without_a_rule_is_named() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.PReLU())
    with pytest.raises(ParameterError, match=r"'1' \(PReLU\)"):
        models.initialize(models.Mlp(hidden_units=2), module, np.random.default_rng(0))
