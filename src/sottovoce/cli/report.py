"""The command `sottovoce report`, which writes a page about one run or several."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.output import Json, print_json, print_table, print_wrapped, report_progress, say

_RUNS = "Run folders; a folder of runs, a federation or a collector stands for all runs in it."


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help=_RUNS)],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write a page about the privacy, accuracy and traffic of runs, which needs no network.

    A run that has not ended is reported up to its last round. An existing page is replaced.
    """
    import jinja2 as jinja2  # if it is missing, say so before reading runs

    from sottovoce.core.files import check_writable
    from sottovoce.reporting.report_data import report_of
    from sottovoce.reporting.run_report import write_report

    check_writable(out)
    with report_progress() as bars:

        def on_run(done: int, total: int, name: str) -> None:
            bars.update("reading", done, total, name)

        found = report_of([folder for named in runs for folder in _runs_in(named)], on_run)
    size = write_report(found, out)
    result = {"report": str(out), "bytes": size, **_summary(found)}
    if as_json:
        print_json(result)
    else:
        _print(result)


def _runs_in(folder: Path) -> list[Path]:
    """Return a run, or the runs in a folder; of a federation or collector those in its `runs`."""
    from sottovoce.core.errors import OutputError
    from sottovoce.runs.folder import RunFolder

    if RunFolder(folder).exists:
        return [folder]
    for place in (folder / "runs", folder):
        found = [path for path in sorted(place.glob("*")) if RunFolder(path).exists]
        if found:
            return found
    if (folder / "site.toml").is_file():
        raise OutputError(
            f"{folder} is a site's folder, but runs are in the operator's; to see what the site "
            f"has spent run: sottovoce ledger show {folder}"
        )
    if any((folder / name).is_file() for name in ("federation.toml", "collector.toml")):
        raise OutputError(
            f"no run of {folder} has begun yet; start one: sottovoce deploy run {folder} SPEC"
        )
    return [folder]  # its reader says what is wrong with it


def _summary(found: dict[str, Any]) -> dict[str, Any]:
    comparison = found["comparison"]
    return {
        "statement": found["statement"],
        "runs": [
            {
                "run": run["label"],
                "statement": run["statement"],
                "state": run["state"],
                "rounds_done": run["rounds_done"],
                "rounds": run["rounds"],
                **run["figures"],
                "has_sites": run["has_sites"],
                "simulation_only": bool(run["simulated_because"]),
                "warnings": run["warnings"],
            }
            for run in found["runs"]
        ],
        "frontier": comparison["frontier"] if comparison else None,
        "not_comparable_because": comparison["obstacles"] if comparison else None,
    }


def _print_sites(runs: list[dict[str, Any]]) -> None:
    """Print, for federations, what the server counted, what sites answered and what they say."""
    from sottovoce.runs.site_counts import BY_SERVER, HEADINGS, cells

    rows = [[run["run"], *cells(run["sites"])] for run in runs if run["sites"]]
    if rows:
        print_table(["run", *HEADINGS.values()], rows)
    if any(run["has_sites"] for run in runs):
        say(
            f"Epsilon and budgets of federated runs are {BY_SERVER}, which charges every site that "
            "it asks."
        )


def _print(result: dict[str, Any]) -> None:
    from sottovoce.core.display import show_epsilon

    rows = [
        [
            run["run"],
            f"{run['state']}, {run['rounds_done']} of {run['rounds']}",
            "none" if run["accuracy"] is None else f"{run['accuracy']:.4f}",
            "no guarantee" if run["epsilon"] is None else show_epsilon(run["epsilon"]),
            str(run["ran_out"]),
        ]
        for run in result["runs"]
    ]
    for sentence in result["statement"]:
        print_wrapped("", sentence, indent=0)
    print_table(["run", "rounds", "test accuracy", "epsilon", "out of budget"], rows)
    _print_sites(result["runs"])
    for run in result["runs"]:
        for warning in run["warnings"]:
            say(f"warning: {run['run']}: {warning}", err=True)
    if result["not_comparable_because"]:
        say(f"Not comparable: {'; '.join(result['not_comparable_because'])}.")
    elif result["frontier"]:
        say(f"On the frontier: {', '.join(result['frontier'])}.")
    say(f"Report: {result['report']} ({result['bytes']:,} bytes)")
