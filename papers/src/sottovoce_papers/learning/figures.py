"""Pictures of a learning experiment: accuracy by epsilon, by another axis, and by round."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.charts.scatter import Level, ScatterChart, Series
from sottovoce_papers.experiment import Cell, Figure
from sottovoce_papers.grid_files import EPSILON, FigureOptions, GridFile
from sottovoce_papers.learning.rows import TRIVIAL, Summary
from sottovoce_papers.learning.targets import Score, matches

_NO_BOUND = "published epsilon, no bound"


def figures(
    grid_file: GridFile, rows: Sequence[Summary], scores: Sequence[Score] = ()
) -> list[Figure]:
    """Return the pictures panel by panel; leave out pictures without points.

    Each has the rows without noise in the same picture as the private ones.
    """
    found: list[Figure | None] = []
    for panel in _panels(grid_file, rows):
        by_epsilon = grid_file.figure.x == EPSILON
        found.append(_by_epsilon(grid_file, panel) if by_epsilon else _by_axis(grid_file, panel))
        if grid_file.figure.curves:
            found.append(_by_round(grid_file, panel, scores))
    return [figure for figure in found if figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """The rows of one value of the panel axis; `value` is None if there is no such axis."""

    value: Cell
    rows: Sequence[Summary]
    constant: tuple[str, ...]  # Axes that have one value here, and are left out of names.

    @property
    def title(self) -> str:
        return "" if self.value is None else f" ({self.value})"

    @property
    def suffix(self) -> str:
        words = re.findall(r"[a-z0-9]+", str(self.value).lower())
        return "" if self.value is None else "-" + "-".join(words)

    def named(self, row: Summary, *apart_from: str) -> str:
        return row.named(apart_from=(*self.constant, *apart_from))


def _panels(grid_file: GridFile, rows: Sequence[Summary]) -> Iterator[_Panel]:
    axis = grid_file.figure.panels
    measured = [row for row in rows if row.mean is not None]
    for value in dict.fromkeys(row.key[axis] if axis else None for row in measured):
        own = [row for row in measured if not axis or row.key[axis] == value]
        yield _Panel(value=value, rows=own, constant=_constant_axes(own))


def _constant_axes(rows: Sequence[Summary]) -> tuple[str, ...]:
    values: dict[str, set[Cell]] = {}
    for row in rows:
        for name, value in row.key.items():
            values.setdefault(name, set()).add(value)
    return tuple(name for name, found in values.items() if len(found - {None}) < 2)


def _by_epsilon(grid_file: GridFile, panel: _Panel) -> Figure | None:
    """Return the picture of mean accuracy over seeds by the epsilon spent, with 95% intervals."""
    private = [row for row in panel.rows if row.spent or row.published]
    names = list(dict.fromkeys(panel.named(row, EPSILON) for row in private))
    if not names:
        return None
    groups = [[row for row in private if panel.named(row, EPSILON) == n] for n in names]
    options = grid_file.figure
    return Figure(
        name=f"accuracy-by-epsilon{panel.suffix}",
        caption="Points are means over seeds, bars Student's 95% intervals; dashed steps are the "
        "best mean at that epsilon or less. Series are drawn a few pixels apart."
        f"{_constant_answer(panel.rows)}",
        chart=ScatterChart(
            title=f"{_capital(options)} by epsilon spent{panel.title}",
            x_label="epsilon spent",
            y_label=options.y_label,
            series=[_series(grid_file, panel, group) for group in groups],
            levels=[
                Level(name=panel.named(row), y=row.mean or 0.0)
                for row in panel.rows
                if row.epsilon is None
            ],
            x_log=options.x_log,
        ),
    )


def _series(grid_file: GridFile, panel: _Panel, rows: Sequence[Summary]) -> Series:
    means, low, high = _bars(rows)
    printed = [
        point
        for point in grid_file.paper
        if point.mechanism == rows[0].mechanism and point.panel == panel.value
    ]
    name = panel.named(rows[0], EPSILON)
    return Series(
        name=f"{name} ({_NO_BOUND})" if rows[0].published else name,
        x=[row.published or row.spent or 0.0 for row in rows],
        y=means,
        low=low,
        high=high,
        paper_x=[point.epsilon for point in printed],
        paper_y=[point.accuracy for point in printed],
    )


def _by_axis(grid_file: GridFile, panel: _Panel) -> Figure | None:
    """Return the picture of mean accuracy by another axis, at the budgets of the grid."""
    options = grid_file.figure
    names = list(dict.fromkeys(panel.named(row, options.x) for row in panel.rows))
    if not names:
        return None
    axis = options.x.replace("_", " ")
    groups = [[row for row in panel.rows if panel.named(row, options.x) == n] for n in names]
    return Figure(
        name=f"accuracy-by-{options.x.replace('_', '-')}{panel.suffix}",
        caption="Points are means over seeds after the last round, bands Student's 95% intervals."
        f"{_constant_answer(panel.rows)}",
        chart=LineChart(
            title=f"{_capital(options)} by {axis}{panel.title}",
            x_label=axis,
            y_label=options.y_label,
            lines=[
                _axis_line(name, options.x, group)
                for name, group in zip(names, groups, strict=True)
            ],
            x_log=options.x_log,
        ),
    )


def _axis_line(name: str, axis: str, rows: Sequence[Summary]) -> ChartLine:
    placed = sorted(rows, key=lambda row: float(row.key[axis] or 0.0))
    means, low, high = _bars(placed)
    return ChartLine(
        name=name, x=[float(row.key[axis] or 0.0) for row in placed], y=means, low=low, high=high
    )


def _bars(rows: Sequence[Summary]) -> tuple[list[float], list[float], list[float]]:
    """Return means and their intervals, clipped to [0, 1]: with few seeds they reach beyond."""
    means = [row.mean or 0.0 for row in rows]
    intervals = [row.interval or (m, m) for row, m in zip(rows, means, strict=True)]
    low = [max(low, min(0.0, m)) for (low, _), m in zip(intervals, means, strict=True)]
    high = [min(high, max(1.0, m)) for (_, high), m in zip(intervals, means, strict=True)]
    return means, low, high


def _by_round(grid_file: GridFile, panel: _Panel, scores: Sequence[Score]) -> Figure | None:
    """Return the picture of mean accuracy by round, at the largest budget of the grid."""
    options = grid_file.figure
    kept = [row for row in panel.rows if row.curve.rounds]
    plain = [row for row in kept if row.epsilon is None]
    private = [row for row in kept if row.epsilon is not None]
    if options.x != EPSILON:
        private = [row for row in private if row.mechanism == grid_file.experiment.favorite]
    largest = max((row.epsilon or 0.0 for row in private), default=None)
    # Colors follow the order, so rows with a budget come first, as in the other picture.
    drawn = [*(row for row in private if row.epsilon == largest), *plain]
    if not drawn:
        return None
    budget = "" if largest is None else f" at epsilon = {largest:g}"
    lines = [_round_line(panel.named(row, EPSILON), row) for row in drawn]
    for score in scores:
        own = [row for row in drawn if matches(score.baseline.where, row.key)]
        if own:
            ends = [own[0].curve.rounds[0], own[0].curve.rounds[-1]]
            level = [score.accuracy] * 2
            lines.append(ChartLine(name=score.name, x=ends, y=level, low=level, high=level))
    return Figure(
        name=f"accuracy-by-round{panel.suffix}",
        caption="Means over seeds, at the chosen learning rate; bands are Student's 95% intervals, "
        f"cut at 0 and 1.{_constant_answer(panel.rows)}",
        chart=LineChart(
            title=f"{_capital(options)} by round{budget}{panel.title}",
            x_label="round",
            y_label=options.y_label,
            lines=lines,
        ),
    )


def _round_line(name: str, row: Summary) -> ChartLine:
    intervals = row.curve.intervals
    return ChartLine(
        name=f"{name} ({_NO_BOUND})" if row.published else name,
        x=row.curve.rounds,
        y=row.curve.means,
        low=[low for low, _ in intervals],
        high=[high for _, high in intervals],
    )


def _constant_answer(rows: Sequence[Summary]) -> str:
    """Return a sentence about the best constant answer, which a picture need not reach down to."""
    known = sorted({float(one) for row in rows if (one := row.first[TRIVIAL]) is not None})
    told = " or ".join(f"{score:.3f}" for score in known)
    return f" The best constant answer scores {told}." if known else ""


def _capital(options: FigureOptions) -> str:
    return options.y_label[:1].upper() + options.y_label[1:]
