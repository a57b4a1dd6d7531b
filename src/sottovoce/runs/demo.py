"""The demo: one model trained with four ways to send updates and several seeds, in one table."""

import shutil
import statistics
from collections.abc import Callable, Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import sottovoce.runs
from sottovoce.core import files, parameter_rules
from sottovoce.core.errors import OutputError
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.loading import parse, parse_text
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

VARIANTS: dict[str, dict[str, Any]] = {
    "no privacy": {"kind": "no_privacy"},
    "Gaussian, float32": {"kind": "gaussian"},
    "one bit": {"kind": "gauss_hermite", "levels": 2},
    "automatic bits": {"kind": "gauss_hermite", "levels": "auto"},
}
REFERENCE, FAVORITE = "Gaussian, float32", "one bit"
MARKER = "demo.json"

# The arguments: the variant, its finished rounds and their total over all seeds, the metrics.
OnRound = Callable[[str, int, int, dict[str, Any]], None]


def variant_spec(variant: str, seed: int) -> RunSpec:
    """Return the demo's spec with the mechanism of a variant (a key of `VARIANTS`) and a seed.

    The variant without privacy has no budget.
    """
    text = (package_files(sottovoce.runs) / "digits.toml").read_text(encoding="utf-8")
    table = parse_text(text, "digits")
    table |= {"name": f"{variant}, seed {seed}", "seed": seed, "mechanism": VARIANTS[variant]}
    if VARIANTS[variant]["kind"] == "no_privacy":
        del table["privacy"]["epsilon"]
    return parse(table, "demo")


def run_demo(out: Path, *, num_seeds: int, on_round: OnRound | None = None) -> dict[str, Any]:
    """Train every variant with every seed under `out`, and summarize the results.

    Args:
        out: A folder that is new, empty, or holds an earlier demo, whose runs are deleted.
        num_seeds: The number of seeds, from 2 to 1000; the seeds are 1, 2, ...
        on_round: Called after each round with the variant, its finished rounds over all seeds,
            their total, and the round's metrics.

    Returns:
        The number of seeds, a summary of each variant with its learning curve, and the comparison
        of the one-bit variant with the reference; the same is written to demo.json in `out`.

    Raises:
        ParameterError: `num_seeds` is out of range.
        OutputError: `out` holds something else, or cannot be written.
    """
    parameter_rules.integer(
        "seeds", num_seeds, low=2, high=1000, remedy="give at least 2, since one seed has no spread"
    )
    _prepare(out)
    variants = []
    for variant in VARIANTS:
        results, curves = [], []
        for seed in range(1, num_seeds + 1):
            spec = variant_spec(variant, seed)

            def report(row: dict[str, Any], variant: str = variant, spec: RunSpec = spec) -> None:
                if on_round:
                    completed = (spec.seed - 1) * spec.rounds + row["round"]
                    on_round(variant, completed, num_seeds * spec.rounds, row)

            folder = out / "runs" / f"{_slug(variant)}-seed-{seed}"
            results.append(run(spec, folder, on_round=report))
            curves.append(RunFolder(folder).metrics())
        variants.append(_summary(variant, results, curves))
    comparison = _comparison(variants)
    demo = {"seeds": num_seeds, "variants": variants, "comparison": comparison}
    files.write_json(out / MARKER, demo)
    return demo


def _slug(variant: str) -> str:
    return variant.replace(", ", "-").replace(" ", "-")


def _prepare(out: Path) -> None:
    """Create the folder, or empty one that holds an earlier demo; refuse any other."""
    with files.explain_os_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            if not (out / MARKER).is_file():
                raise OutputError(
                    f"{out} is not empty and does not hold an earlier demo; choose another --out"
                )
            for variant in VARIANTS:  # Delete only what a demo has written.
                for earlier in (out / "runs").glob(f"{_slug(variant)}-seed-*"):
                    shutil.rmtree(earlier)
    files.write_json(out / MARKER, {})


def _summary(
    variant: str, results: Sequence[dict[str, Any]], curves: Sequence[list[dict[str, Any]]]
) -> dict[str, Any]:
    first = results[0]
    differing = {
        "name",
        "accuracy",
        "loss",
        "epsilon",
        "local_epsilon",
        "central_epsilon",
        "spec_hash",
        "clients_out_of_budget",
        "warnings",
        "diagnosis",
    }
    accuracies = [result["accuracy"] for result in results]
    epsilons = [result["epsilon"] for result in results]
    rounds = range(len(curves[0]))
    return {
        "variant": variant,
        **{key: value for key, value in first.items() if key not in differing},
        "accuracies": accuracies,
        "accuracy_mean": statistics.fmean(accuracies),
        "accuracy_stddev": statistics.stdev(accuracies),
        "epsilon": max(epsilons) if first["private"] else None,
        "curve": [
            {
                "round": curves[0][t]["round"],
                "accuracy_mean": statistics.fmean(c[t]["accuracy"] for c in curves),
                "accuracy_low": min(c[t]["accuracy"] for c in curves),
                "accuracy_high": max(c[t]["accuracy"] for c in curves),
                "epsilon": curves[0][t]["epsilon"],
            }
            for t in rounds
        ],
    }


def _comparison(variants: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how one bit compares with the reference: paired by seed, with a 95% interval."""
    named = {row["variant"]: row for row in variants}
    reference, one_bit = named[REFERENCE], named[FAVORITE]
    differences = [
        a - b for a, b in zip(one_bit["accuracies"], reference["accuracies"], strict=True)
    ]
    mean, half = mean_and_half_width(differences)
    return {
        "favourite": FAVORITE,
        "reference": REFERENCE,
        "accuracy_difference_mean": mean,
        "accuracy_difference_low": mean - half,
        "accuracy_difference_high": mean + half,
        "payload_ratio_up": reference["payload_bytes_up_per_message"]
        / one_bit["payload_bytes_up_per_message"],
        "total_ratio_up": reference["total_bytes_up_per_message"]
        / one_bit["total_bytes_up_per_message"],
    }
