"""A federated classification task: a module, clients' data, and gradients for many clients at once.

Models travel as flat float64 vectors; inside, torch works in the module's own precision.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from sottovoce.domains import Vector
from sottovoce.errors import ParameterError

# Gradients held at once: bounds the memory of a round whatever the number of clients.
MAX_GRADIENT_ELEMENTS = 1 << 25


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientData:
    """One client's samples."""

    name: str
    features: Tensor
    labels: Tensor

    @property
    def num_samples(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Performance on the held-out test data."""

    accuracy: float
    loss: float


class Task:
    """The module's structure, its flat layout, and the test data."""

    def __init__(self, module: nn.Module, test_features: Tensor, test_labels: Tensor) -> None:
        if any(True for _ in module.buffers()):
            raise ParameterError(
                "the model has buffers (batch normalisation?), which mix samples and leave the "
                "client unprivatised; use group normalisation"
            )
        self._module = module
        self._shapes = {name: p.shape for name, p in module.named_parameters()}
        self._test_features, self._test_labels = test_features, test_labels

    @property
    def dimension(self) -> int:
        return sum(shape.numel() for shape in self._shapes.values())

    def initial_model(self) -> Vector:
        flat = torch.cat([p.detach().reshape(-1) for p in self._module.parameters()])
        return flat.to(torch.float64).numpy().copy()

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor, in the order of the flat vector."""
        return {name: tuple(shape) for name, shape in self._shapes.items()}

    def evaluate(self, model: Vector) -> Evaluation:
        with torch.no_grad():
            logits = self._logits(self._unflatten(self._tensor(model)), self._test_features)
            loss = float(cross_entropy(logits, self._test_labels))
            accuracy = float((logits.argmax(dim=1) == self._test_labels).double().mean())
        return Evaluation(accuracy=accuracy, loss=loss)

    def sample_gradients(
        self, model: Vector, clients: Sequence[ClientData]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(each row's client, per-sample gradients as rows), all clients at once, in chunks."""

        def sample_loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(self._logits(parameters, x[None]), y[None])

        per_sample = vmap(grad(sample_loss), in_dims=(None, 0, 0))
        parameters = self._unflatten(self._tensor(model))
        owners = torch.repeat_interleave(
            torch.arange(len(clients)), torch.tensor([c.num_samples for c in clients])
        )
        features = torch.cat([c.features for c in clients])
        labels = torch.cat([c.labels for c in clients])
        rows = max(1, MAX_GRADIENT_ELEMENTS // self.dimension)
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            gradients = per_sample(parameters, features[part], labels[part])
            yield owners[part], self._flatten(gradients)

    def local_models(
        self,
        model: Vector,
        clients: Sequence[ClientData],
        *,
        steps: int,
        learning_rate: float,
        proximal_weights: Sequence[float] | None = None,
    ) -> Iterator[tuple[int, Tensor]]:
        """(client's position, its model after full-batch steps), clients trained side by side.

        Each client's loss has (its proximal weight/2) |w - model|^2 added to it.
        """

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
            losses = cross_entropy(self._logits(parameters, x), y, reduction="none")
            return (losses * mask).sum() / mask.sum()

        step = vmap(grad(loss))
        start_model = self._unflatten(self._tensor(model))
        together = max(1, MAX_GRADIENT_ELEMENTS // (4 * self.dimension))
        weights = [0.0] * len(clients) if proximal_weights is None else proximal_weights
        for start in range(0, len(clients), together):
            group = clients[start : start + together]
            x, y, mask = _padded(group)
            models = {n: t.expand(len(group), *t.shape) for n, t in start_model.items()}
            pull = torch.tensor(weights[start : start + together])
            for _ in range(steps):
                gradients = step(models, x, y, mask)
                if pull.any():
                    for name, origin in start_model.items():
                        strength = pull.reshape(-1, *[1] * origin.ndim)
                        gradients[name] = gradients[name] + strength * (models[name] - origin)
                models = {n: models[n] - learning_rate * gradients[n] for n in models}
            for offset, row in enumerate(self._flatten(models)):
                yield start + offset, row

    def _logits(self, parameters: dict[str, Tensor], features: Tensor) -> Tensor:
        logits: Tensor = functional_call(self._module, parameters, (features,))
        return logits

    def _tensor(self, model: Vector) -> Tensor:
        return torch.as_tensor(model, dtype=torch.float32)

    def _unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        pieces = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        return {
            name: piece.reshape(shape)
            for piece, (name, shape) in zip(pieces, self._shapes.items(), strict=True)
        }

    def _flatten(self, batched: dict[str, Tensor]) -> Tensor:
        """Rows of flat parameters from tensors with a leading batch dimension."""
        return torch.cat([batched[name].flatten(start_dim=1) for name in self._shapes], dim=1)


def _padded(clients: Sequence[ClientData]) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels and mask of several clients, padded with zeros to the same length."""
    pad = torch.nn.utils.rnn.pad_sequence
    features = pad([c.features for c in clients], batch_first=True)
    labels = pad([c.labels for c in clients], batch_first=True)
    mask = pad([torch.ones(c.num_samples) for c in clients], batch_first=True)
    return features, labels, mask
