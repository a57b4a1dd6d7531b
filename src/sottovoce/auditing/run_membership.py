"""Membership inference against a run: shadow models by its own recipe, then every attack."""

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sottovoce.auditing.attacks import context, roc
from sottovoce.auditing.attacks.candidates import Candidates, check_enough, choose, design
from sottovoce.auditing.attacks.confidences import check_classifies, confidences, outputs_of
from sottovoce.auditing.attacks.context import ATTACKS, Siege, own_attacks
from sottovoce.auditing.attacks.roc import Estimate, Verdicts
from sottovoce.auditing.finished_run import FinishedRun
from sottovoce.auditing.shadow_models import OnStep, Recipe, shadow_models
from sottovoce.core import files, statistics
from sottovoce.core.charts.lines import Line, LineChart
from sottovoce.core.errors import DataError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning.datasets import Dataset
from sottovoce.runs.folder import MEMBERSHIP_NAME
from sottovoce.runs.inputs import task_of

RESULT, SHADOWS = MEMBERSHIP_NAME, "attack"
USUAL_FPRS = (0.01, 0.001)
USUAL_CANDIDATES = 2000
_POINTS = 200  # of a curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked for: None are the usual candidates, or rates as far as they can be shown."""

    shadows: int = 64
    candidates: int | None = None
    fprs: Sequence[float] | None = None
    attacks: Sequence[str] = field(default_factory=own_attacks)
    device: str | None = None


def attack(run: FinishedRun, plan: Plan, on_step: OnStep) -> tuple[dict[str, Any], LineChart]:
    """What the attacks find, also written into the run's folder, and the ROC curves."""
    check_classifies(run.inputs.task)
    for name in plan.attacks:  # before hours of training
        ATTACKS.find(name)
    place = run.place_of(RESULT)
    randomness = SeededRandomness(run.spec.seed)
    chosen = _candidates(run.data, plan, randomness)
    fprs = _rates(plan, len(chosen))
    siege = _besieged(run, plan, chosen, randomness, on_step)

    def on_attack(name: str) -> None:
        on_step("attacks", list(plan.attacks).index(name), len(plan.attacks), name)

    found = context.scored(siege, plan.attacks, randomness.generator("attack"), on_attack)
    on_step("attacks", len(plan.attacks), len(plan.attacks), "done")
    verdicts = {name: Verdicts.of(one.scores[0], chosen.is_member) for name, one in found.items()}
    control = plain(_control(siege, chosen))
    result = {
        "run": str(run.folder),
        "shadows": plan.shadows,
        "candidates": len(chosen),
        "rounds": run.rounds_done,
        **_accuracies(siege, chosen),
        "certificate": _certificate(run),
        "attacks": {
            name: measured(verdicts[name], one.threshold, fprs) for name, one in found.items()
        },
        "control": control,
        "notes": [*_notes(plan, fprs, chosen), _control_note(control)],
    }
    result["verdict"] = verdict(result["attacks"])
    files.write_json(place, files.finite(result), sort_keys=False, mode=files.PRIVATE)
    return result, roc_chart(verdicts)


def _candidates(data: Dataset, plan: Plan, randomness: SeededRandomness) -> Candidates:
    members, others = len(data.train_labels), len(data.test_labels)
    wanted = plan.candidates
    if wanted is None:
        wanted = min(USUAL_CANDIDATES, 2 * min(members, others))
    return choose(members, others, wanted, randomness.generator("candidates"))


