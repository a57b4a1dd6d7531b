"""One recipe of `udp-mia`: train shadow and target models, attack, measure."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.auditing.attacks import context, roc
from sottovoce.auditing.attacks.context import (
    AttackContext,
    Mask,
    MembershipScores,
    QuerySearch,
    draw_training_masks,
    outputs_of,
    own_attacks,
)
from sottovoce.auditing.attacks.roc import IntervalEstimate, ScoresByMembership
from sottovoce.auditing.run_membership import Recipe, roc_chart, shadow_models
from sottovoce.core import statistics
from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.learning import datasets
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.resolve import resolve
from sottovoce_papers.experiment import Figure, Row, Settings
from sottovoce_papers.studies.udp_mia.grid import RATES, AttackedRecipe, AttackScale, spec_of

SHADOWS = "shadows"
_FPRS = {"tpr_at_1_percent": 0.01, "tpr_at_0.1_percent": 0.001}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A mean over targets with an interval, the wider of two on either side, within [0, 1].

    One is Student's over the targets, which covers the variation between trainings but is too
    narrow where a few of them agree by chance. The other is that of all targets' candidates
    together, which covers the small number of candidates.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], together: IntervalEstimate) -> "Measured":
        """Return the mean of the targets' values with the wider interval."""
        mean, half = mean_and_half_width(values)
        return cls(
            value=mean,
            low=max(0.0, min(mean - half, together.low)),
            high=min(1.0, max(mean + half, together.high)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The results of the attacks on one recipe, by attack and measure."""

    cell: AttackedRecipe
    measured: Mapping[str, Mapping[str, Measured]]
    pooled: Mapping[str, ScoresByMembership]  # Of all targets, for pictures.
    members_accuracy: IntervalEstimate
    others_accuracy: IntervalEstimate
    targets: int
    trials: Sequence[Row]


@lru_cache(maxsize=1)
def _pool(count: int) -> Dataset:
    """Return that many training images, the candidates first."""
    chance = SeededRandomness(0)
    data = datasets.load("cifar10", chance.generator("data"), download=True)
    return datasets.subset(data, count, 100, chance.generator("subset"))


def attack_recipe(cell: AttackedRecipe, scale: AttackScale, settings: Settings) -> CellResult:
    """Train the models that are not stored, and run every attack on every target."""
    assert settings.folder is not None
    start = time.perf_counter()
    pool = _pool(scale.candidates + scale.known)
    spec = spec_of(cell, scale, settings.device or "auto")
    generator = SeededRandomness(spec.seed).generator("design")
    trained_on = draw_training_masks(scale.shadows, scale.candidates, generator)
    held = _halves(settings.seeds, scale.candidates, generator)
    rows = [_rows(mask, cell, scale) for mask in (*trained_on, *held)]
    # Calibrated once, on the records of one model: all models have equally many.
    first = resolve(load_inputs(spec, datasets.with_training_rows(pool, rows[0])))
    recipe = Recipe(spec=first.spec, pool=pool, rows=rows, label="shadow and target")
    models = shadow_models(recipe, settings.folder / SHADOWS, settings.on_step)
    inputs = _attack_context(first.task, pool, scale, models, trained_on)
    found = context.run_attacks(
        inputs, own_attacks(), SeededRandomness(spec.seed).generator("attack")
    )
    inside, outside = _accuracies(inputs, held)
    return CellResult(
        cell=cell,
        measured={name: _measured(one, held) for name, one in found.items()},
        pooled={name: _pooled(one, held) for name, one in found.items()},
        members_accuracy=inside,
        others_accuracy=outside,
        targets=settings.seeds,
        trials=[
            {
                "mechanism": cell.mechanism,
                "epsilon": cell.epsilon,
                "models": len(models),
                "learning_rate": RATES[cell.mechanism],
                "members_accuracy": inside.value,
                "others_accuracy": outside.value,
                "seconds": round(time.perf_counter() - start, 3),
                "spec_hash": first.spec.hash,
            }
        ],
    )


def _halves(count: int, num_candidates: int, generator: np.random.Generator) -> Mask:
    """Return a mask (targets, candidates) in which each target has a random half."""
    held = np.zeros((count, num_candidates), dtype=bool)
    for mask in held:
        mask[generator.permutation(num_candidates)[: num_candidates // 2]] = True
    return held


def _rows(mask: Mask, cell: AttackedRecipe, scale: AttackScale) -> NDArray[np.int64]:
    known = np.arange(scale.candidates, scale.candidates + scale.known)
    chosen = np.flatnonzero(mask)
    return np.concatenate([chosen, known]) if cell.uses_known else chosen


def _attack_context(
    task: Task, pool: Dataset, scale: AttackScale, models: NDArray[np.float64], trained_on: Mask
) -> AttackContext:
    features = np.array(pool.train_features[: scale.candidates], dtype=np.float32)
    return AttackContext(
        task=task,
        shadows=models[: scale.shadows],
        trained_on=trained_on,
        targets=models[scale.shadows :],
        features=torch.from_numpy(features).to(task.device),
        labels=torch.from_numpy(pool.train_labels[: scale.candidates]).to(task.device),
        query_search=QuerySearch(queries=scale.canary_queries, steps=scale.canary_steps),
    )


def _accuracies(inputs: AttackContext, held: Mask) -> tuple[IntervalEstimate, IntervalEstimate]:
    """Return the accuracy of all targets on the candidates that they have, and on the others."""
    outputs = outputs_of(inputs.task, inputs.targets, inputs.features)
    right = (outputs.argmax(dim=2) == inputs.labels).cpu().numpy()
    return _share(right[held], outputs.shape[2]), _share(right[~held], outputs.shape[2])


def _share(right: Mask, num_classes: int) -> IntervalEstimate:
    count, total = int(right.sum()), right.size
    low, high = statistics.two_sided_bounds(count, total, roc.CONFIDENCE)
    return IntervalEstimate(value=count / total, low=low, high=high, chance=1.0 / num_classes)


def _measured(one: MembershipScores, held: Mask) -> dict[str, Measured]:
    """Return every measure; rates that need more non-members are left out."""
    non_members = int((~held[0]).sum())
    measures: dict[str, Callable[[ScoresByMembership], IntervalEstimate]] = {
        name: partial(roc.true_positive_rate, fpr=fpr)
        for name, fpr in _FPRS.items()
        if fpr * non_members >= 1.0 - 1e-9
    }
    measures["balanced_accuracy"] = partial(roc.balanced_accuracy, threshold=one.threshold)
    measures["auc"] = roc.area
    each = [
        ScoresByMembership.of(scores, mask) for scores, mask in zip(one.scores, held, strict=True)
    ]
    together = _pooled(one, held)
    return {
        name: Measured.of([measure(own).value for own in each], measure(together))
        for name, measure in measures.items()
    }


def _pooled(one: MembershipScores, held: Mask) -> ScoresByMembership:
    return ScoresByMembership.of(one.scores.ravel(), held.ravel())


def roc_figures(results: Sequence[CellResult]) -> list[Figure]:
    """Return the ROC curves of every recipe, all targets together."""
    return [
        Figure(
            name=_file_name(result.cell),
            caption=f"{result.cell.label}: all {result.targets} targets together; the attacker has "
            "one threshold for all candidates.",
            chart=roc_chart(dict(result.pooled), f"Membership inference, {result.cell.label}"),
        )
        for result in results
    ]


def _file_name(cell: AttackedRecipe) -> str:
    words = cell.label.lower().replace(",", "").replace("(", "").replace(")", "")
    return "roc-" + "-".join(words.split())
