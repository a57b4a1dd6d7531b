"""The command `sottovoce plan`, which ranks mechanisms by their error at one budget."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.options import (
    AdjacencyName,
    Delta,
    Records,
    Rounds,
    Sampling,
    SamplingHiddenBy,
    SamplingRate,
    TotalEpsilon,
    check_plot,
    option,
    spread_dataclasses,
)
from sottovoce.cli.output import Json, draw, print_json, print_table, report_progress, say

if TYPE_CHECKING:
    from sottovoce.core.charts.lines import ChartLine
    from sottovoce.planning.plan import Plan, Ranking


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options that describe the budget, the update and what is ranked."""

    epsilon: TotalEpsilon
    delta: Delta
    dimension: Annotated[int, typer.Option(help="Coordinates of an update.")]
    rounds: Rounds = 1
    clip_norm: Annotated[float, typer.Option(help="The clipping norm of an update.")] = 1.0
    clip_geometry: Annotated[
        str, typer.Option(help="The norm that is clipped: l2, l1 or linf.")
    ] = "l2"
    records: Records = 1
    adjacency: AdjacencyName = "zero-out"
    sampling_rate: SamplingRate = None
    sampling: Sampling = "poisson"
    sampling_hidden_by: SamplingHiddenBy = "own-records"
    channel: Annotated[
        str, typer.Option(help="What the server sees: direct (all messages) or secure_sum.")
    ] = "direct"
    clients: Annotated[int | None, typer.Option(help="Messages in a secure sum.")] = None
    honest: Annotated[
        int | None,
        typer.Option(help="Those of clients that neither drop out nor collude [all but one]."),
    ] = None
    bits: Annotated[float | None, typer.Option(help="The most bits per coordinate [no limit].")] = (
        None
    )
    all_settings: Annotated[
        bool,
        typer.Option("--all-settings", help="List every setting tried, not only the best of each."),
    ] = False
    designs: Annotated[
        bool,
        typer.Option("--designs", help="Also rank mechanisms that take a minute to calibrate."),
    ] = False


@spread_dataclasses
def plan(
    asked: PlanOptions,
    plot: Annotated[
        Path | None, typer.Option(help="Draw error against bits per coordinate (SVG).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank all mechanisms by their error, each calibrated to the same privacy budget.

    Mechanisms that are sampled exactly can be deployed and are listed first.
    """
    from sottovoce.core.adjacency import Adjacency
    from sottovoce.mechanisms.release import ReleaseTerms
    from sottovoce.planning.plan import plan as planned
    from sottovoce.planning.release import planned_terms, secret_sample

    check_plot(plot)
    # Checked here as well, so that a message names options as they are typed.
    sample = secret_sample(
        asked.sampling_rate, asked.sampling, asked.sampling_hidden_by, format_name=option
    )
    planned_terms(
        ReleaseTerms(adjacency=Adjacency.parse(asked.adjacency), sample=sample),
        channel=asked.channel,
        clients=asked.clients,
        honest=asked.honest,
        format_name=option,
    )
    with report_progress() as bars:
        bars.update("planning", 0, 1, "calibrating every mechanism")
        found = planned(**vars(asked))
    result = found.to_dict()
    if plot is not None:
        _plot(plot, found.all_settings)
        result["plot"] = str(plot)
    if as_json:
        print_json(result)
        return
    _print(found)
    if plot is not None:
        say(f"\nDrawn: {plot}")


def _print(found: "Plan") -> None:
    from sottovoce.core.display import show_rounded
    from sottovoce.planning.plan import COLUMNS

    columns = found.columns[:-1]
    exact = [one.cells()[:-1] for one in found if one.sampling_grade == "exact"]
    others = [one.cells()[:-1] for one in found if one.sampling_grade != "exact"]
    if exact:
        say("can be deployed (sampled exactly):")
        print_table(columns, exact)
    if others:
        say("simulation only (float noise, which leaks in its last bits):")
        print_table(columns, others)
    say(f"{_to_deploy(found)}{found.explanation}.")
    say("Parameters are rounded here; --json has every digit.")
    if columns != COLUMNS[:-1]:
        say(
            "epsilon holds if nothing but sums is seen and the honest clients are as many as that; "
            "local epsilon\nholds without any of this. bytes are those of a masked vector, without "
            "keys and shares."
        )
    if found.left_out:
        say("\nleft out:")
    for one in found.left_out:
        given = f" ({show_rounded(one.parameters)})" if one.parameters else ""
        say(f"  {one.mechanism}{given}: {one.reason}")


def _to_deploy(found: "Plan") -> str:
    """Return a sentence about the best mechanism that can be deployed, if another one is chosen."""
    from sottovoce.mechanisms.registry import MECHANISMS

    exact = next(
        (
            one
            for one in found
            if one.sampling_grade == "exact" and MECHANISMS.describe_plugin(one.mechanism) is None
        ),
        None,
    )
    if exact is None:
        return "No mechanism of this package that fits is sampled exactly. Of all, "
    if exact.mechanism == found.to_dict()["choice"]:
        return ""
    return f"To deploy, use {exact.mechanism}. Of all, "


def _frontier(found: Iterable[Mapping[float, float]]) -> "ChartLine":
    """Return the smallest error for each number of bits, over all mechanisms."""
    from sottovoce.core.charts.lines import ChartLine

    best: dict[float, float] = {}
    for bits, mse in sorted((bits, mse) for one in found for bits, mse in one.items()):
        if mse < min(best.values(), default=math.inf):
            best[bits] = mse
    return ChartLine(name="frontier", x=list(best), y=list(best.values()))


def _plot(path: Path, ranking: "Ranking") -> None:
    """Draw a curve for each mechanism, through its settings."""
    from sottovoce.core.charts.lines import ChartLine, LineChart
    from sottovoce.core.domains import geometry_of

    points: dict[str, dict[float, float]] = {}
    for one in ranking.candidates:  # in order of error: the first one of equal bits is the best
        points.setdefault(one.kind, {}).setdefault(one.bits_per_coordinate, one.mse)
    setting = ranking.setting
    chart = LineChart(
        title=(
            f"Error against bits at epsilon = {setting.epsilon:g}, delta = {setting.delta:g}, "
            f"rounds = {setting.rounds}, dimension = {setting.domain.dimension} "
            f"({geometry_of(setting.domain)})"
        ),
        x_label="bits per coordinate",
        y_label="mean squared error per coordinate",
        lines=[
            _frontier(points.values()),
            *(
                ChartLine(name=kind, x=sorted(found), y=[found[bits] for bits in sorted(found)])
                for kind, found in points.items()
            ),
        ],
        x_log=True,
        y_log=True,
    )
    draw(path, chart)
