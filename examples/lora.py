"""Train low-rank adapters of a small language model with privacy for each sentence.

A transformer is trained in public on one made-up language. The clients speak another one. Each
trains adapters (LoRA) of the model, whose weights stay frozen: only the adapters are sent, a tenth
of this model and far less of a large one. Needs `pip install peft`.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

import sottovoce

VOCABULARY, LENGTH, WIDTH = 16, 8, 32
Tokens = NDArray[np.int64]


class Block(nn.Module):
    """Self-attention to earlier positions, and two layers for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.mixed = nn.Linear(WIDTH, WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        parts = self.queries_keys_values(self.first(values)).chunk(3, dim=-1)
        scores = parts[0] @ parts[1].transpose(-1, -2) / WIDTH**0.5
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        seen = scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ parts[2]
        values = values + self.mixed(seen)
        hidden = nn.functional.gelu(self.inner(self.second(values)))
        return values + self.outer(hidden)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Predicts the next token at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        self.blocks = nn.Sequential(Block(), Block())
        self.last = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.blocks(self.tokens(tokens) + self.places))  # type: ignore[no-any-return]


def sentences(step: int, count: int, seed: int) -> tuple[Tokens, Tokens]:
    """Return tokens that grow by `step`, seven times in eight, and the next token of each place."""
    generator = np.random.default_rng(seed)
    steps = np.where(generator.random((count, LENGTH + 1)) < 0.875, step, 0)
    tokens = (generator.integers(VOCABULARY, size=(count, 1)) + steps.cumsum(axis=1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def pretrained(steps: int = 150) -> nn.Module:
    """Train the transformer on the public language, in which tokens grow by 1."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for number in range(steps):
        features, labels = (torch.from_numpy(part) for part in sentences(1, 64, seed=number))
        loss = nn.functional.cross_entropy(model(features).transpose(1, 2), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def spec(rounds: int = 20) -> dict[str, object]:
    """Return the spec: 100 clients, and epsilon 8 for each sentence."""
    return {
        "name": "lora",
        "rounds": rounds,
        "randomness": "seeded",
        "data": {"clients": 100},
        "algorithm": {"kind": "fedavg", "server_learning_rate": 0.5, "server_momentum": 0.9},
        "privacy": {"level": "sample", "clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5},
        "mechanism": {"kind": "auto"},
        "channel": {"kind": "secure_sum", "minimum_clients": 100},
    }


def main() -> None:
    torch.manual_seed(1)
    layers = ["queries_keys_values", "mixed", "inner", "outer"]
    model = get_peft_model(pretrained(), LoraConfig(r=2, target_modules=layers))
    x_train, y_train = sentences(3, 1000, seed=10_000)
    x_test, y_test = sentences(3, 500, seed=10_001)
    run = sottovoce.simulate(spec(), model=model, data=(x_train, y_train, x_test, y_test))
    print(run)
    print(f"{len(run.model):,} of {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
