"""Server optimizers: how the mean update of a round moves the server's model.

They are post-processing of decoded messages, so they cost no privacy. What they keep is part of the
algorithm's state, and so of each checkpoint: a run that is resumed has the same bits.

`AdaptiveServer` follows algorithm 2 of Reddi et al. With the mean update D of a round, the server's
learning rate s and the coordinates taken one by one,

    m <- beta1 m + (1 - beta1) D
    v <- v + D^2                               fedadagrad
    v <- v - (1 - beta2) D^2 sign(v - D^2)     fedyogi
    v <- beta2 v + (1 - beta2) D^2             fedadam
    model <- model + s m/(sqrt(v) + tau),      m = 0 and v = tau^2 at the start.

Unlike the optimizers of torch, it has no bias correction. `TorchServer` gives any optimizer of
`torch.optim` the negative mean update as the gradient.

References: Reddi et al. 2021 (adaptive federated optimization); Hsu, Qi and Brown 2019 (FedAvgM,
which is `server_momentum`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError, ParameterError, UnknownNameError
from sottovoce.federated.algorithms.algorithm import State
from sottovoce.learning.optimizers import (
    OptimizerSettings,
    torch_optimizers,
    usable_optimizers,
)

ADAPTIVE = ("fedadagrad", "fedadam", "fedyogi")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveServer:
    """FedAdagrad, FedYogi and FedAdam (Reddi et al. 2021, algorithm 2).

    Attributes:
        kind: Which of them.
        beta1: The decay of the first moment; by default 0.9, and 0 for "fedadagrad", as in the
            experiments of the paper.
        beta2: The decay of the second moment; "fedadagrad" does not use it.
        tau: The degree of adaptivity, added to the root of the second moment.
    """

    kind: Literal["fedadagrad", "fedadam", "fedyogi"]
    beta1: float | None = None
    beta2: float = 0.99
    tau: float = 1e-3
    keys: ClassVar[tuple[str, ...]] = ("optimizer_m", "optimizer_v")

    def __post_init__(self) -> None:
        for name, value in (("beta1", self._beta1), ("beta2", self.beta2)):
            if not 0.0 <= parameter_rules.finite(name, value) < 1.0:
                raise ParameterError(f"{name} must lie in [0, 1), got {value}")
        parameter_rules.positive("tau", self.tau)

    @property
    def _beta1(self) -> float:
        if self.beta1 is None:
            return 0.0 if self.kind == "fedadagrad" else 0.9
        return self.beta1

    def step(
        self, model: Vector, update: Vector, state: State, learning_rate: float
    ) -> tuple[Vector, State]:
        """Return the next model and the moments.

        Args:
            model: The server's model.
            update: The mean update.
            state: The moments before the round; none before the first.
            learning_rate: The server's learning rate in this round.
        """
        first, second = (state.get(key) for key in self.keys)
        squares = np.square(update)
        m = (1.0 - self._beta1) * update
        if first is not None:
            m += self._beta1 * first
        v = np.full_like(model, self.tau**2) if second is None else second
        match self.kind:
            case "fedadagrad":
                v = v + squares
            case "fedyogi":
                v = v - (1.0 - self.beta2) * squares * np.sign(v - squares)
            case "fedadam":
                v = self.beta2 * v + (1.0 - self.beta2) * squares
        stepped = model + learning_rate * m / (np.sqrt(v) + self.tau)
        return stepped, dict(zip(self.keys, (m, v), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchServer:
    """An optimizer of `torch.optim` at the server, in float64."""

    settings: OptimizerSettings
    PREFIX: ClassVar[str] = "optimizer_"

    def step(
        self, model: Vector, update: Vector, state: State, learning_rate: float
    ) -> tuple[Vector, State]:
        """Return the next model and the optimizer's state.

        Args:
            model: The server's model.
            update: The mean update, whose negative is the gradient.
            state: The optimizer's state before the round; none before the first.
            learning_rate: The server's learning rate in this round.
        """
        row = torch.from_numpy(np.array(model, dtype=np.float64))[None]
        rows = self.settings.start(row, learning_rate=learning_rate)
        kept = {
            name.removeprefix(self.PREFIX): torch.from_numpy(np.array(array))
            for name, array in state.items()
            if name.startswith(self.PREFIX)
        }
        if kept:
            rows.restore(kept)
        rows.step(torch.from_numpy(np.negative(update))[None])
        after = {self.PREFIX + name: found.numpy() for name, found in rows.state().items()}
        return rows.models[0].numpy(), after


ServerOptimizer = AdaptiveServer | TorchServer


def server_optimizer(table: Mapping[str, Any], where: str) -> ServerOptimizer:
    """Return the server optimizer that a table of a spec describes.

    Args:
        table: The table, with `kind` and the optimizer's options.
        where: The table's name, for messages.

    Raises:
        UnknownNameError: There is no such optimizer, or it has no such option.
        ConfigError: An option has a bad value.
    """
    kind = str(table["kind"]).lower()
    options = {name: value for name, value in table.items() if name != "kind"}
    if kind == "fedavgm":
        raise ConfigError(
            f"'{where}.kind' = 'fedavgm' is federated averaging with momentum at the server; set "
            "'algorithm.server_momentum' instead"
        )
    if kind not in ADAPTIVE:
        if kind in torch_optimizers():
            return TorchServer(settings=OptimizerSettings.of(table, where))
        unknown = UnknownNameError.among("optimizer", kind, (*usable_optimizers(), *ADAPTIVE))
        raise UnknownNameError(f"{unknown} (in [{where}])")
    known = ("beta1", "tau") if kind == "fedadagrad" else ("beta1", "beta2", "tau")
    for name in options:
        if name not in known:
            unknown = UnknownNameError.among(f"option of {kind}", name, known)
            raise UnknownNameError(f"{unknown} (in [{where}])")
    try:
        return AdaptiveServer(kind=kind, **options)  # type: ignore[arg-type]
    except ParameterError as error:
        raise ConfigError(f"[{where}]: {error}") from None
