"""UDP-FL, table 8: inference of gender from the embeddings of a model that predicts race."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.core.charts.scatter import ScatterChart, Series
from sottovoce.core.statistics import mean_and_half_width
from sottovoce_papers.experiment import HELD_OUT, Figure, Findings, Row, Settings, experiment
from sottovoce_papers.kept_cells import KeptCells
from sottovoce_papers.udp_mechanisms import (
    EPSILONS,
    GAUSSIAN,
    LAPLACE,
    NO_PRIVACY,
    RECORD_SAMPLING_RATE,
    STAIRCASE,
    MechanismAtBudget,
    describe_budgets,
    mechanisms_at_budgets,
)

_VERSION = 1
_SMALL = (
    "'strided_cnn' on gray faces of 48x48 in place of the paper's network and its color images; "
    "a file of 8,000 faces is used if there is no larger one."
)
ATTRIBUTE = "gender"
# The names that attribute_scores uses; it is not imported here because it needs torch.
MODEL, UNTRAINED, PIXELS, MAJORITY = "the model", "untrained model", "raw rows", "majority"

# (mechanism, epsilon) -> accuracy, F1 as printed in table 8.
TABLE_8: Mapping[tuple[str, float | None], tuple[float, float]] = {
    (NO_PRIVACY, None): (0.86, 0.85),
    (GAUSSIAN, 2.0): (0.8392, 0.8239),
    (GAUSSIAN, 4.0): (0.8497, 0.8408),
    (GAUSSIAN, 6.0): (0.8519, 0.8439),
    (GAUSSIAN, 8.0): (0.8615, 0.8544),
    (LAPLACE, 2.0): (0.8297, 0.7987),
    (LAPLACE, 4.0): (0.8285, 0.8248),
    (LAPLACE, 6.0): (0.8390, 0.8096),
    (LAPLACE, 8.0): (0.8320, 0.8169),
    (STAIRCASE, 2.0): (0.8267, 0.8124),
    (STAIRCASE, 4.0): (0.8383, 0.8260),
    (STAIRCASE, 6.0): (0.8322, 0.8131),
    (STAIRCASE, 8.0): (0.8317, 0.8174),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferencePlan:
    """The effort of the experiment; None for all rows."""

    epsilons: Sequence[float]
    seeds: int
    num_train: int | None
    num_test: int | None
    rounds: int
    rates: Sequence[float]
    epochs: int

    @classmethod
    def of(cls, settings: Settings) -> "InferencePlan":
        """Return the plan of a full or a fast run."""
        if settings.fast:
            return cls(
                epsilons=(8.0,),
                seeds=settings.seeds,
                num_train=400,
                num_test=800,
                rounds=8,
                rates=(0.3,),
                epochs=20,
            )
        return cls(
            epsilons=EPSILONS,
            seeds=settings.seeds,
            num_train=None,
            num_test=None,
            rounds=150,
            rates=(0.03, 0.3, 1.0),
            epochs=40,
        )


def base_spec(plan: InferencePlan, settings: Settings) -> dict[str, Any]:
    """Return the spec of the target models without mechanism, budget, rate and seed."""
    sizes = {"num_train": plan.num_train, "num_test": plan.num_test}
    return {
        "name": "udp-aia",
        "rounds": plan.rounds,
        "randomness": "seeded",
        "data": {
            "dataset": "utkface-race",
            "clients": 10,
            **{name: size for name, size in sizes.items() if size is not None},
        },
        "model": {"kind": "strided_cnn"},
        "algorithm": {"kind": "fedavg"},
        "privacy": {
            "level": "sample",
            "clip_norm": 1.0,
            "delta": 1e-5,
            "record_sampling_rate": RECORD_SAMPLING_RATE,
        },
        "runtime": {"messages": "none", "device": settings.device or "auto"},
    }


Cell = dict[str, Any]


@experiment(
    "udp-aia",
    title="Attribute inference on UTKFace (UDP-FL, table 8)",
    claim="Gender is inferred from the embeddings with accuracy 0.827 to 0.838 with the staircase, "
    "0.839 to 0.862 with DP-SGD and 0.86 without privacy; the staircase 'slightly reduces the "
    "attack inference accuracy'.",
    seeds=5,
    fast_seeds=3,
    trains=True,
    data="utkface-race",
)
def udp_aia(settings: Settings) -> Findings:
    """Run the same attack on models of every mechanism, and baselines without a trained model."""
    from sottovoce_papers.learning.study import use_data_dir

    plan = InferencePlan.of(settings)
    with use_data_dir(settings.data_dir):
        cells = list(_cells(plan, settings, KeptCells(settings.folder, version=_VERSION)))
    rows = _rows(cells)
    return Findings(
        rows=rows,
        figures=_figures(rows),
        verdict=verdict(cells),
        method=_method(plan),
        tuning=_tuning(plan),
        reduced=_reduced(plan) if settings.fast else _SMALL,
    )


def _cells(plan: InferencePlan, settings: Settings, kept: KeptCells) -> Iterator[Cell]:
    """Yield every mechanism with every seed; a seed draws the split, the model and the noise."""
    from sottovoce.auditing.attacks.attributes import AttributeClassifier
    from sottovoce.auditing.run_attributes import attribute_scores, baseline_guesses
    from sottovoce_papers.target_models import target_model

    base, everyone = base_spec(plan, settings), mechanisms_at_budgets(plan.epsilons)
    effort = {"rounds": plan.rounds, "rates": list(plan.rates), "epochs": plan.epochs}
    about = {"effort": effort, "num_train": plan.num_train, "num_test": plan.num_test}
    attack = AttributeClassifier(epochs=plan.epochs)
    rates: dict[MechanismAtBudget, Sequence[float]] = {}
    for seed in range(1, plan.seeds + 1):
        baselines = None  # The same for all models of a seed.
        for done, one in enumerate(everyone):
            key = {**about, **one.key, "seed": seed}
            cell = kept.find(key)
            if cell is None:
                settings.on_step(f"seed {seed}", done, len(everyone), one.mechanism)
                target = target_model(base, one, rates.get(one, plan.rates), seed=seed)
                task, data = target.task, target.data
                if baselines is None:
                    baselines = baseline_guesses(task, data, ATTRIBUTE, attack, seed=seed)
                scores = attribute_scores(
                    task, target.model, data, ATTRIBUTE, attack, seed=seed, baselines=baselines
                )
                found = {"target_accuracy": target.accuracy, "learning_rate": target.learning_rate}
                cell = kept.keep(key, {**found, "scores": scores})
            rates[one] = (cell["learning_rate"],)  # Tuned once, with the first seed.
            yield {**key, **cell}


def _rows(cells: Sequence[Cell]) -> list[Row]:
    """Return a row per mechanism and budget, and one per guess without a trained model."""
    rows = [
        _row(one, [cell for cell in cells if _name(cell) == one], MODEL)
        for one in dict.fromkeys(map(_name, cells))
    ]
    first = [cell for cell in cells if cell["mechanism"] == NO_PRIVACY]
    return rows + [_row((guess, None), first, guess) for guess in (UNTRAINED, PIXELS, MAJORITY)]


def _name(cell: Cell) -> tuple[str, float | None]:
    return cell["mechanism"], cell["epsilon"]


def _row(name: tuple[str, float | None], cells: Sequence[Cell], guess: str) -> Row:
    row: dict[str, Any] = {"mechanism": name[0], "epsilon": name[1], "seeds": len(cells)}
    for measure in ("accuracy", "f1"):
        values = [cell["scores"][guess][measure]["mean"] for cell in cells]
        mean, half = mean_and_half_width(values)
        row |= {measure: mean, f"{measure}_low": max(0.0, mean - half)}
        row[f"{measure}_high"] = min(1.0, mean + half)
    row |= {"target_accuracy": None, "target_accuracy_half_width": None}
    if guess == MODEL:
        mean, half = mean_and_half_width([cell["target_accuracy"] for cell in cells])
        row |= {"target_accuracy": mean, "target_accuracy_half_width": half}
    paper = TABLE_8.get(name, (None, None))
    return row | {"paper_accuracy": paper[0], "paper_f1": paper[1]}


def _gains(cells: Sequence[Cell], guess: str) -> tuple[float, float]:
    """Return mean and half width over seeds of the model's accuracy minus that of another guess."""
    return mean_and_half_width(
        [
            cell["scores"][MODEL]["accuracy"]["mean"] - cell["scores"][guess]["accuracy"]["mean"]
            for cell in cells
        ]
    )


