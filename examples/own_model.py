"""A model of one's own: any torch.nn.Module without batch normalisation, named in a spec."""

import sys
import tempfile
from pathlib import Path

from torch import nn


def network(input_shape: tuple[int, ...], num_outputs: int, hidden: int) -> nn.Module:
    """Called with the data's shape, the number of outputs, and the spec's `arguments`."""
    (features,) = input_shape
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.GroupNorm(4, hidden),
        nn.SiLU(),
        nn.Linear(hidden, num_outputs),
    )


if __name__ == "__main__":
    from sottovoce.config.loading import load
    from sottovoce.experiments.runner import run

    here = Path(__file__).parent
    sys.path.insert(0, str(here))  # where the factory is imported from
    with tempfile.TemporaryDirectory() as folder:
        result = run(load(here / "own_model.toml", []), Path(folder) / "run")
    print(f"accuracy {result['accuracy']:.3f} at epsilon {result['epsilon']:.2f}, one bit each")
