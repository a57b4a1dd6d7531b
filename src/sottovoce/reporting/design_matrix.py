"""Designs as pictures."""

import numpy as np

from sottovoce.core.charts.heatmap import HeatMap, Panel
from sottovoce.mechanisms.design.store import Design

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
