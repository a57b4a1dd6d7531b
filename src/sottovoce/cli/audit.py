"""The commands `sottovoce audit`, which test certified epsilons and exit with 1 on violations."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sottovoce.cli.data import DataDir, set_data_folder
from sottovoce.cli.options import (
    AdjacencyName,
    AllowCode,
    ClipGeometry,
    FinishedRun,
    MechanismKind,
    check_plot,
)
from sottovoce.cli.output import (
    Json,
    draw,
    print_fields,
    print_json,
    print_table,
    report_progress,
    say,
    show,
)

if TYPE_CHECKING:
    from sottovoce.mechanisms.mechanism import Mechanism

app = typer.Typer(
    help="Measure what leaks and compare it with the certified epsilon.", no_args_is_help=True
)

Confidence = Annotated[float, typer.Option(help="Confidence with which a violation is reported.")]
Seed = Annotated[int | None, typer.Option(help="Seed, to repeat an audit [a new one].")]
Plot = Annotated[
    Path | None, typer.Option(help="Draw certified and measured delta against epsilon (SVG).")
]


@app.command("mechanism")
def mechanism_(
    kind: MechanismKind,
    param: Annotated[
        list[str] | None,
        typer.Option(help="A parameter as name=value; repeatable [the registered example's]."),
    ] = None,
    dimension: Annotated[int, typer.Option(help="Coordinates of the input.")] = 1,
    clip_geometry: ClipGeometry = None,
    adjacency: AdjacencyName = "zero-out",
    delta: Annotated[float, typer.Option(help="The delta at which epsilons are compared.")] = 1e-5,
    draws: Annotated[
        int, typer.Option(help="Number of draws of each of two neighboring inputs.")
    ] = 1_000_000,
    confidence: Confidence = 0.999,
    seed: Seed = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Audit one release: enumerate its distribution, and sample two neighboring inputs.

    Exit with 1 if more leaks than the certified epsilon allows.
    """
    import os
    import secrets

    from sottovoce.auditing.mechanism_audit import audit_mechanism
    from sottovoce.core.adjacency import Adjacency
    from sottovoce.mechanisms.registry import parameters_of

    check_plot(plot)
    built = _built(kind, param, dimension, clip_geometry)
    seed = secrets.randbits(64) if seed is None else seed
    with report_progress() as bars:

        def progress(done: int, total: int) -> None:
            bars.update("drawing", done, total, "")

        audit = audit_mechanism(
            built,
            Adjacency.parse(adjacency),
            delta=delta,
            draws=draws,
            confidence=confidence,
            seed=seed,
            processes=os.cpu_count() or 1,
            progress=progress,
        )
    result = {
        "mechanism": kind,
        "parameters": parameters_of(built),
        "dimension": dimension,
        "draws": draws,
        "seed": seed,
        **audit.plain(),
    }
    _report(result, f"{kind}, {adjacency}", plot, as_json=as_json)


@app.command("run")
def run_(
    run: FinishedRun,
    method: Annotated[
        Literal["clients", "one-run"] | None,
        typer.Option(
            help="clients: audit clients join the run (channel 'direct'); one-run: canaries among "
            "the run's own records or clients (any channel) [clients if possible]."
        ),
    ] = None,
    canaries: Annotated[
        int | None,
        typer.Option(help="Number of canaries [as many as train in reasonable time]."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds to train [all].")] = None,
    confidence: Confidence = 0.999,
    seed: Seed = None,
    plot: Plot = None,
    allow_code: AllowCode = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train a run again with canaries, and write the finding to audit.json in its folder.

    Exit with 1 if more leaks than the certified epsilon allows.
    """
    check_plot(plot)
    set_data_folder(data_dir)
    from sottovoce.auditing.finished_run import open_run
    from sottovoce.auditing.run_audit import audit_run  # torch takes a while to load

    finished = open_run(run, allow_code=allow_code)
    with report_progress() as bars:

        def on_round(done: int, total: int) -> None:
            bars.update("training", done, total, "with canaries")

        result = audit_run(
            finished,
            method=method,
            canaries=canaries,
            rounds=rounds,
            confidence=confidence,
            seed=seed,
            on_round=on_round,
        )
    _report({"run": str(run), **result}, finished.spec.name, plot, as_json=as_json)


def _built(
    kind: str, param: list[str] | None, dimension: int, clip_geometry: str | None
) -> "Mechanism":
    """Return the mechanism with the given parameters, or its registered example."""
    import dataclasses

    from sottovoce.core.domains import clipped_domain
    from sottovoce.mechanisms import registry
    from sottovoce.runs.loading import parse_assignments

    registration = registry.find(kind)
    domain: Any = dataclasses.replace(
        registration.example_domain,  # type: ignore[type-var]
        dimension=dimension,
    )
    if clip_geometry is not None:
        domain = clipped_domain(clip_geometry, dimension, 1.0)
    given = parse_assignments(param or [], "--param") or registration.examples[0]
    return registration.build(domain, given)


def _report(result: dict[str, Any], title: str, plot: Path | None, *, as_json: bool) -> None:
    if plot is not None:
        _draw(plot, title, result)
        result["plot"] = str(plot)
    if as_json:
        print_json(result)
    else:
        _print(result)
    if result["violated"]:
        raise typer.Exit(1)


def _print(result: dict[str, Any]) -> None:
    from sottovoce.core.display import show_lower

    hidden = ("profile", "audits", "notes", "finding")
    fields = {name: value for name, value in result.items() if name not in hidden}
    for name in ("certified", "gap"):
        fields[name] = "none" if fields[name] is None else show(fields[name], "epsilon")
    fields["lower_bound"] = show_lower(fields["lower_bound"])
    print_fields(fields)
    rows = [
        (audit["method"], point)
        for audit in result.get("audits", [result])
        for point in audit["profile"]
    ]
    if rows:
        print_table(
            ["epsilon", "certified delta", "measured delta", "holds", "by"],
            [
                [
                    f"{point['epsilon']:.4f}",
                    f"{point['certified_delta']:.6g}",
                    f"{point['measured_delta']:.6g}",
                    "no" if point["violated"] else "yes",
                    method,
                ]
                for method, point in rows
            ],
        )
    for note in result.get("notes", []):
        say(f"note: {note}")
    say(result["finding"])


def _draw(path: Path, title: str, result: dict[str, Any]) -> None:
    from sottovoce.core.charts.lines import ChartLine, LineChart
    from sottovoce.core.errors import ParameterError

    audits = result.get("audits", [result])
    if not audits[0]["profile"]:
        raise ParameterError(
            "no finite epsilon is certified, so there is no curve to draw; leave out --plot"
        )
    epsilons = [point["epsilon"] for point in audits[0]["profile"]]

    def line(name: str, key: str, audit: dict[str, Any]) -> ChartLine:
        return ChartLine(name=name, x=epsilons, y=[point[key] for point in audit["profile"]])

    chart = LineChart(
        title=f"Audit of {title}: certified delta and its measured lower bound",
        x_label="epsilon",
        y_label="delta",
        lines=[
            line("certified", "certified_delta", audits[0]),
            *(line(f"at least, by {a['method']}", "measured_delta", a) for a in audits),
        ],
    )
    draw(path, chart)
