"""Real check-ins through `sottovoce estimate location`: errors of locations and maps.

    python benchmarks/places.py CHECKINS.npz     # arrays user, lat, lon

One check-in a person, drawn at random; prints the table of results/location.
"""

import sys
from pathlib import Path

import numpy as np

from sottovoce.analytics.estimates import ask, question_for
from sottovoce.core.domains import Vector
from sottovoce.core.randomness import SeededRandomness

CENTER, SIDE_KM, CELLS, SEEDS = (40.74, -73.98), 20.0, 16, 5


def one_each(path: Path, seed: int) -> Vector:
    """Return latitude and longitude of one check-in per person; others move to the map's edge."""
    with np.load(path) as data:
        users, places = data["user"], np.column_stack((data["lat"], data["lon"]))
    order = np.random.default_rng(seed).permutation(len(users))
    _, first = np.unique(users[order], return_index=True)
    return np.asarray(places[order[first]])


def measured(path: Path, bits: int, epsilon: float) -> tuple[float, float, float]:
    """Return share in a wrong cell, error of the mean location and its interval's width."""
    rows = []
    for seed in range(SEEDS):
        places = one_each(path, seed)
        question = question_for(
            "location", centre=CENTER, side_km=SIDE_KM, epsilon=epsilon, bits=bits, cells=CELLS
        )
        found = ask(question, [places], SeededRandomness(seed))
        at = question.area.places(*places.T)  # type: ignore[attr-defined]
        edges = np.linspace(-SIDE_KM / 2.0, SIDE_KM / 2.0, CELLS + 1)
        true = np.histogram2d(at[:, 0], at[:, 1], bins=(edges, edges))[0] / len(at)
        wrong = 0.5 * np.abs(np.asarray(found.details["density"]) - true).sum()
        east, north = found.numbers[:2]
        error = np.hypot(east.estimate - at[:, 0].mean(), north.estimate - at[:, 1].mean())
        widths = [one.interval[1] - one.interval[0] for one in (east, north) if one.interval]
        rows.append((wrong, error, float(np.mean(widths))))
    wrong, error, width = np.mean(rows, axis=0)
    return float(wrong), float(error), float(width)


def main(path: Path) -> None:
    print(f"{len(one_each(path, 0)):,} people")
    for bits in (2, 3, 4):
        for epsilon in (0.5, 1.0, 2.0, 4.0):
            wrong, error, width = measured(path, bits, epsilon)
            print(f"| {2 * bits} | {epsilon:g} | {wrong:.3f} | {error:.3f} | {width:.3f} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
