"""Models as torch modules. A user's own module joins by `UserModule`, or `InMemoryModule`; the
others come along.

    models.create(models.Mlp(hidden_units=32), (64,), 10, generator)

A module takes batches of shape (n, *input_shape) and flattens them itself where it needs to.
"""

from typing import assert_never

import numpy as np
import torch
from torch import nn

from sottovoce.core.errors import ParameterError
from sottovoce.learning.models import (
    femnist_convnet,
    in_memory_module,
    initialization,
    linear,
    mlp,
    resnet18,
    small_cifar_cnn,
    strided_cnn,
    tanh_convnet,
    udp_medical_cnn,
    udp_mnist_cnn,
    user_module,
    wind_cnn,
)
from sottovoce.learning.models.checks import check_module
from sottovoce.learning.models.femnist_convnet import FemnistConvnet
from sottovoce.learning.models.in_memory_module import InMemoryModule
from sottovoce.learning.models.linear import Linear
from sottovoce.learning.models.mlp import Mlp
from sottovoce.learning.models.resnet18 import Resnet18
from sottovoce.learning.models.shapes import InputShape, checked
from sottovoce.learning.models.small_cifar_cnn import SmallCifarCnn
from sottovoce.learning.models.strided_cnn import StridedCnn
from sottovoce.learning.models.tanh_convnet import TanhConvnet
from sottovoce.learning.models.udp_medical_cnn import UdpMedicalCnn
from sottovoce.learning.models.udp_mnist_cnn import UdpMnistCnn
from sottovoce.learning.models.user_module import UserModule
from sottovoce.learning.models.wind_cnn import WindCnn

Model = (
    Linear
    | Mlp
    | TanhConvnet
    | FemnistConvnet
    | UdpMnistCnn
    | UdpMedicalCnn
    | SmallCifarCnn
    | StridedCnn
    | Resnet18
    | WindCnn
    | UserModule
    | InMemoryModule
)

__all__ = [
    "FemnistConvnet",
    "InMemoryModule",
    "InputShape",
    "Linear",
    "Mlp",
    "Model",
    "Resnet18",
    "SmallCifarCnn",
    "StridedCnn",
    "TanhConvnet",
    "UdpMedicalCnn",
    "UdpMnistCnn",
    "UserModule",
    "WindCnn",
    "build",
    "check_module",
    "create",
    "initialise",
]


def create(
    model: Model, input_shape: InputShape, num_outputs: int, generator: np.random.Generator
) -> nn.Module:
    """The module with initial weights that follow from `generator` alone."""
    if isinstance(model, UserModule | InMemoryModule):
        seed = int(generator.integers(2**63))
        return _built(model, input_shape, num_outputs, torch_seed=seed)
    module = build(model, input_shape, num_outputs)
    initialise(model, module, generator)
    return module


def build(model: Model, input_shape: InputShape, num_outputs: int) -> nn.Module:
    """The module; its initial weights are set by `initialise`, or by `create` in one go."""
    return _built(model, input_shape, num_outputs, torch_seed=0)


def initialise(model: Model, module: nn.Module, generator: np.random.Generator) -> None:
    """Initial weights from a generator of ours, so that a run can be repeated anywhere."""
    match model:
        case Linear():
            initialization.zero(module)
        case Mlp() | TanhConvnet() | StridedCnn():
            initialization.for_tanh(module, generator)
        case (
            FemnistConvnet()
            | UdpMnistCnn()
            | UdpMedicalCnn()
            | SmallCifarCnn()
            | Resnet18()
            | WindCnn()
        ):
            initialization.for_relu(module, generator)
        case UserModule(factory=factory) | InMemoryModule(label=factory):
            raise ParameterError(
                f"the module of '{factory}' draws its own weights while it is built; "
                "use models.create, which builds it under a seed from the generator"
            )
        case _:
            assert_never(model)


def _built(
    model: Model, input_shape: InputShape, num_outputs: int, *, torch_seed: int
) -> nn.Module:
    input_shape = checked(input_shape, num_outputs)
    # Torch's layers draw from its global generator, which is nobody's here: left as it was found.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed)
        return _module(model, input_shape, num_outputs)


def _module(model: Model, input_shape: InputShape, num_outputs: int) -> nn.Module:
    match model:
        case Linear():
            return linear.build(model, input_shape, num_outputs)
        case Mlp():
            return mlp.build(model, input_shape, num_outputs)
        case TanhConvnet():
            return tanh_convnet.build(model, input_shape, num_outputs)
        case FemnistConvnet():
            return femnist_convnet.build(input_shape, num_outputs)
        case UdpMnistCnn():
            return udp_mnist_cnn.build(input_shape, num_outputs)
        case UdpMedicalCnn():
            return udp_medical_cnn.build(input_shape, num_outputs)
        case SmallCifarCnn():
            return small_cifar_cnn.build(model, input_shape, num_outputs)
        case StridedCnn():
            return strided_cnn.build(input_shape, num_outputs)
        case Resnet18():
            return resnet18.build(model, input_shape, num_outputs)
        case WindCnn():
            return wind_cnn.build(model, input_shape, num_outputs)
        case UserModule():
            return user_module.build(model, input_shape, num_outputs)
        case InMemoryModule():
            return in_memory_module.build(model, input_shape, num_outputs)
        case _:
            assert_never(model)
