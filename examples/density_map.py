"""Draw a density map of people from eight private bits each, without learning any position."""

import numpy as np

from sottovoce import Adjacency, SystemRandomness
from sottovoce.analytics import SquareMap, density_map, mechanism_for, privatize_places
from sottovoce.privacy import MetricDp

PEOPLE, CELLS = 3000, 6


def main() -> None:
    area = SquareMap(latitude=45.07, longitude=7.69, side_km=10.0)
    generator = np.random.default_rng(0)
    towns = np.array([[45.05, 7.66], [45.09, 7.73]])[generator.integers(2, size=PEOPLE)]
    places = area.places(*(towns + 0.008 * generator.normal(size=(PEOPLE, 2))).T)

    mechanism = mechanism_for(area, epsilon_per_km=2.0, bits=4)
    # Only the codes leave the clients.
    codes = privatize_places(mechanism, places, SystemRandomness(), batch="today")
    event = mechanism.privacy(Adjacency.REPLACE_ONE)
    assert isinstance(event, MetricDp)
    print(f"epsilon 2 per km between any two places; {event.pure().epsilon:.1f} across the map")
    density = density_map(mechanism, codes, cells=CELLS)
    for row in density.T[::-1]:  # north on top
        print("  ".join(f"{100 * share:4.1f}%" for share in row))


if __name__ == "__main__":
    main()
