"""What training gives to be privatised: every vector that will leave a client, finite."""

from collections.abc import Sequence

import numpy as np
import torch

from sottovoce.federated.algorithms.algorithm import Algorithm, Step
from sottovoce.learning.clients import ClientData
from sottovoce.learning.rows import Rows
from sottovoce.learning.task import Task


def finite_uplinks(
    algorithm: Algorithm, task: Task, clients: Sequence[ClientData], step: Step
) -> list[tuple[int, int, np.ndarray]]:
    """Every vector that will leave some clients: whose it is, which of his, and its values."""
    return [
        (block.start + i, uplink, values)
        for block in algorithm.client_steps(task, clients, step)
        for uplink, rows in enumerate(block.uplinks)
        for i, values in enumerate(finite_rows(rows))
    ]


def finite_rows(rows: Rows) -> list[np.ndarray]:
    """The rows in float64; a diverged client's is zero: an error would tell about its data."""
    found = []
    for block in rows.blocks(len(rows)):
        values = block.to("cpu", torch.float64).numpy()
        bad = ~np.isfinite(values).all(axis=1)
        if bad.any():
            values = np.where(bad[:, None], 0.0, values)
        found += list(values)
    return found
