"""Optimizers of `torch.optim` that move many models at once, each a row of one matrix.

    settings = OptimizerSettings.of({"kind": "adamw", "weight_decay": 0.01})
    rows = settings.start(models, learning_rate=1e-3)
    rows.step(gradients)  # A float matrix of the shape of `models`, which it changes in place.

An optimizer that treats each coordinate by itself moves a row of the matrix exactly as it would
move that model alone. `OptimizerSettings` tries this out, and refuses optimizers for which it does
not hold: those that need the shapes of layers (Adafactor, Muon), a closure (LBFGS) or sparse
gradients (SparseAdam).

All rows share the step count of the optimizer. So a row that stands still in one step must stand
still in all later ones, as a client does whose minibatches are used up; its state is not used any
more.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sottovoce.core.errors import ConfigError, UnknownNameError

# Where and how a step is computed, which is decided here. `lr` and `params` are given by the run.
_NOT_OPTIONS = {
    *("self", "params", "lr"),
    *("foreach", "fused", "capturable", "differentiable", "maximize"),
}
_TRIED_STEPS = 3
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """An optimizer of `torch.optim` with its options; the learning rate is given with each use.

    Attributes:
        kind: The name of its class in `torch.optim`, in lower case.
        options: Its options except the learning rate, as pairs; other options have torch's
            defaults.
    """

    kind: str = "sgd"
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "optimizer") -> "OptimizerSettings":
        """Return the settings in a table with `kind` and the optimizer's options.

        Args:
            table: The table.
            where: Its name in the spec, for messages.

        Returns:
            The settings, whose optimizer was tried on a few numbers.

        Raises:
            UnknownNameError: `torch.optim` has no such optimizer, or it has no such option.
            ConfigError: An option has a bad value, or the optimizer cannot move flat models.
        """
        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in table.items()
            if name != "kind"
        }
        found = cls(str(table["kind"]).lower(), tuple(sorted(options.items())))
        if not found.is_plain_sgd:
            found._check(where)
        return found

    @property
    def is_plain_sgd(self) -> bool:
        """Whether a step is the gradient times the learning rate, and nothing is kept."""
        return self.kind == "sgd" and not self.options

    def start(self, models: Tensor, *, learning_rate: float) -> "RowOptimizer":
        """Return the optimizer before its first step; its steps change `models` in place."""
        return RowOptimizer(self, models, learning_rate=learning_rate)

    def create(self, parameter: Tensor, learning_rate: float) -> torch.optim.Optimizer:
        """Return the optimizer of torch for one tensor."""
        kind = torch_optimizers()[self.kind]
        accepted = inspect.signature(kind).parameters
        given: dict[str, Any] = dict(self.options)
        if "foreach" in accepted:  # There is only one tensor.
            given["foreach"] = False
        if "capturable" in accepted and parameter.is_cuda:
            given["capturable"] = True
        return kind([parameter], lr=learning_rate, **given)

    def _check(self, where: str) -> None:
        if self.kind not in torch_optimizers():
            unknown = UnknownNameError.among("optimizer", self.kind, usable_optimizers())
            raise UnknownNameError(f"{unknown} (in [{where}])")
        self._check_names(where)
        try:
            alone = _moves_coordinates_alone(self)
        except Exception as error:  # Torch raises errors of many types.
            if self.kind not in usable_optimizers():
                alone = False
            else:
                told = " ".join(str(error).split())
                raise ConfigError(
                    f"[{where}]: torch.optim refuses the options of {self.kind}: {told}; correct "
                    "them"
                ) from None
        if not alone:
            names = ", ".join(usable_optimizers())
            raise ConfigError(
                f"'{where}.kind' = '{self.kind}' does not move each parameter by its own gradients "
                f"alone, so it cannot train flat models; use one of {names}"
            )

    def _check_names(self, where: str) -> None:
        accepted = inspect.signature(torch_optimizers()[self.kind]).parameters
        known = [name for name in accepted if name not in _NOT_OPTIONS]
        for name, _ in self.options:
            if name == "lr":
                raise ConfigError(
                    f"'{where}.lr' is not an option here; set the learning rate of the table "
                    "[algorithm] instead"
                )
            if name not in known:
                unknown = UnknownNameError.among(f"option of {self.kind}", name, known)
                raise UnknownNameError(f"{unknown} (in [{where}])")


PLAIN_SGD = OptimizerSettings()


class RowOptimizer:
    """One optimizer of torch for a matrix of models, each of which is a row.

    Args:
        settings: Which optimizer.
        models: The models, which steps change in place.
        learning_rate: Its learning rate.

    Attributes:
        settings: Which optimizer.
        models: The models after the steps so far.
        learning_rate: Its learning rate.
    """

    def __init__(
        self, settings: OptimizerSettings, models: Tensor, *, learning_rate: float
    ) -> None:
        self.settings, self.learning_rate = settings, learning_rate
        self.models = models.detach()
        # Torch takes seconds to load its optimizers, and plain SGD needs none.
        plain = settings.is_plain_sgd
        self._optimizer = None if plain else settings.create(self.models, learning_rate)
        self._started = False

    def step(self, gradients: Tensor, moving: Tensor | None = None) -> None:
        """Take a step of the models.

        Args:
            gradients: The gradient of each model as a row.
            moving: A column of booleans: which models take the step. A model that does not must
                not take a later one either. None if all do.
        """
        before = None if moving is None or _all_on_cpu(moving) else self.models.clone()
        if self._optimizer is None:
            self.models.sub_(gradients, alpha=self.learning_rate)
        else:
            self.models.grad = gradients
            self._optimizer.step()
            self.models.grad = None
        self._started = True
        if before is not None and moving is not None:
            torch.where(moving, self.models, before, out=self.models)

    @property
    def started(self) -> bool:
        """Whether a step was taken, so that the state exists."""
        return self._started

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that the optimizer keeps from step to step, by name."""
        kept = {} if self._optimizer is None else self._optimizer.state[self.models]
        return {name: kept[name] for name in sorted(kept) if isinstance(kept[name], Tensor)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state; its tensors are used, and changed by the next step."""
        if self._optimizer is not None:
            self._optimizer.state[self.models].update(state)
        self._started = True

    def copy(self) -> "RowOptimizer":
        """Return a copy with models and a state of its own."""
        copied = self.settings.start(self.models.clone(), learning_rate=self.learning_rate)
        if self._started:
            copied.restore({name: kept.clone() for name, kept in self.state().items()})
        return copied

    @property
    def fits_a_graph(self) -> bool:
        """Whether a step, once taken, can be captured as a CUDA graph: no state is on the CPU."""
        defaults = {} if self._optimizer is None else self._optimizer.defaults
        return bool(defaults.get("capturable", False)) or all(
            kept.shape == self.models.shape for kept in self.state().values()
        )


def _all_on_cpu(moving: Tensor) -> bool:
    """Return whether all models move; on another device False, because asking would wait for it."""
    return moving.device.type == "cpu" and bool(moving.all())


@lru_cache(maxsize=1)
def torch_optimizers() -> dict[str, Callable[..., torch.optim.Optimizer]]:
    """Return the optimizers of torch by their names in lower case."""
    return {
        name.lower(): found
        for name, found in vars(torch.optim).items()
        if inspect.isclass(found)
        and issubclass(found, torch.optim.Optimizer)
        and found is not torch.optim.Optimizer
    }


@lru_cache(maxsize=1)
def usable_optimizers() -> list[str]:
    """Return the names of optimizers that move each coordinate by its own gradients."""
    found = []
    for kind in sorted(torch_optimizers()):
        try:
            if _moves_coordinates_alone(OptimizerSettings(kind)):
                found.append(kind)
        except Exception:  # noqa: S112  Such an optimizer cannot be used, whatever it raises.
            continue
    return found


@lru_cache(maxsize=128)
def _moves_coordinates_alone(settings: OptimizerSettings) -> bool:
    """Return whether two models as rows move as each of their coordinates does alone.

    Raises:
        Exception: Whatever torch raises for options or gradients that the optimizer refuses.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    gradients = torch.randn(_TRIED_STEPS, 2, 3, generator=generator, dtype=torch.float64)
    together = _after_steps(settings, start, gradients)
    alone = [
        _after_steps(settings, start[i : i + 1, j : j + 1], gradients[:, i : i + 1, j : j + 1])
        for i in range(2)
        for j in range(3)
    ]
    return torch.allclose(
        together.flatten(), torch.cat(alone).flatten(), rtol=0.0, atol=_TOLERANCE, equal_nan=True
    )


def _after_steps(settings: OptimizerSettings, start: Tensor, gradients: Tensor) -> Tensor:
    rows = settings.start(start.clone(), learning_rate=0.1)
    for gradient in gradients:
        rows.step(gradient.clone())
    return rows.models
