"""Membership inference against a run: train shadow models by the run's own spec, then attack.

Shadow models are trained by the resolved spec of the run, including its noise, on parts of a pool
of records. They are saved as they finish, so the same command continues after an interruption.
FOLDER/shadows-<recipe>-<first>-<last>.npz holds a block of models; <recipe> is a hash of everything
that determines them, so models of another spec or other data are never reused.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.auditing.attacks import context, roc
from sottovoce.auditing.attacks.context import (
    ATTACKS,
    AttackContext,
    Candidates,
    check_classifies,
    check_enough_shadows,
    choose_candidates,
    confidences,
    draw_training_masks,
    outputs_of,
    own_attacks,
)
from sottovoce.auditing.attacks.roc import IntervalEstimate, ScoresByMembership
from sottovoce.auditing.finished_run import FinishedRun
from sottovoce.core import files, statistics
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DataError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning.datasets import Dataset
from sottovoce.runs.folder import MEMBERSHIP_NAME
from sottovoce.runs.inputs import device_of, task_and_data
from sottovoce.runs.spec import RunSpec
from sottovoce.runs.stacked_runs import train_many

# A function that trains the models of these numbers and returns them as rows.
TrainBlock = Callable[[range], Vector]
OnBlock = Callable[[int, int], None]  # (models that exist, models in all)


def load_or_train(
    folder: Path, recipe: str, count: int, *, block: int, train: TrainBlock, on_block: OnBlock
) -> Vector:
    """Return `count` models as rows of a matrix; train and save those that `folder` lacks.

    Blocks of `block` models are trained at once, by `train`, and saved in float32, one file for
    each block; `recipe` is part of the files' names. A damaged or incomplete file is replaced.
    `on_block` is called before each block, and at the end, with the models that exist and `count`.
    """
    with files.explain_os_errors("create", folder):
        folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    found = []
    for first in range(0, count, block):
        numbers = range(first, min(first + block, count))
        on_block(first, count)
        path = folder / f"shadows-{recipe}-{numbers[0]:04d}-{numbers[-1]:04d}.npz"
        models = _read(path, len(numbers))
        if models is None:
            models = train(numbers).astype(np.float32)
            _write(path, models)
        found.append(models)
    on_block(count, count)
    return np.concatenate(found).astype(np.float64)


def _write(path: Path, models: Vector) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, models=models)
    # Only the owner may read them: they were trained on records, perhaps without privacy.
    files.write_atomic(path, buffer.getvalue(), mode=0o600)


def _read(path: Path, count: int) -> Vector | None:
    """Return the models that an earlier attack saved; None unless the file is complete."""
    if not path.is_file():
        return None
    try:
        with files.explain_os_errors("read", path):
            content = io.BytesIO(path.read_bytes())
        with np.load(content, allow_pickle=False) as stored:
            models: Vector = stored["models"]
    except files.ARRAY_DAMAGE:
        return None
    return models if models.ndim == 2 and len(models) == count else None


SHADOWS_VERSION = 1  # Raise it when the same recipe gives different models.
# Models that are trained at once, and that an interruption loses.
_TOGETHER = {"cpu": 8, "cuda": 128}

Rows = NDArray[np.int64]
# (what is being done, steps done, steps in all, note)
OnStep = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that determines shadow models.

    Attributes:
        spec: The resolved spec.
        pool: A data set whose training rows are all records.
        rows: The rows of the pool that each model trains on.
        label: What the models are called in progress messages and seeds.
    """

    spec: RunSpec
    pool: Dataset
    rows: Sequence[Rows]
    label: str = "shadow"

    @property
    def hash(self) -> str:
        """A hash of the spec, the label, the pool and the rows; the device does not change it.

        Of the pool's features, every 16th row is hashed.
        """
        plain = self.spec.plain()
        plain["runtime"].pop("device")
        text = json.dumps([SHADOWS_VERSION, self.label, plain], sort_keys=True)
        hashed = hashlib.blake2b(text.encode(), digest_size=8)
        hashed.update(np.ascontiguousarray(self.pool.train_labels).tobytes())
        hashed.update(np.ascontiguousarray(self.pool.train_features[::_STRIDE]).tobytes())
        for rows in self.rows:
            hashed.update(rows.tobytes())
        return hashed.hexdigest()

    def seed(self, number: int) -> int:
        """Return the seed of model `number`, derived from the spec's seed and the label.

        So no model is trained with the seed of the attacked run.
        """
        generator = SeededRandomness(self.spec.seed).generator(self.label, number)
        return int(generator.integers(2**62))


# Every 16th row of the features is hashed: this distinguishes data sets, it is no integrity check.
_STRIDE = 16