def verdict(cells: Sequence[Cell]) -> str:
    """Return what trained models add to the attack, and whether the staircase differs."""
    by_name = {
        name: [cell for cell in cells if _name(cell) == name]
        for name in dict.fromkeys(map(_name, cells))
    }
    lines = []
    for guess in (MAJORITY, UNTRAINED, PIXELS):
        told: dict[str, list[tuple[str, float | None]]] = {}
        for name, own in by_name.items():
            mean, half = _gains(own, guess)
            side = (
                "above"
                if mean > half
                else "below"
                if mean < -half
                else "not clearly different from"
            )
            told.setdefault(side, []).append(name)
        parts = [f"{side} it: {describe_budgets(names)}" for side, names in told.items()]
        lines.append(f"Accuracy against '{guess}' (in pairs by seed, 95%): {'; '.join(parts)}.")
    lines.append(_staircase(by_name))
    return "\n".join(lines)


def _staircase(by_name: Mapping[tuple[str, float | None], Sequence[Cell]]) -> str:
    parts = []
    for epsilon in sorted({e for _, e in by_name if e is not None}):
        pairs = zip(by_name[STAIRCASE, epsilon], by_name[GAUSSIAN, epsilon], strict=True)
        mean, half = mean_and_half_width([_accuracy(one) - _accuracy(two) for one, two in pairs])
        word = "lower" if mean < -half else "higher" if mean > half else "no clear difference"
        parts.append(
            f"{100 * mean:+.1f} points ({100 * (mean - half):+.1f} to {100 * (mean + half):+.1f}, "
            f"{word}) at epsilon {epsilon:g}"
        )
    return f"The staircase's accuracy minus the Gaussian's: {', '.join(parts)}."


