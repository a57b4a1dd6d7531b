"""The commands `sottovoce privacy`, which account for a mechanism or calibrate it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.options import (
    Delta,
    ReleaseOptions,
    Rounds,
    TotalEpsilon,
    check_plot,
    spread_dataclasses,
)
from sottovoce.cli.output import (
    Json,
    draw,
    print_fields,
    print_json,
    print_table,
    report_progress,
    show,
)

if TYPE_CHECKING:
    from sottovoce.mechanisms.mechanism import Mechanism
    from sottovoce.planning.spending import SpendResult
    from sottovoce.privacy.accounting import PrivacySpent
    from sottovoce.privacy.events import PrivacyEvent

app = typer.Typer(help="Account for privacy, or calibrate to a budget.", no_args_is_help=True)

Param = Annotated[list[str] | None, typer.Option(help="A parameter as name=value; repeatable.")]
AccountantName = Annotated[
    str | None, typer.Option(help="Use only this accountant's bound [the smallest of all].")
]


def _given(param: list[str] | None) -> dict[str, Any]:
    from sottovoce.runs.loading import parse_assignments

    return parse_assignments(param or [], "--param")


@app.command()
@spread_dataclasses
def spend(
    release: ReleaseOptions,
    delta: Delta,
    param: Param = None,
    rounds: Rounds = 1,
    accountant: AccountantName = None,
    as_json: Json = False,
) -> None:
    """Compute the epsilon, at a delta, that a client spends over some rounds."""
    from sottovoce.core import parameter_rules
    from sottovoce.planning.spending import check_rounds, spending_of_mechanism

    setting = release.release()
    parameter_rules.delta(delta)
    check_rounds(rounds)
    built = setting.registration.build(setting.domain, _given(param))
    _print(
        spending_of_mechanism(built, setting, rounds=rounds, delta=delta, accountant=accountant),
        as_json=as_json,
    )


@app.command()
@spread_dataclasses
def calibrate(
    release: ReleaseOptions,
    epsilon: TotalEpsilon,
    delta: Delta,
    param: Param = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="The number of rounds in which a client takes part [1]; with every parameter "
            "given, the largest number that fits is computed."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the noise parameter, or the number of rounds, that just keeps within (epsilon, delta).

    The parameter is found if it is not among --param; otherwise the rounds, unless they are given.
    """
    from sottovoce.planning.calibrate import calibrate_release
    from sottovoce.planning.spending import check_rounds, spending_of_mechanism

    setting, given = release.release(), _given(param)
    registration = setting.registration
    calibrated = (
        registration.calibrated_parameter.parameter if registration.calibrated_parameter else None
    )
    with report_progress() as bars:
        bars.update("calibrating", 0, 1, "seconds, or up to a minute for designed tables")
        if rounds is None and calibrated in given:
            built = registration.build(setting.domain, given)
            rounds = _rounds(setting.terms(built), epsilon, delta)
        else:
            rounds = check_rounds(1 if rounds is None else rounds)
            built = calibrate_release(setting, given, rounds=rounds, epsilon=epsilon, delta=delta)
        bars.update("calibrating", 1, 1, "done")
    _print(spending_of_mechanism(built, setting, rounds=rounds, delta=delta), as_json=as_json)


