"""The command `sottovoce demo`, which trains a model on one private bit per coordinate."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.output import Json, print_json, print_table, report_progress, round_note, say


def demo(
    out: Annotated[
        Path, typer.Option(help="The folder for runs and report.html; an earlier demo is replaced.")
    ] = Path("demo-run"),
    seeds: Annotated[int, typer.Option(help="Runs of every variant, each with its own seed.")] = 8,
    as_json: Json = False,
) -> None:
    """Train on the bundled digits without privacy and at one (epsilon, delta), and compare.

    The results are printed and written to report.html in the folder.
    """
    with report_progress() as bars:
        from sottovoce.runs.demo import run_demo  # torch takes a while to load

        def on_round(variant: str, completed: int, total: int, row: dict[str, Any]) -> None:
            bars.update(variant, completed, total, round_note(row))

        result = run_demo(out, num_seeds=seeds, on_round=on_round)
    from sottovoce.reporting.demo import write_report

    report = write_report(result, out / "report.html")
    if as_json:
        print_json({**result, "report": str(report)})
    else:
        _print(result, report)


def _print(demo: dict[str, Any], report: Path) -> None:
    from sottovoce.core.display import show_epsilon

    variants, comparison = demo["variants"], demo["comparison"]
    rows = [
        [
            row["variant"],
            f"{row['accuracy_mean']:.3f} +- {row['accuracy_stddev']:.3f}",
            "no guarantee" if row["epsilon"] is None else show_epsilon(row["epsilon"], 3),
            f"{row['bits_per_coordinate']:.3g}",
            f"{row['payload_bytes_up_per_message']:.0f} ({row['total_bytes_up_per_message']:.0f})",
            f"{row['payload_bytes_down_per_message']:.0f} "
            f"({row['total_bytes_down_per_message']:.0f})",
        ]
        for row in variants
    ]
    private = next(row for row in variants if row["variant"] == comparison["favourite"])
    print_table(
        ["sent by a client", "test accuracy", "epsilon", "bits", "bytes up", "bytes down"], rows
    )
    say(
        f"Accuracy: mean +- standard deviation over {demo['seeds']} seeds. Bytes: payload (total "
        f"with header) per client and round.\n"
        f"Privacy: delta = {private['delta']:g}, adjacency {private['adjacency']}, "
        f"{private['guarantee']}.\n"
        "The Gaussian's float noise is for simulation only; the bits are sampled exactly.\n"
        f"{comparison['favourite'].capitalize()} against {comparison['reference']}: "
        f"{100 * comparison['accuracy_difference_mean']:+.2f} accuracy points "
        f"(95% interval {100 * comparison['accuracy_difference_low']:+.2f} to "
        f"{100 * comparison['accuracy_difference_high']:+.2f}), "
        f"{comparison['payload_ratio_up']:.1f}x fewer payload bytes up "
        f"({comparison['total_ratio_up']:.1f}x with headers).\n"
        f"Report: {report}"
    )
