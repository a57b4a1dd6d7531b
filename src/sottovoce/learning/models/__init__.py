"""Models as torch modules: the register and the models of this package.

    models.create(models.Mlp(hidden_units=32), (64,), 10, generator)

A module takes batches of shape (n, *input_shape) and flattens them itself where it needs to. Use a
module of your own through `UserModule` or `InMemoryModule`, or as a plug-in by its name in a spec.
"""

from sottovoce.learning.models.register import (
    MODELS,
    InitialWeights,
    InputShape,
    Linear,
    Mlp,
    Model,
    build,
    create,
    initialize,
    model_of,
)
from sottovoce.learning.models.user_module import InMemoryModule, UserModule, import_function

__all__ = [
    "MODELS",
    "InMemoryModule",
    "InitialWeights",
    "InputShape",
    "Linear",
    "Mlp",
    "Model",
    "UserModule",
    "build",
    "create",
    "import_function",
    "initialize",
    "model_of",
]
