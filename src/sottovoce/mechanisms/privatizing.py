"""`mechanism.privatize(update)`: what `@register` adds to every mechanism, plug-ins included.

    codes = mechanism.privatize(update)  # clipped; of any shape, from numpy or torch
    estimate = mechanism.decode(codes).reshape(update.shape)

`encode` is strict: it takes a vector that lies in the domain, and a keystream. `privatize`
flattens, projects, and draws a key from the operating system. Neither charges anybody:
`sottovoce.Client` does.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core.domains import Floats
from sottovoce.core.errors import DomainError, RandomnessError
from sottovoce.core.randomness import Keystream, Randomness, SystemRandomness
from sottovoce.mechanisms.encoding import prepare
from sottovoce.mechanisms.mechanism import Codes, Mechanism


class Privatizing(Mechanism, Protocol):
    """A registered mechanism: it clips and takes any shape, besides what `Mechanism` asks for."""

    def privatize(self, update: Any, *, randomness: Randomness | Keystream | None = None) -> Codes:
        """Return the codes of an update; see `privatize`."""
        ...


def privatize(
    self: Mechanism, update: Any, *, randomness: Randomness | Keystream | None = None
) -> Codes:
    """Return the codes of an update, flattened and clipped to the mechanism's domain.

    Args:
        update: Floating-point numbers, as many as the domain has dimensions, in any shape: a list,
            a numpy array or a torch tensor. One on a GPU is copied to the CPU first. A mean of
            several records (`records` of the domain) must be one of clipped records already.
        randomness: Where the key comes from. By default it is a fresh one of the operating system.
            To repeat a simulation give a keystream that names this one input, such as
            `SeededRandomness(7).stream("clinic-3", 1)`.

    Returns:
        A flat array of codes, for `decode`.

    Raises:
        DomainError: The update has another size, is no array of floating-point numbers, or is not
            finite.
    """
    prepared = prepare(self, flat(update, self.input_domain.dimension))
    return self.encode(prepared.vector(0), _keystream(randomness))


def flat(update: Any, dimension: int) -> Floats:
    """Return an update as a vector on the CPU, or refuse what is no array of so many floats."""
    array = np.asarray(_on_cpu(update) if hasattr(update, "detach") else _array(update))
    if array.dtype.kind in "iub":
        raise DomainError(
            f"the update holds {array.dtype} numbers, expected floating-point ones; convert it, "
            "with .astype(float) in numpy or .float() in torch"
        )
    if array.dtype.kind != "f":
        raise DomainError(
            f"the update holds {array.dtype} values, expected real floating-point numbers"
        )
    if array.ndim == 0:
        raise DomainError("the update is a single number, expected an array; put it into a list")
    if array.size != dimension:
        raise DomainError(
            f"the update has {array.size} coordinates in shape {array.shape}, expected "
            f"{dimension}; one call is for one contribution"
        )
    return np.ascontiguousarray(array).reshape(-1)


def _array(update: ArrayLike) -> Any:
    try:
        return np.asarray(update)
    except (TypeError, ValueError) as error:
        raise DomainError(
            f"the update is no array of numbers ({error}); flatten and concatenate its parts first"
        ) from None


def _on_cpu(tensor: Any) -> Any:
    """Return a tensor's values for numpy, which has no bfloat16: float32 holds those exactly."""
    try:
        values = tensor.detach().cpu()
        return (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise DomainError(f"the tensor cannot be read as a dense array: {error}") from None


def _keystream(randomness: Randomness | Keystream | None) -> Keystream:
    if isinstance(randomness, Keystream):
        return randomness
    if randomness is not None and randomness.grade == "seeded":
        raise RandomnessError(
            "seeded randomness needs a label that names this one input, or two updates would share "
            'a key; give randomness=seeded.stream("clinic-3", 1)'
        )
    return (randomness or SystemRandomness()).stream()
