"""Images from a model's outputs: a decoder learned on other data, then refined on the model.

The attacker has rows of the same distribution as the training data, the model, and what the model
puts out for the rows to be found. A decoder learns outputs -> rows on the attacker's own rows; each
guess is then moved until the model's outputs on it are those that were seen.

Outputs say little of a row beyond its class, so the guess to compare with is the mean of the
attacker's rows, which needs no model at all.

References: Fredrikson, Jha and Ristenpart 2015; UDP-FL, appendix E.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.learning.task import Task

_BOX = 0.5
_BATCH = 256
_EVALUATED_TOGETHER = 1024
_LEAST_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedReconstruction:
    """How the decoder is trained, and how far guesses are refined.

    `closeness` weighs the squared distance to the decoder's guess against the outputs' mismatch:
    without it a refined row is noise that the model mistakes for the row.
    """

    epochs: int = 30
    hidden_units: int = 256
    learning_rate: float = 1e-3
    refinements: int = 100
    refinement_rate: float = 0.01
    closeness: float = 1.0

    def __post_init__(self) -> None:
        parameter_rules.integer("epochs", self.epochs, low=1, high=10**5)
        parameter_rules.integer("hidden_units", self.hidden_units, low=1, high=10**5)
        parameter_rules.integer("refinements", self.refinements, low=0, high=10**5)
        parameter_rules.positive("learning_rate", self.learning_rate)
        parameter_rules.positive("refinement_rate", self.refinement_rate)
        parameter_rules.positive("closeness", self.closeness)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """A row for each row that was to be found, before and after refinement."""

    decoded: NDArray[np.float32]
    refined: NDArray[np.float32]


def reconstruct_from_outputs(
    task: Task,
    model: Vector,
    rows: NDArray[np.float32],
    auxiliary: NDArray[np.float32],
    attack: LearnedReconstruction,
    *,
    seed: int,
) -> Guesses:
    """Guesses at `rows`, of which only the model's outputs are used."""
    if len(auxiliary) < _LEAST_ROWS:
        raise ParameterError(
            f"the attacker has {len(auxiliary)} rows to learn from, and needs at least "
            f"{_LEAST_ROWS}; hold more data out"
        )
    flat = task.tensor(model)
    own = torch.from_numpy(np.array(auxiliary, dtype=np.float32)).to(task.device)
    known = _outputs(task, flat, own)
    seen = _outputs(task, flat, torch.from_numpy(np.array(rows, dtype=np.float32)).to(task.device))
    centre, spread = known.mean(dim=0), known.std(dim=0) + 1e-6
    known, seen = (known - centre) / spread, (seen - centre) / spread
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = _decoder(known.shape[1], own[0].numel(), attack.hidden_units).to(task.device)
        _train(decoder, known, own.flatten(start_dim=1), attack)
    with torch.no_grad():
        decoded = _BOX * decoder(seen).reshape(len(seen), *own.shape[1:])

    def normalised(x: Tensor) -> Tensor:
        return (task.outputs(flat, x) - centre) / spread

    refined = _refined(decoded, seen, normalised, attack)
    return Guesses(decoded=decoded.cpu().numpy(), refined=refined.cpu().numpy())


def _decoder(inputs: int, outputs: int, hidden_units: int) -> nn.Module:
    """Two hidden layers; tanh keeps pixels in the box."""
    return nn.Sequential(
        nn.Linear(inputs, hidden_units),
        nn.ReLU(),
        nn.Linear(hidden_units, hidden_units),
        nn.ReLU(),
        nn.Linear(hidden_units, outputs),
        nn.Tanh(),
    )


def _train(decoder: nn.Module, known: Tensor, own: Tensor, attack: LearnedReconstruction) -> None:
    optimizer = torch.optim.Adam(decoder.parameters(), lr=attack.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, attack.epochs)
    for _ in range(attack.epochs):
        order = torch.randperm(len(known), device="cpu").to(known.device)
        for part in torch.split(order, _BATCH):
            optimizer.zero_grad()
            loss = mse_loss(_BOX * decoder(known[part]), own[part])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()


def _refined(
    guesses: Tensor,
    seen: Tensor,
    outputs: Callable[[Tensor], Tensor],
    attack: LearnedReconstruction,
) -> Tensor:
    """Guesses moved until the model sees in them what it saw in the rows."""
    x = guesses.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=attack.refinement_rate)
    for _ in range(attack.refinements):
        optimizer.zero_grad()
        # Sums over rows: what one row's refinement is does not depend on how many there are.
        mismatch = ((outputs(x) - seen) ** 2).mean(dim=1).sum()
        moved = ((x - guesses) ** 2).flatten(start_dim=1).mean(dim=1).sum()
        (mismatch + attack.closeness * moved).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            x.clamp_(-_BOX, _BOX)
    return x.detach()


def _outputs(task: Task, flat: Tensor, rows: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat(
            [task.outputs(flat, part) for part in torch.split(rows, _EVALUATED_TOGETHER)]
        )