def shadow_models(recipe: Recipe, folder: Path, on_step: OnStep) -> Vector:
    """Return the recipe's models as rows of a matrix; train and save those that `folder` lacks.

    `on_step` is called with (what is being trained, models done, models in all, note).
    """
    count, rounds = len(recipe.rows), recipe.spec.rounds
    what = f"{recipe.label} models"

    def train(numbers: range) -> Vector:
        def on_round(models: int, number: int) -> None:
            done = numbers[0] + (models * number) // rounds
            on_step(what, min(done, count), count, f"round {number}")

        runs = [(recipe.seed(i), recipe.rows[i]) for i in numbers]
        return train_many(recipe.spec, recipe.pool, runs, on_round)

    def on_block(done: int, total: int) -> None:
        on_step(what, done, total, "")

    block = _TOGETHER.get(device_of(recipe.spec), _TOGETHER["cpu"])
    return load_or_train(folder, recipe.hash, count, block=block, train=train, on_block=on_block)


RESULT, SHADOWS = MEMBERSHIP_NAME, "attack"
USUAL_FPRS = (0.01, 0.001)
USUAL_CANDIDATES = 2000
_POINTS = 200  # Points of a curve.


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipPlan:
    """The settings of a membership inference attack on a run.

    Attributes:
        shadows: Number of shadow models.
        candidates: Number of candidates; None is 2000, or as many as there are.
        fprs: False positive rates; None is 0.01 and, if there are enough candidates and shadow
            models, 0.001.
        attacks: Names of the attacks.
        device: Device for shadow models and attacks; None is the run's.
    """

    shadows: int = 64
    candidates: int | None = None
    fprs: Sequence[float] | None = None
    attacks: Sequence[str] = field(default_factory=own_attacks)
    device: str | None = None


def attack(
    run: FinishedRun, plan: MembershipPlan, on_step: OnStep
) -> tuple[dict[str, Any], LineChart]:
    """Run the attacks, write the result into the run's folder and return it with the ROC curves.

    Shadow models are trained first and saved in the run's folder; a later call uses them again.
    `on_step` is called with (what is being done, steps done, steps in all, note). Raise
    ParameterError if the model is no classification or a setting is out of range, UnknownNameError
    for an unknown attack, DataError if there are too few candidates or shadow models for a false
    positive rate, and OutputError if the result cannot be written.
    """
    check_classifies(run.inputs.task)
    for name in plan.attacks:  # An unknown name is an error before hours of training.
        ATTACKS.find(name)
    place = run.result_path(RESULT)
    randomness = SeededRandomness(run.spec.seed)
    chosen = _candidates(run.data, plan, randomness)
    fprs = _choose_rates(plan, len(chosen))
    attacker = _build_context(run, plan, chosen, randomness, on_step)

    def on_attack(name: str) -> None:
        on_step("attacks", list(plan.attacks).index(name), len(plan.attacks), name)

    found = context.run_attacks(attacker, plan.attacks, randomness.generator("attack"), on_attack)
    on_step("attacks", len(plan.attacks), len(plan.attacks), "done")
    verdicts = {
        name: ScoresByMembership.of(one.scores[0], chosen.is_member) for name, one in found.items()
    }
    control = plain(_control(attacker, chosen))
    result = {
        "run": str(run.folder),
        "shadows": plan.shadows,
        "candidates": len(chosen),
        "rounds": run.rounds_done,
        **_accuracies(attacker, chosen),
        "certificate": _certificate(run),
        "attacks": {
            name: measure_attack(verdicts[name], one.threshold, fprs) for name, one in found.items()
        },
        "control": control,
        "notes": [*_notes(plan, fprs, chosen), _control_note(control)],
    }
    result["verdict"] = verdict(result["attacks"])
    files.write_json(place, files.finite(result), sort_keys=False, mode=files.PRIVATE)
    return result, roc_chart(verdicts)


def _candidates(data: Dataset, plan: MembershipPlan, randomness: SeededRandomness) -> Candidates:
    members, others = len(data.train_labels), len(data.test_labels)
    wanted = plan.candidates
    if wanted is None:
        wanted = min(USUAL_CANDIDATES, 2 * min(members, others))
    return choose_candidates(members, others, wanted, randomness.generator("candidates"))


