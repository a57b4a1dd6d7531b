"""The cells of the reconstruction study: one mechanism at one budget, on the same images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.auditing import reconstruction_scores
from sottovoce.auditing.attacks.inversion import (
    ClippedMean,
    GradientInversion,
    InversionTarget,
    OnStep,
    invert,
)
from sottovoce.auditing.attacks.learned_reconstruction import LearnedReconstruction
from sottovoce.auditing.attacks.sent_updates import Sender, decoded_updates
from sottovoce.auditing.reconstruction_scores import (
    Images,
    ReconstructionScores,
    baseline_guesses,
    score_reconstructions,
)
from sottovoce.auditing.run_reconstruction import guess_from_outputs, pictures
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.fedavg import FedAvg, SampleClippedGradient
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task
from sottovoce.mechanisms.mechanism import Mechanism, has_finite_codes
from sottovoce_papers.target_models import TargetModel, for_one_release
from sottovoce_papers.udp_mechanisms import CLIP_NORM, MechanismAtBudget

ORIGINAL = "original"
SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """Images (updates, images of each, *shape) with labels, the same for every mechanism."""

    images: Images
    labels: NDArray[np.int64]

    @property
    def clients(self) -> list[ClientData]:
        """The clients that hold the images."""
        return [
            ClientData(
                name=f"client-{number}", features=torch.from_numpy(x), labels=torch.from_numpy(y)
            )
            for number, (x, y) in enumerate(zip(self.images, self.labels, strict=True))
        ]


def victims(features: NDArray[Any], labels: NDArray[Any], *, updates: int, batch: int) -> Victims:
    """Return rows drawn at random, the same for every mechanism."""
    generator = SeededRandomness(1).generator("victims", batch)
    rows = generator.choice(len(labels), updates * batch, replace=False)
    images = np.asarray(features[rows], dtype=np.float32)
    return Victims(
        images=images.reshape(updates, batch, *images.shape[1:]),
        labels=np.asarray(labels[rows], dtype=np.int64).reshape(updates, batch),
    )


def _send(task: Task, model: Vector, compared: MechanismAtBudget, found: Victims) -> Vector:
    """Return the decoded update of each client, which spends the whole budget on this update."""

    def mechanism_on(domain: Domain) -> Mechanism:
        return for_one_release(compared, domain)

    algorithm = FedAvg(
        local_work=SampleClippedGradient(clip_norm=CLIP_NORM),
        server_learning_rate=1.0,
        server_momentum=0.0,
    )
    batch = found.labels.shape[1]
    sender = Sender(
        algorithm=algorithm,
        mechanism_on=mechanism_on,
        adjacency=Adjacency.ZERO_OUT,
        rotated=has_finite_codes(mechanism_on(algorithm.domain(task.dimension, batch))),
    )
    name = f"{compared.mechanism} {compared.epsilon}"
    seed = int(SeededRandomness(1).generator("noise", name, batch).integers(2**62))
    step = ClientStepInput(
        run=name, round=1, model=model, state={}, randomness=SeededRandomness(seed)
    )
    return decoded_updates(sender, task, found.clients, step)


def inversion_cells(
    task: Task,
    model: Vector,
    names: Sequence[MechanismAtBudget],
    found: Victims,
    attacks: Sequence[GradientInversion],
    *,
    on_step: OnStep | None = None,
) -> list[dict[str, Any]]:
    """Return the cell of each mechanism; all updates are inverted at the same time.

    Of the `attacks` the one with the least mean squared error counts. This choice knows the images,
    which favors the attacker.
    """
    observed = np.concatenate([_send(task, model, one, found) for one in names])
    target = InversionTarget(
        model=model,
        work=ClippedMean(clip_norm=CLIP_NORM),
        observed=observed,
        labels=np.tile(found.labels, (len(names), 1)),
        image_shape=found.images.shape[2:],
    )
    options = []
    for attack in attacks:
        generator = SeededRandomness(1).generator("starts")
        images = invert(task, target, attack, generator, on_step=on_step).images
        options.append(np.split(images, len(names)))
    return [
        min(
            (
                {**_cell(found.images, images), "total_variation": attack.total_variation}
                for attack, images in zip(attacks, of_one, strict=True)
            ),
            key=lambda cell: float(np.mean(cell["scores"]["mse"])),
        )
        for of_one in zip(*options, strict=True)
    ]


def learned_cell(
    target: TargetModel, found: Victims, attack: LearnedReconstruction
) -> dict[str, Any]:
    """Return the learned reconstruction of training rows, and of unseen rows as a control."""
    guesses, unseen = guess_from_outputs(
        target.task, target.model, found.images, target.data.test_features, attack, seed=1
    )
    return {
        **_cell(found.images, guesses),
        "unseen_mse": unseen.tolist(),
        "accuracy": target.accuracy,
        "learning_rate": target.learning_rate,
    }


def baseline_cells(found: Victims, auxiliary: NDArray[Any]) -> dict[str, dict[str, Any]]:
    """Return cells of guesses that need no attack, and of the originals for the pictures."""
    guesses = baseline_guesses(found.images, auxiliary)
    return {name: _cell(found.images, guess) for name, guess in guesses.items()} | {
        ORIGINAL: _cell(found.images, found.images)
    }


def scores_of(cell: Mapping[str, Any]) -> ReconstructionScores:
    """Return the scores of a stored cell."""
    kept = cell["scores"]
    return ReconstructionScores(
        **{name: np.array(kept[name]) for name in ("mse", "mae", "psnr", "ssim")}
    )


def _cell(originals: Images, found: Images) -> dict[str, Any]:
    measured = score_reconstructions(originals, found)
    shape = originals.shape[2:]
    first = -(-SHOWN // originals.shape[1])  # Number of updates that the pictures show.
    ordered = [
        guess[reconstruction_scores.match_rows(truth, guess)]
        for truth, guess in zip(originals[:first], found[:first], strict=True)
    ]
    shown = pictures(
        originals[:first].reshape(-1, *shape)[:SHOWN],
        np.concatenate(ordered).reshape(-1, *shape)[:SHOWN],
    )
    return {
        "scores": {name: values.tolist() for name, values in measured.named().items()},
        "pictures": [[picture.source, picture.caption] for picture in shown],
    }
