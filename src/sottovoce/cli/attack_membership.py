"""`sottovoce attack membership`: who was in the training data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.data import DataDir, use
from sottovoce.cli.options import AllowCode, Device, FinishedRun
from sottovoce.cli.output import Json, print_json, print_table, progress_bars, say
from sottovoce.cli.setting import check_plot

Plot = Annotated[Path | None, typer.Option(help="Also draw it, into this SVG file.")]


def membership(
    run: FinishedRun,
    shadows: Annotated[int, typer.Option(help="Shadow models to train; an even number.")] = 64,
    candidates: Annotated[
        int | None,
        typer.Option(help="Whose membership is guessed, half of them members; 2000 if there are."),
    ] = None,
    fpr: Annotated[
        list[float] | None,
        typer.Option(help="False-positive rate of a TPR; repeatable [0.01, and 0.001 if it can]."),
    ] = None,
    attack: Annotated[
        str,
        typer.Option(
            help="shokri, lira-offline, lira-online, canary, a plug-in's name, or all of ours."
        ),
    ] = "all",
    device: Device = None,
    allow_code: AllowCode = False,
    data_dir: DataDir = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Who was in the training data? Shokri's attack, LiRA and canaries, with intervals.

    Shadow models are trained by the run's own recipe and kept in RUN/attack: after an interruption
    the same command goes on.
    """
    check_plot(plot)
    use(data_dir)
    with progress_bars() as bars:
        from sottovoce.auditing.attacks.membership import own_attacks
        from sottovoce.auditing.finished_run import open_run
        from sottovoce.auditing.run_membership import Plan
        from sottovoce.auditing.run_membership import attack as attacked

        plan = Plan(
            shadows=shadows,
            candidates=candidates,
            fprs=fpr,
            attacks=own_attacks() if attack == "all" else (attack,),
            device=device,
        )
        result, chart = attacked(open_run(run, allow_code=allow_code), plan, bars.update)
    if plot is not None:
        _draw(chart, plot)
    if as_json:
        print_json(result)
    else:
        _print_membership(result)


def _draw(chart: Any, path: Path) -> None:
    from sottovoce.core import files
    from sottovoce.core.charts.style import standalone

    files.write_atomic(path, standalone(chart.svg()).encode())


def _print_membership(result: dict[str, Any]) -> None:
    attacks = result["attacks"]
    fprs = [one["fpr"] for one in next(iter(attacks.values()))["tpr_at_fpr"]]
    rows = [["chance", *(f"{fpr:g}" for fpr in fprs), "0.5", "0.5"]]
    for name, found in attacks.items():
        figures = [*found["tpr_at_fpr"], found["balanced_accuracy"], found["auc"]]
        rows.append([name, *map(_with_interval, figures)])
    rates = [f"TPR at {100 * fpr:g}% FPR" for fpr in fprs]
    print_table(["attack", *rates, "balanced accuracy", "AUC"], rows)
    inside, outside = result["accuracy_on_members"], result["accuracy_on_non_members"]
    say(
        f"{result['verdict']}\n\nThe model is right on {_with_interval(inside)} of members and on "
        f"{_with_interval(outside)} of others; {result['shadows']} shadow models, "
        f"{result['candidates']} candidates."
    )
    for note in result["notes"]:
        say(note)


def _with_interval(one: dict[str, Any]) -> str:
    return f"{one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"