def _choose_rates(plan: MembershipPlan, num_candidates: int) -> list[float]:
    """Return the false positive rates of the plan.

    Without any, return the first usual rate and those of the others that the candidates can show.
    """

    def check(fpr: float) -> None:
        roc.check_fpr(fpr, num_candidates // 2)
        check_enough_shadows(plan.shadows, num_candidates, fpr)

    asked = plan.fprs or USUAL_FPRS[:1]
    for fpr in asked:
        check(fpr)
    rates = list(asked)
    for fpr in () if plan.fprs else USUAL_FPRS[1:]:
        with contextlib.suppress(DataError):
            check(fpr)
            rates.append(fpr)
    return rates


def pool_records(data: Dataset) -> Dataset:
    """Return the data set with all records as training rows: the training rows, then the test rows.

    The test rows also stay test rows. Attributes and owners of the records are left out.
    """
    return dataclasses.replace(
        data,
        train_features=np.concatenate([data.train_features, data.test_features]),
        train_labels=np.concatenate([data.train_labels, data.test_labels]),
        train_attributes={},
        test_attributes={},
        train_owners=None,
    )


def _build_context(
    run: FinishedRun,
    plan: MembershipPlan,
    chosen: Candidates,
    randomness: SeededRandomness,
    on_step: OnStep,
) -> AttackContext:
    """Train the shadow models and return the context of the attacks."""
    masks = draw_training_masks(plan.shadows, len(chosen), randomness.generator("design"))
    pool = pool_records(run.data)
    rows = [np.sort(np.concatenate([chosen.known, chosen.rows[mask]])) for mask in masks]
    spec = run.spec.model_copy(update={"rounds": run.rounds_done})
    if plan.device is not None:
        runtime = spec.runtime.model_copy(update={"device": plan.device})
        spec = spec.model_copy(update={"runtime": runtime})
    recipe = Recipe(spec=spec, pool=pool, rows=rows)
    shadows = shadow_models(recipe, run.folder / SHADOWS, on_step)
    task = run.inputs.task
    if plan.device is not None:  # The attacks run on the device of the shadow models.
        task, _ = task_and_data(spec, run.data, SeededRandomness(spec.seed))
    features = task.inputs(pool.train_features[chosen.rows])
    return AttackContext(
        task=task,
        shadows=shadows,
        trained_on=masks,
        targets=run.model[None],
        features=features,
        labels=torch.from_numpy(pool.train_labels[chosen.rows]).to(task.device),
    )


def _accuracies(attacker: AttackContext, chosen: Candidates) -> dict[str, Any]:
    """Return the target's accuracy on members and on non-members, with intervals.

    Their difference is the overfitting that an attack can exploit.
    """
    outputs = outputs_of(attacker.task, attacker.targets, attacker.features)[0]
    right = (outputs.argmax(dim=1) == attacker.labels).cpu().numpy()
    found = {}
    for name, who in (("members", chosen.is_member), ("non_members", ~chosen.is_member)):
        count, total = int(right[who].sum()), int(who.sum())
        low, high = statistics.two_sided_bounds(count, total, roc.CONFIDENCE)
        found[f"accuracy_on_{name}"] = {"value": count / total, "low": low, "high": high}
    return found


def _certificate(run: FinishedRun) -> dict[str, Any]:
    result = run.result or {}
    return {"epsilon": result.get("epsilon"), "delta": result.get("delta")}


def measure_attack(
    verdicts: ScoresByMembership, threshold: float, fprs: Sequence[float]
) -> dict[str, Any]:
    """Return every measure of an attack, with its interval and the value of random guessing.

    Args:
        verdicts: The attack's scores of members and of non-members.
        threshold: The score above which the attack calls a record a member.
        fprs: The false positive rates at which the true positive rate is measured.

    Returns:
        Plain data for JSON.
    """
    rates = [{"fpr": fpr, **plain(roc.true_positive_rate(verdicts, fpr))} for fpr in fprs]
    return {
        "tpr_at_fpr": rates,
        "balanced_accuracy": plain(roc.balanced_accuracy(verdicts, threshold)),
        "auc": plain(roc.area(verdicts)),
    }


def plain(estimate: IntervalEstimate) -> dict[str, Any]:
    """Return an estimate as plain data for JSON: value, low, high, chance and contains_chance."""
    return {**dataclasses.asdict(estimate), "contains_chance": estimate.contains_chance}


def verdict(attacks: dict[str, dict[str, Any]]) -> str:
    """Return sentences that say where the attacks beat random guessing and where they do not.

    `attacks` has the result of `measure_attack` for each attack, by its name. An attack is better
    or worse than guessing in a measure if its whole interval is.
    """
    sentences = []
    for name, found in attacks.items():
        figures = {f"TPR at {one['fpr']:g} FPR": one for one in found["tpr_at_fpr"]}
        figures |= {"balanced accuracy": found["balanced_accuracy"], "AUC": found["auc"]}
        better = [f"{what} {_shown(one)}" for what, one in figures.items() if _above(one)]
        worse = [f"{what} {_shown(one)}" for what, one in figures.items() if _below(one)]
        if better:
            sentences.append(f"{name} separates members from non-members: {', '.join(better)}.")
        if worse:
            sentences.append(f"{name} is worse than guessing: {', '.join(worse)}.")
        if not better and not worse:
            sentences.append(f"{name}: every interval contains the value of random guessing.")
    return " ".join([*sentences, _expected_by_chance(attacks)])


def _expected_by_chance(attacks: dict[str, dict[str, Any]]) -> str:
    """Return a sentence with the number of intervals that do not contain chance.

    Of many intervals some do not, even if nothing leaks.
    """
    figures = [
        one
        for found in attacks.values()
        for one in (*found["tpr_at_fpr"], found["balanced_accuracy"], found["auc"])
    ]
    missed = sum(_above(one) or _below(one) for one in figures)
    return (
        f"{missed} of {len(figures)} intervals do not contain the value of random guessing "
        "(chance); if nothing leaks, about one in twenty does not."
    )


def _shown(one: dict[str, Any]) -> str:
    return f"{one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}], chance {one['chance']:g}"


def _above(one: dict[str, Any]) -> bool:
    return bool(one["low"] > one["chance"])


def _below(one: dict[str, Any]) -> bool:
    return bool(one["high"] < one["chance"])


def _notes(plan: MembershipPlan, fprs: Sequence[float], chosen: Candidates) -> list[str]:
    notes = [
        f"Intervals are at {100 * roc.CONFIDENCE:g}% for these candidates and this one model; the "
        "randomness of training is not included. An interval that contains chance, the value of "
        "random guessing, does not prove that nothing leaks: these attacks found nothing."
    ]
    if len(chosen.known):
        notes.append(
            f"The attacker knows {len(chosen.known)} further members: every shadow model trained "
            "on them."
        )
    missing = [fpr for fpr in USUAL_FPRS if not plan.fprs and fpr not in fprs]
    notes += [
        f"The false positive rate {fpr:g} is left out: it needs {round(2 / fpr)} candidates and "
        "more shadow models."
        for fpr in missing
    ]
    return notes


def _control(attacker: AttackContext, chosen: Candidates) -> IntervalEstimate:
    """Return how well models that did not train on a record tell training rows from test rows.

    Each record is scored by the shadow models that did not train on it. If the AUC differs from
    chance, training and test rows follow different distributions, and what separates members from
    non-members need not be membership: the target was trained on rows of one distribution only, and
    its shadow models on both.
    """
    answers = confidences(
        attacker.task,
        attacker.shadows,
        attacker.features,
        attacker.labels,
        [lambda records: records],
    )[:, :, 0]
    unseen = ~attacker.trained_on
    means = (answers * unseen).sum(axis=0) / unseen.sum(axis=0)
    return roc.area(ScoresByMembership.of(means, chosen.is_member))


def _control_note(control: dict[str, Any]) -> str:
    return (
        "Control: shadow models that did not train on a record separate training rows from test "
        f"rows with AUC {_shown(control)}. If this differs from chance, the two kinds of rows "
        "follow different distributions, and attacks may separate members from non-members "
        "although nothing leaked."
    )


def roc_chart(
    verdicts: dict[str, ScoresByMembership], title: str = "Membership inference"
) -> LineChart:
    """Return a chart with the ROC curve of each attack, both axes logarithmic.

    The chart also shows the diagonal, which random guessing would give. Points with a rate of 0 are
    left out, and at most 200 points of each curve are kept.

    Args:
        verdicts: For each attack, by its name, its scores of members and of non-members, at least
            one attack; higher scores mean "member".
        title: The title of the chart.

    Returns:
        The chart.
    """
    lines = []
    for name, one in verdicts.items():
        points = [(x, y) for x, y in zip(*roc.curve(one), strict=True) if x > 0.0 and y > 0.0]
        kept = _thin(points)
        lines.append(ChartLine(name=name, x=[x for x, _ in kept], y=[y for _, y in kept]))
    least = min(x for line in lines for x in line.x)
    lines.append(ChartLine(name="chance", x=[least, 1.0], y=[least, 1.0]))
    return LineChart(
        title=title,
        x_label="false positive rate",
        y_label="true positive rate",
        lines=lines,
        x_log=True,
        y_log=True,
    )


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return all of up to 200 points; of more, at most 200, about evenly spaced in log x.

    Of those with the same x only the last, the highest of the curve, is then kept.
    """
    if len(points) <= _POINTS:
        return list(points)
    logs = np.log([x for x, _ in points])
    wanted = np.linspace(logs[0], logs[-1], _POINTS)
    places = np.unique(np.searchsorted(logs, wanted + 1e-12, side="right") - 1)
    return [points[i] for i in places]
