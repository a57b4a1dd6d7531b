"""Charts of designs, and of density maps as SVG or PNG."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import files
from sottovoce.core.charts.grids import HeatMap, MapPanel, Panel, png
from sottovoce.core.charts.style import standalone
from sottovoce.mechanisms.design.store import Design

_PIXELS = 512  # the approximate side of a PNG
_LIGHT, _DARK = np.array([253.0, 252.0, 249.0]), np.array([29.0, 111.0, 184.0])


def draw(path: Path, density: Sequence[Sequence[float]], *, side_km: float, title: str) -> None:
    """Draw a density map into an SVG or PNG file, with north up.

    Args:
        path: The file; a name that ends in .png gives a PNG, any other an SVG.
        density: The share of people in each cell; density[i][k] is the cell i-th from the west and
            k-th from the south.
        side_km: The side of the map in km.
        title: The title of the SVG; a PNG has none.
    """
    from_north = np.asarray(density, dtype=np.float64).T[::-1]
    if path.suffix == ".png":
        files.write_atomic(path, png(_pixels(from_north)))
        return
    name = f"{side_km:g} km on each side, north is up"
    panel = MapPanel(name=name, matrix=[[float(x) for x in row] for row in from_north])
    files.write_atomic(path, standalone(HeatMap(title=title, panels=[panel]).svg()).encode())


def _pixels(matrix: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return an image from the background color for 0 to the darkest for the largest density."""
    share = (matrix / matrix.max())[..., None]
    colored = (_LIGHT + share * (_DARK - _LIGHT)).round().astype(np.uint8)
    scale = max(1, _PIXELS // len(matrix))
    return np.ascontiguousarray(colored.repeat(scale, axis=0).repeat(scale, axis=1))


_CONTINUOUS_ROWS = 33  # inputs that are drawn where the inputs are an interval


def matrix_panel(name: str, design: Design) -> Panel:
    """Return the panel that shows the table of a designed mechanism with inputs in [0, 1].

    Its columns are the letters (the decoded values of codes) in increasing order, its rows the
    design's inputs, or 33 evenly spaced ones if any input is accepted; a cell is the probability of
    the letter given the input.

    Args:
        name: The panel's title.
        design: The design.
    """
    channel = design.channel
    order = np.argsort(channel.letters)
    inputs = channel.knots if design.spec.inputs else np.linspace(0.0, 1.0, _CONTINUOUS_ROWS)
    return Panel(
        name=name,
        inputs=inputs.tolist(),
        letters=channel.letters[order].tolist(),
        matrix=channel.at(inputs)[:, order].tolist(),
    )


def matrix_chart(design: Design) -> HeatMap:
    """Return the chart of one design: the probability of each letter given each input.

    A letter is the decoded value of a code; see `matrix_panel`.
    """
    name = f"epsilon = {design.spec.epsilon:g}"
    return HeatMap(
        title="Probability of each letter (columns) given the input (rows, 0 on top)",
        panels=[matrix_panel(name, design)],
    )
