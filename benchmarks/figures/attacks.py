"""Figures about attacks: what leaks without privacy, not with it, and audits of planted bugs."""

from figures.figure import (
    Figure,
    Kept,
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
MEMBERSHIP_PAGE = Kept(path="results/udp-mia/README.md")
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


def unexplained_intervals(output: Output) -> float:
    """Return how many intervals with privacy miss chance and are not named on the page."""
    inside = output.numbers(r"With privacy (\d+) of \d+ intervals contain chance")[0]
    total = output.numbers(r"With privacy \d+ of (\d+) intervals contain chance")[0]
    named = sum(
        line.count(" at epsilon ")
        for line in output.text.splitlines()
        if line.startswith(("Above chance with privacy", "Below chance with privacy"))
    )
    return total - inside - named


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
        source=MEMBERSHIP_PAGE,
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
