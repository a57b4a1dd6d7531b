"""Pictures of a learning experiment: accuracy by epsilon spent, and by round."""

from collections.abc import Sequence

from sottovoce.experiments.catalogue import EPSILON, RATE, SEED, Catalogue
from sottovoce.experiments.experiment import Figure
from sottovoce.experiments.learning_rows import Summary
from sottovoce.experiments.sweep import TrialResult, label
from sottovoce.reporting.figures import Line, LineChart
from sottovoce.reporting.scatter import Level, ScatterChart, Series


def figures(
    catalogue: Catalogue, rows: Sequence[Summary], results: Sequence[TrialResult]
) -> list[Figure]:
    """What there is to draw: no scatter without budgets, no curves where none were kept."""
    found = [accuracy_by_epsilon(catalogue, rows), accuracy_by_round(results)]
    return [figure for figure in found if figure]


def accuracy_by_epsilon(catalogue: Catalogue, rows: Sequence[Summary]) -> Figure | None:
    """Mean accuracy over seeds by the epsilon that was spent, with 95% intervals."""
    private = [row for row in rows if row.mean is not None and row.spent]
    names = list(dict.fromkeys(row.contender for row in private))
    if not names:
        return None
    series = [_series(catalogue, [row for row in private if row.contender == n]) for n in names]
    levels = [
        Level(name=row.contender, y=row.mean)
        for row in rows
        if row.epsilon is None and row.mean is not None
    ]
    return Figure(
        name="accuracy-by-epsilon",
        caption="Points are means over seeds, bars Student's 95% intervals; dashed steps are the "
        "best mean at that epsilon or less. Series stand a few pixels apart.",
        chart=ScatterChart(
            title="Test accuracy by epsilon spent",
            x_label="epsilon spent",
            y_label="test accuracy",
            series=series,
            levels=levels,
            x_log=catalogue.figure.x_log,
        ),
    )


def _series(catalogue: Catalogue, rows: Sequence[Summary]) -> Series:
    means = [row.mean or 0.0 for row in rows]
    intervals = [row.interval or (m, m) for row, m in zip(rows, means, strict=True)]
    printed = [point for point in catalogue.paper if point.mechanism == rows[0].mechanism]
    return Series(
        name=rows[0].contender,
        x=[row.spent or 0.0 for row in rows],
        y=means,
        low=[low for low, _ in intervals],
        high=[high for _, high in intervals],
        paper_x=[point.epsilon for point in printed],
        paper_y=[point.accuracy for point in printed],
    )


def accuracy_by_round(results: Sequence[TrialResult]) -> Figure | None:
    """Mean accuracy over seeds by round, at the largest budget of the grid."""
    whole = [result for result in results if result.result and result.result.get("curve")]
    budgets = [e for result in whole if isinstance(e := result.key[EPSILON], int | float)]
    if not budgets:
        return None
    largest = max(budgets)
    # Colours go by order: those with a budget first, as in the other picture.
    whole.sort(key=lambda result: (result.result or {}).get("epsilon") is None)
    curves: dict[str, list[dict[int, float]]] = {}
    for result in whole:
        if result.key[EPSILON] == largest and result.result:
            shown = {k: v for k, v in result.key.items() if k not in (EPSILON, SEED, RATE)}
            curve = {row["round"]: row["accuracy"] for row in result.result["curve"]}
            curves.setdefault(label(shown), []).append(curve)
    return Figure(
        name="accuracy-by-round",
        caption="Means over seeds, at the chosen learning rate; bands run from the lowest to the "
        "highest seed.",
        chart=LineChart(
            title=f"Test accuracy by round at epsilon = {largest:g}",
            x_label="round",
            y_label="test accuracy",
            lines=[_line(name, found) for name, found in curves.items()],
        ),
    )


def _line(name: str, curves: Sequence[dict[int, float]]) -> Line:
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = [[curve[number] for curve in curves] for number in rounds]
    return Line(
        name=name,
        x=rounds,
        y=[sum(seeds) / len(seeds) for seeds in values],
        low=[min(seeds) for seeds in values],
        high=[max(seeds) for seeds in values],
    )