def _accuracy(cell: Cell) -> float:
    return float(cell["scores"][MODEL]["accuracy"]["mean"])


def _figures(rows: Sequence[Row]) -> list[Figure]:
    epsilons = sorted({float(row["epsilon"]) for row in rows if row["epsilon"] is not None})
    series = []
    for name in dict.fromkeys(str(row["mechanism"]) for row in rows):
        own = [row for row in rows if row["mechanism"] == name]
        printed = [row for row in own if row["paper_accuracy"] is not None]
        if own[0]["epsilon"] is None:  # It is drawn at every epsilon.
            own, printed = own * len(epsilons), printed * len(epsilons)
        series.append(
            Series(
                name=name,
                x=epsilons,
                y=_numbers(own, "accuracy"),
                low=_numbers(own, "accuracy_low"),
                high=_numbers(own, "accuracy_high"),
                paper_x=epsilons if printed else [],
                paper_y=_numbers(printed, "paper_accuracy"),
            )
        )
    chart = ScatterChart(
        title="Accuracy of inferring gender, by epsilon of the target model",
        x_label="epsilon",
        y_label="accuracy",
        series=series,
        frontiers="none",
    )
    caption = (
        "Means over seeds, bars Student's 95% intervals; rows without epsilon are drawn at each."
    )
    return [Figure(name="accuracy-by-epsilon", caption=caption, chart=chart)]


def _numbers(rows: Sequence[Row], key: str) -> list[float]:
    return [float(row[key]) for row in rows]  # type: ignore[arg-type]


def _tuning(plan: InferencePlan) -> str:
    rates = ", ".join(f"{rate:g}" for rate in plan.rates)
    if len(plan.rates) == 1:
        return f"The learning rate is {rates} and was not tuned."
    return f"Learning rates ({rates}) were chosen by accuracy on held-out rows. {HELD_OUT}"


def _method(plan: InferencePlan) -> str:
    return (
        f"strided_cnn predicts race on {plan.num_train or 'all'} training faces of UTKFace (48x48 "
        f"gray, 10 clients, {plan.rounds} rounds of a 5% sample of their records, clip 1); "
        "sample level, zero-out, delta = 1e-5, the whole budget over all rounds, sound accounting. "
        "A network of two layers learns gender from the input of the last layer on the test faces, "
        "and is asked about the training faces. 'Untrained model' and 'raw rows' give the same "
        "network the embeddings before training, and the pixels; 'majority' is the most frequent "
        f"gender. Seeds 1 to {plan.seeds} draw split, model and noise; intervals are Student's 95% "
        "over seeds; F1 is the mean over both values."
    )


def _reduced(plan: InferencePlan) -> str:
    return (
        f"{plan.num_train} training and {plan.num_test} test faces, {plan.rounds} rounds, one "
        f"learning rate, epsilon {plan.epsilons[0]:g} only, {plan.seeds} seeds."
    )
