"""Train your own torch.nn.Module (without batch normalization), which a spec names."""

from pathlib import Path

from torch import nn

import sottovoce


def network(input_shape: tuple[int, ...], num_outputs: int, hidden: int) -> nn.Module:
    """Return the module for samples of this shape; `hidden` comes from the spec's `arguments`."""
    (features,) = input_shape
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.GroupNorm(4, hidden),
        nn.SiLU(),
        nn.Linear(hidden, num_outputs),
    )


if __name__ == "__main__":
    print(sottovoce.simulate(Path(__file__).with_name("own_model.toml"), allow_code=True))
