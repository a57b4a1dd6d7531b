"""Designs as pictures.

A density map as a picture: SVG, or PNG for programs that take no SVG.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import files
from sottovoce.core.charts.grids import HeatMap, MapPanel, Panel, png
from sottovoce.core.charts.style import standalone
from sottovoce.mechanisms.design.store import Design

_PIXELS = 512  # about: the side of a PNG
_LIGHT, _DARK = np.array([253.0, 252.0, 249.0]), np.array([29.0, 111.0, 184.0])


def draw(path: Path, density: Sequence[Sequence[float]], *, side_km: float, title: str) -> None:
    """density[i][k] is the cell i-th from the west and k-th from the south."""
    from_north = np.asarray(density, dtype=np.float64).T[::-1]
    if path.suffix == ".png":
        files.write_atomic(path, png(_pixels(from_north)))
        return
    name = f"{side_km:g} km to a side, the north above"
    panel = MapPanel(name=name, matrix=[[float(x) for x in row] for row in from_north])
    files.write_atomic(path, standalone(HeatMap(title=title, panels=[panel]).svg()).encode())


def _pixels(matrix: NDArray[np.float64]) -> NDArray[np.uint8]:
    """From the page's colour for nobody to full ink for the fullest cell."""
    share = (matrix / matrix.max())[..., None]
    coloured = (_LIGHT + share * (_DARK - _LIGHT)).round().astype(np.uint8)
    scale = max(1, _PIXELS // len(matrix))
    return np.ascontiguousarray(coloured.repeat(scale, axis=0).repeat(scale, axis=1))


_CONTINUOUS_ROWS = 33  # inputs drawn where every input is one


def matrix_panel(name: str, design: Design) -> Panel:
    """A design as it is drawn: on [0, 1], letters in rising order, inputs evenly spaced."""
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
    """One design's matrix and alphabet."""
    name = f"epsilon = {design.spec.epsilon:g}"
    return HeatMap(
        title="Probability of each letter (columns) given the input (rows, 0 on top)",
        panels=[matrix_panel(name, design)],
    )
