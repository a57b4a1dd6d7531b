"""Designs as pictures."""

import numpy as np

from sottovoce.design.store import Design
from sottovoce.reporting.heatmap import Panel


def matrix_panel(name: str, design: Design) -> Panel:
    """A design as it is drawn: on [0, 1], letters in rising order."""
    order = np.argsort(design.channel.letters)
    return Panel(
        name=name,
        inputs=design.channel.knots.tolist(),
        letters=design.channel.letters[order].tolist(),
        matrix=design.channel.rows[:, order].tolist(),
    )
