"""Learned reconstruction: recover images from a model's outputs with a decoder.

The attacker has rows from the distribution of the training data, the model, and the model's outputs
for the rows to be recovered. A decoder learns the map from outputs to rows on the attacker's own
rows. Each guess is then refined by gradient descent until the model's outputs on it match the
observed ones.

Outputs carry little information about a row beyond its class, so the baseline to compare with is
the mean of the attacker's rows, which needs no model at all.

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
    """The settings of the decoder's training and of the refinement.

    Attributes:
        epochs: Passes over the attacker's rows.
        hidden_units: Width of both hidden layers.
        learning_rate: Step size of Adam for the decoder.
        refinements: Refinement steps for each guess.
        refinement_rate: Step size of Adam for the refinement.
        closeness: Weight of the squared distance to the decoder's guess against the mismatch of the
            outputs. Without it, refinement finds adversarial noise that gives the right outputs.
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
class ReconstructedRows:
    """One reconstructed row for each target row, before (`decoded`) and after refinement."""

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
) -> ReconstructedRows:
    """Return guesses of `rows` from the model's outputs on them, with entries in [-1/2, 1/2].

    The rows are used only to compute these outputs. The decoder learns from `auxiliary`, the
    attacker's own rows. Raise ParameterError if these are fewer than 10.
    """
    if len(auxiliary) < _LEAST_ROWS:
        raise ParameterError(
            f"the attacker has {len(auxiliary)} rows to learn from but needs at least "
            f"{_LEAST_ROWS}; add test rows"
        )
    flat = task.tensor(model)
    own = torch.from_numpy(np.array(auxiliary, dtype=np.float32)).to(task.device)
    known = _outputs(task, flat, own)
    seen = _outputs(task, flat, torch.from_numpy(np.array(rows, dtype=np.float32)).to(task.device))
    center, spread = known.mean(dim=0), known.std(dim=0) + 1e-6
    known, seen = (known - center) / spread, (seen - center) / spread
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = _build_decoder(known.shape[1], own[0].numel(), attack.hidden_units).to(
            task.device
        )
        _train(decoder, known, own.flatten(start_dim=1), attack)
    with torch.no_grad():
        decoded = _BOX * decoder(seen).reshape(len(seen), *own.shape[1:])

    def normalized(x: Tensor) -> Tensor:
        return (task.outputs(flat, x) - center) / spread

    refined = _refine(decoded, seen, normalized, attack)
    return ReconstructedRows(decoded=decoded.cpu().numpy(), refined=refined.cpu().numpy())


def _build_decoder(inputs: int, outputs: int, hidden_units: int) -> nn.Module:
    """Build a decoder with two hidden layers; tanh keeps its outputs in [-1, 1]."""
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


def _refine(
    guesses: Tensor,
    seen: Tensor,
    outputs: Callable[[Tensor], Tensor],
    attack: LearnedReconstruction,
) -> Tensor:
    """Refine guesses until the model's outputs on them match the observed outputs."""
    x = guesses.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=attack.refinement_rate)
    for _ in range(attack.refinements):
        optimizer.zero_grad()
        # The terms are summed over rows, so the refinement of a row does not depend on the others.
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
