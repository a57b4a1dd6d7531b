"""Draw the README's picture, accuracy against bytes at one epsilon, from measured results.

    python tools/readme_picture.py        # or: make picture

It reads results/imvu-mnist (all 39,700 features) and results/seeded-mnist-clients (410
coordinates), which `sottovoce experiment run` measured, and writes docs/accuracy-by-bytes.svg.
"""

import csv
from pathlib import Path

from sottovoce.core.charts.scatter import ScatterChart, Series
from sottovoce.core.charts.style import standalone

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "accuracy-by-bytes.svg"
EPSILON = 3.0
SHOWN = {
    "Gaussian (float32)": "Gaussian noise, float32",
    "one bit": "one bit per coordinate",
    "seeds": "one 16-byte seed per update",
}


def measured(experiment: str) -> list[dict[str, str]]:
    """Return the rows of an experiment at the picture's epsilon.

    Args:
        experiment: The name of a folder in results/.

    Returns:
        The rows of its data.csv, as text by column.
    """
    with (ROOT / "results" / experiment / "data.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if float(row["epsilon"]) == EPSILON]


def chart() -> ScatterChart:
    """Return the chart: one series for each mechanism, a point for each set of features."""
    rows = [*measured("imvu-mnist"), *measured("seeded-mnist-clients")]

    def numbers(kind: str, column: str, factor: float = 100.0) -> list[float]:
        return [factor * float(row[column]) for row in rows if row["mechanism"] == kind]

    return ScatterChart(
        title="MNIST at epsilon 3: the same accuracy from a hundredth of the bytes",
        x_label="bytes that a client sends per update (logarithmic)",
        y_label="test accuracy, percent",
        series=[
            Series(
                name=name,
                x=numbers(kind, "payload_bytes_up_per_message", 1.0),
                y=numbers(kind, "accuracy"),
                low=numbers(kind, "accuracy_low"),
                high=numbers(kind, "accuracy_high"),
            )
            for kind, name in SHOWN.items()
        ],
        x_log=True,
        frontiers="none",
        apart_pixels=0,
    )


if __name__ == "__main__":
    PICTURE.write_text(standalone(chart().svg()), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