def _rates(plan: Plan, num_candidates: int) -> list[float]:
    """The rates asked for; if none are, the first usual one and what further ones can be shown."""

    def check(fpr: float) -> None:
        roc.check_fpr(fpr, num_candidates // 2)
        check_enough(plan.shadows, num_candidates, fpr)

    asked = plan.fprs or USUAL_FPRS[:1]
    for fpr in asked:
        check(fpr)
    rates = list(asked)
    for fpr in () if plan.fprs else USUAL_FPRS[1:]:
        with contextlib.suppress(DataError):
            check(fpr)
            rates.append(fpr)
    return rates


def pool_of(data: Dataset) -> Dataset:
    """All records as training rows, the members first."""
    return dataclasses.replace(
        data,
        train_features=np.concatenate([data.train_features, data.test_features]),
        train_labels=np.concatenate([data.train_labels, data.test_labels]),
        train_attributes={},
        test_attributes={},
        train_owners=None,
    )


def _besieged(
    run: FinishedRun,
    plan: Plan,
    chosen: Candidates,
    randomness: SeededRandomness,
    on_step: OnStep,
) -> Siege:
    masks = design(plan.shadows, len(chosen), randomness.generator("design"))
    pool = pool_of(run.data)
    rows = [np.sort(np.concatenate([chosen.known, chosen.rows[mask]])) for mask in masks]
    spec = run.spec.model_copy(update={"rounds": run.rounds_done})
    if plan.device is not None:
        runtime = spec.runtime.model_copy(update={"device": plan.device})
        spec = spec.model_copy(update={"runtime": runtime})
    recipe = Recipe(spec=spec, pool=pool, rows=rows)
    shadows = shadow_models(recipe, run.folder / SHADOWS, on_step)
    task = run.inputs.task
    if plan.device is not None:  # where shadows are, the attacks are too
        task = task_of(spec, run.data, SeededRandomness(spec.seed))
    features = np.array(pool.train_features[chosen.rows], dtype=np.float32)
    return Siege(
        task=task,
        shadows=shadows,
        trained_on=masks,
        targets=run.model[None],
        features=torch.from_numpy(features).to(task.device),
        labels=torch.from_numpy(pool.train_labels[chosen.rows]).to(task.device),
    )


def _accuracies(siege: Siege, chosen: Candidates) -> dict[str, Any]:
    """How much better the target is on members: what is there to be found."""
    outputs = outputs_of(siege.task, siege.targets, siege.features)[0]
    right = (outputs.argmax(dim=1) == siege.labels).cpu().numpy()
    found = {}
    for name, who in (("members", chosen.is_member), ("non_members", ~chosen.is_member)):
        count, total = int(right[who].sum()), int(who.sum())
        low, high = statistics.between(count, total, roc.CONFIDENCE)
        found[f"accuracy_on_{name}"] = {"value": count / total, "low": low, "high": high}
    return found


def _certificate(run: FinishedRun) -> dict[str, Any]:
    result = run.result or {}
    return {"epsilon": result.get("epsilon"), "delta": result.get("delta")}


def measured(verdicts: Verdicts, threshold: float, fprs: Sequence[float]) -> dict[str, Any]:
    """Every figure of an attack with its interval and what guessing gives."""
    rates = [{"fpr": fpr, **plain(roc.true_positive_rate(verdicts, fpr))} for fpr in fprs]
    return {
        "tpr_at_fpr": rates,
        "balanced_accuracy": plain(roc.balanced_accuracy(verdicts, threshold)),
        "auc": plain(roc.area(verdicts)),
    }


def plain(estimate: Estimate) -> dict[str, Any]:
    return {**dataclasses.asdict(estimate), "contains_chance": estimate.contains_chance}


def verdict(attacks: dict[str, dict[str, Any]]) -> str:
    """Where the attacks beat guessing, and where that cannot be told."""
    sentences = []
    for name, found in attacks.items():
        figures = {f"TPR at {one['fpr']:g} FPR": one for one in found["tpr_at_fpr"]}
        figures |= {"balanced accuracy": found["balanced_accuracy"], "AUC": found["auc"]}
        better = [f"{what} {_shown(one)}" for what, one in figures.items() if _above(one)]
        worse = [f"{what} {_shown(one)}" for what, one in figures.items() if _below(one)]
        if better:
            sentences.append(f"{name} tells members from others: {', '.join(better)}.")
        if worse:
            sentences.append(f"{name} is worse than guessing: {', '.join(worse)}.")
        if not better and not worse:
            sentences.append(f"{name}: every interval contains chance.")
    return " ".join([*sentences, _by_luck(attacks)])


def _by_luck(attacks: dict[str, dict[str, Any]]) -> str:
    """How many of all figures miss chance: several looks see something sooner or later."""
    figures = [
        one
        for found in attacks.values()
        for one in (*found["tpr_at_fpr"], found["balanced_accuracy"], found["auc"])
    ]
    missed = sum(_above(one) or _below(one) for one in figures)
    return (
        f"{missed} of {len(figures)} intervals miss chance; where nothing leaks, one in twenty "
        "does so by luck."
    )


def _shown(one: dict[str, Any]) -> str:
    return f"{one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}], chance {one['chance']:g}"


def _above(one: dict[str, Any]) -> bool:
    return bool(one["low"] > one["chance"])


def _below(one: dict[str, Any]) -> bool:
    return bool(one["high"] < one["chance"])


def _notes(plan: Plan, fprs: Sequence[float], chosen: Candidates) -> list[str]:
    notes = [
        f"Intervals are at {100 * roc.CONFIDENCE:g}% for these candidates and this one model; the "
        "noise of another training is not in them. Chance does not prove that nothing leaks: it "
        "says that these attacks found nothing."
    ]
    if len(chosen.known):
        notes.append(
            f"{len(chosen.known)} further members are known to the attacker: every shadow model "
            "trained on them."
        )
    missing = [fpr for fpr in USUAL_FPRS if not plan.fprs and fpr not in fprs]
    notes += [
        f"The false-positive rate {fpr:g} is left out: it takes {round(2 / fpr)} candidates, and "
        "shadow models for it."
        for fpr in missing
    ]
    return notes


def _control(siege: Siege, chosen: Candidates) -> Estimate:
    """How well training rows are told from test rows by models that saw neither.

    Away from chance, the two follow different laws, and what tells members from others need not be
    membership: the target was trained on rows of one law alone, and its shadows on both.
    """
    answers = confidences(
        siege.task, siege.shadows, siege.features, siege.labels, [lambda records: records]
    )[:, :, 0]
    unseen = ~siege.trained_on
    means = (answers * unseen).sum(axis=0) / unseen.sum(axis=0)
    return roc.area(Verdicts.of(means, chosen.is_member))


def _control_note(control: dict[str, Any]) -> str:
    return (
        "Control: shadow models that saw neither are surer of a training row than of a test row "
        f"with AUC {_shown(control)}. Away from chance the two follow different laws, and attacks "
        "may tell members from others with nothing leaked."
    )


def roc_chart(verdicts: dict[str, Verdicts], title: str = "Membership inference") -> LineChart:
    """ROC curves on log axes, with the diagonal of chance."""
    lines = []
    for name, one in verdicts.items():
        points = [(x, y) for x, y in zip(*roc.curve(one), strict=True) if x > 0.0 and y > 0.0]
        kept = _thinned(points)
        lines.append(Line(name=name, x=[x for x, _ in kept], y=[y for _, y in kept]))
    least = min(x for line in lines for x in line.x)
    lines.append(Line(name="chance", x=[least, 1.0], y=[least, 1.0]))
    return LineChart(
        title=title,
        x_label="false-positive rate",
        y_label="true-positive rate",
        lines=lines,
        x_log=True,
        y_log=True,
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Few enough points for a picture, evenly on the log axis; ends stay."""
    if len(points) <= _POINTS:
        return list(points)
    logs = np.log([x for x, _ in points])
    wanted = np.linspace(logs[0], logs[-1], _POINTS)
    places = np.unique(np.searchsorted(logs, wanted - 1e-12).clip(0, len(points) - 1))
    return [points[i] for i in places]
