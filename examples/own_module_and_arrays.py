"""Train your own module on your own arrays, as in a notebook."""

from sklearn.datasets import load_digits
from torch import nn

import sottovoce

x, y = load_digits(return_X_y=True)
spec = {
    "rounds": 20,
    "data": {"clients": 20},
    "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0, "server_momentum": 0.5},
    "privacy": {"level": "sample", "clip_norm": 1.0, "epsilon": 8.0, "delta": 1e-5},
    "mechanism": {"kind": "gauss_hermite", "levels": 2},
}
network = nn.Sequential(nn.Linear(64, 24), nn.SiLU(), nn.Linear(24, 10))
print(sottovoce.simulate(spec, model=network, data=(x / 16, y)))
