"""Figures about attacks: what leaks without privacy, not with it, and audits of planted bugs."""

import re

from figures.figure import (
    Figure,
    Output,
    Reader,
    Source,
    UnreadableError,
    at_least,
    at_most,
    failed_tests,
    tests,
)
from figures.learning import kept

MEMBERSHIP = kept("udp-mia")
RECONSTRUCTION = kept("udp-dra")
AUDITS = tests("audits", "tests/auditing", 6.0)
RUN_AUDITS = tests("run-audits", "tests/auditing/test_audit_run.py", 6.0)
SHADOWS = Source(name="shadows", command="python benchmarks/shadows.py 64", minutes=9.0)


def rate(attack: str, mechanism: str) -> Reader:
    """Return the true positive rate at 1% false positives."""

    def reader(output: Output) -> float:
        for row in output.rows():
            if row["attack"] == attack and row["mechanism"] == mechanism:
                return float(row["tpr_at_1_percent"])
        raise UnreadableError(f"no row of {attack} on {mechanism}")

    return reader


def one_image_similarity(output: Output) -> float:
    """Return the least SSIM of one inverted image without privacy, before and after training."""
    found = [
        float(row["ssim"])
        for row in output.rows()
        if row["batch"] == "1" and row["mechanism"] == "no privacy"
        if row["part"].startswith("inversion")
    ]
    return min(found)


# {measure: its name on the page, and what guessing reaches}
_CHANCE = {
    "tpr_at_1_percent": ("TPR at 1% FPR", 0.01),
    "tpr_at_0.1_percent": ("TPR at 0.1% FPR", 0.001),
    "balanced_accuracy": ("balanced accuracy", 0.5),
    "auc": ("AUC", 0.5),
}


def unexplained_intervals(output: Output) -> float:
    """Return how many intervals with privacy miss chance in the table and not on the page."""
    page = (output.folder / "README.md").read_text(encoding="utf-8")
    told = re.findall(r"^(?:Above|Below) chance with privacy: (.+)$", page, re.MULTILINE)
    intervals = [
        (
            f"{row['attack']} on {row['mechanism']} at epsilon {float(row['epsilon']):g}: {name} ",
            *ends,
        )
        for row in output.rows()
        for measure, (name, chance) in _CHANCE.items()
        if row["epsilon"] and row[measure]
        if (ends := (float(row[f"{measure}_low"]), chance, float(row[f"{measure}_high"])))
    ]
    if not intervals:
        raise UnreadableError("no intervals with privacy")
    return sum(
        not low <= chance <= high and not any(name in line for line in told)
        for name, low, chance, high in intervals
    )


FIGURES = (
    Figure(
        name="lira-overfitted",
        asked="LiRA on an overfitted model without privacy: TPR at 1% FPR, five times chance",
        bound=at_least(0.05),
        source=MEMBERSHIP,
        read=rate("lira-online", "no privacy, overfitted"),
    ),
    Figure(
        name="membership-with-privacy",
        asked="with privacy every interval holds chance, or the page says where not: "
        "intervals that are not named",
        bound=at_most(0.0),
        source=MEMBERSHIP,
        read=unexplained_intervals,
        unit="intervals",
    ),
    Figure(
        name="inversion-one-image",
        asked="one image from its gradient without privacy, SSIM",
        bound=at_least(0.6),
        source=RECONSTRUCTION,
        read=one_image_similarity,
    ),
    Figure(
        name="audits",
        asked="lower bounds of audits are below the certificates, planted bugs of mechanisms are "
        "found: tests that fail",
        bound=at_most(0.0),
        source=AUDITS,
        read=failed_tests,
        unit="tests",
    ),
    Figure(
        name="run-audits",
        asked="the same for whole runs: tests that fail",
        bound=at_most(0.0),
        source=RUN_AUDITS,
        read=failed_tests,
        unit="tests",
    ),
    Figure(
        name="shadows-minutes",
        asked="64 shadow models, ten epochs of 5,000 images, on two cores",
        bound=at_most(15.0),
        source=SHADOWS,
        read=lambda output: output.numbers(r"images: ([\d.]+) s")[0] / 60.0,
        unit="minutes",
        timed=True,
    ),
)