@app.command()
@spread_dataclasses
def curve(
    release: ReleaseOptions,
    delta: Delta,
    param: Param = None,
    rounds: Rounds = 1000,
    points: Annotated[int, typer.Option(help="The number of points of the curve.")] = 20,
    plot: Annotated[Path | None, typer.Option(help="Draw epsilon against rounds (SVG).")] = None,
    as_json: Json = False,
) -> None:
    """Compute how epsilon grows with the number of rounds, by every accountant."""
    from sottovoce.core import parameter_rules
    from sottovoce.planning.spending import FLOAT_GRADE, check_rounds
    from sottovoce.privacy.events import Repeated

    setting = release.release()
    parameter_rules.delta(delta)
    check_rounds(rounds)
    parameter_rules.integer("points", points, low=1, high=1000)
    check_plot(plot)
    built = setting.registration.build(setting.domain, _given(param))
    event = setting.terms(built)
    counts = _spread(rounds, points)
    spents: list[PrivacySpent] = []
    with report_progress() as bars:
        for count in counts:
            bars.update("accounting", len(spents), len(counts), f"{count} rounds")
            repeated = Repeated(event=event, count=count)
            spents.append(setting.terms.spent(repeated, delta))
        bars.update("accounting", len(counts), len(counts), "done")
    result: dict[str, Any] = {
        "mechanism": setting.registration.kind,
        "sampling_grade": built.sampling,
        "delta": delta,
        "adjacency": str(event.adjacency),
        "assumes": spents[0].assumes,
        **setting.terms.describe(),
        "curve": [
            {
                "rounds": count,
                "epsilon": _finite(spent.epsilon),
                "accountant": spent.accountant,
                "bounds": {name: _finite(bound) for name, bound in spent.bounds},
            }
            for count, spent in zip(counts, spents, strict=True)
        ],
    }
    if plot is not None:
        _plot(plot, built, delta, str(event.adjacency), counts, spents)
        result["plot"] = str(plot)
    if as_json:
        print_json(result)
        return
    fields = {name: result[name] for name in ("mechanism", "delta", "adjacency", "assumes")}
    grade = FLOAT_GRADE if built.sampling == "float" else built.sampling
    print_fields({**fields, "sampling_grade": grade, **setting.terms.describe()})
    print_table(
        ["rounds", "epsilon", "accountant"],
        [
            [str(count), show(spent.epsilon, "epsilon"), spent.accountant]
            for count, spent in zip(counts, spents, strict=True)
        ],
    )


def _rounds(event: "PrivacyEvent", epsilon: float, delta: float) -> int:
    from sottovoce.core.errors import ParameterError
    from sottovoce.privacy.accounting import privacy_spent
    from sottovoce.privacy.calibration import rounds_within

    rounds = rounds_within(event, epsilon=epsilon, delta=delta)
    if not rounds:
        spent = privacy_spent(event, delta)
        raise ParameterError(
            f"one round alone spends {spent}, more than the budget of epsilon {epsilon:g}; raise "
            "--epsilon or the noise"
        )
    return rounds


def _spread(rounds: int, points: int) -> list[int]:
    """Return numbers of rounds in geometric progression, the last one included."""
    if points == 1:
        return [rounds]
    return sorted({round(rounds ** (i / (points - 1))) for i in range(points)})


def _finite(value: float) -> float | None:
    import math

    return value if math.isfinite(value) else None


def _plot(
    path: Path,
    mechanism: "Mechanism",
    delta: float,
    adjacency: str,
    counts: list[int],
    spents: "list[PrivacySpent]",
) -> None:
    import math

    from sottovoce.core.charts.lines import ChartLine, LineChart
    from sottovoce.mechanisms.registry import kind_of

    lines = []
    for name in dict.fromkeys(name for spent in spents for name, _ in spent.bounds):
        known = [
            (float(count), dict(spent.bounds)[name])
            for count, spent in zip(counts, spents, strict=True)
            if math.isfinite(dict(spent.bounds).get(name, math.inf))
        ]
        if known:
            lines.append(ChartLine(name=name, x=[x for x, _ in known], y=[y for _, y in known]))
    if not lines:
        from sottovoce.core.errors import ParameterError

        raise ParameterError("every bound is infinite, so there is no curve; leave out --plot")
    chart = LineChart(
        title=f"Epsilon of {kind_of(mechanism)} at delta = {delta:g}, {adjacency}, by accountant",
        x_label="rounds",
        y_label="epsilon",
        lines=lines,
        x_log=len(counts) > 1 and counts[-1] >= 100,
    )
    draw(path, chart)


def _print(spent: "SpendResult", *, as_json: bool) -> None:
    if as_json:
        print_json(spent.to_dict())
    else:
        print_fields(spent.fields())
