"""Local DP-SGD of many clients at once, for simulations that send no messages.

The models of a group of clients are the rows of a matrix, and one step moves all of them. Samples
of records, random changes of images and noise are drawn with torch's generators on the task's
device. On a CUDA device the clipped sums of a step are captured as a CUDA graph.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sottovoce.core.domains import ROUNDING_HEADROOM, SteppedBall, SteppedL2Ball
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.simulation.draws import draw_rows, law_of
from sottovoce.learning.augmentation import changed_images
from sottovoce.learning.captured import CapturedFunction
from sottovoce.learning.clients import ClientData, Clients, names_of, samples_of, sizes_of
from sottovoce.learning.ghost_norms import GhostSums
from sottovoce.learning.task import Task
from sottovoce.mechanisms.mechanism import Mechanism

if TYPE_CHECKING:
    from sottovoce.federated.algorithms.noisy_steps import NoisyLocalSteps

# Numbers that the gradients of a step take at once, and that samples of several steps do.
_TOGETHER_ON_CPU = 1 << 24
_SHARE_OF_GPU = 0.25
_SAMPLED = {"cpu": 1 << 20, "cuda": 1 << 25}
# The widths of samples are multiples of a power of two of about this share of them, so that few
# shapes occur and graphs are used again.
_WIDTH_SHARE = 1 / 16
_SEEN_BEFORE_CAPTURE = 1


def noisy_models(
    work: "NoisyLocalSteps",
    task: Task,
    clients: Sequence[ClientData],
    mechanisms: Sequence[Mechanism],
    step: ClientStepInput,
) -> Iterator[tuple[int, Tensor]]:
    """Yield the models of clients after their noisy steps, several clients at once.

    Args:
        work: What a client computes.
        task: The model and its loss.
        clients: The clients.
        mechanisms: The mechanism of each client's steps.
        step: The round and the model that all start from.

    Yields:
        The position of a group's first client, and the models of its clients as rows.
    """
    assert isinstance(step.randomness, SeededRandomness), "simulations without messages are seeded"
    width = max(map(_expected_width, mechanisms))
    together = max(1, _capacity(task) // (width * _elements_per_sample(work, task)))
    for start in range(0, len(clients), together):
        part = slice(start, start + together)
        group = _Group.of(work, task, clients[part], mechanisms[part], step)
        with task.layers_of(clients[part]):
            models = group.train(task.tensor(step.model))
        yield start, models


def _expected_width(mechanism: Mechanism) -> int:
    domain = mechanism.input_domain
    assert isinstance(domain, SteppedBall), "the algorithm made the domain"
    return domain.records


def _ghost_sums(work: "NoisyLocalSteps", task: Task) -> GhostSums | None:
    plain = work.geometry == "l2" and not work.normalizes
    return task.ghost_sums if plain else None


def _elements_per_sample(work: "NoisyLocalSteps", task: Task) -> int:
    ghost = _ghost_sums(work, task)
    return task.elements_per_sample if ghost is None else ghost.elements_per_sample


def _capacity(task: Task) -> int:
    if task.device.type != "cuda":
        return _TOGETHER_ON_CPU
    free, _ = torch.cuda.mem_get_info(task.device)
    return int(free * _SHARE_OF_GPU) // 4


def _reader(
    clients: Sequence[ClientData], device: torch.device
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return a function from positions of records to their features, and all labels.

    Positions count the records of all clients, one client after the other. On a CPU only the
    records of a sample are read: a round may use a small part of data that are on disk.
    """
    if isinstance(clients, Clients) and device.type == "cpu":
        rows = torch.from_numpy(clients.rows)

        def read(places: Tensor) -> Tensor:
            found = clients.features_of(rows[places.flatten()].numpy())
            return found.reshape(*places.shape, *found.shape[1:])

        return read, clients.labels_of(clients.rows)
    features, labels = (part.to(device) for part in samples_of(clients))
    return features.__getitem__, labels


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Clients that take their steps together, with their records on the task's device."""

    work: "NoisyLocalSteps"
    learning_rate: float
    task: Task
    features_of: Callable[[Tensor], Tensor]  # The features of some records, by their positions.
    labels: Tensor
    sizes: Tensor
    starts: Tensor
    rates: Tensor
    steps: Tensor
    expected: Tensor  # (clients, 1): the number by which a sum is divided.
    radii: Tensor | None  # (clients, 1): the norm that a mean is projected to, in L2.
    pulls: Tensor | None
    mechanisms: Sequence[Mechanism]
    generator: torch.Generator
    of_changes: torch.Generator  # For random changes of images.

    @classmethod
    def of(
        cls,
        work: "NoisyLocalSteps",
        task: Task,
        clients: Sequence[ClientData],
        mechanisms: Sequence[Mechanism],
        step: ClientStepInput,
    ) -> "_Group":
        """Return the group of some clients, with their records on the task's device.

        Args:
            work: What a client computes.
            task: The model and its loss.
            clients: The clients.
            mechanisms: The mechanism of each client's steps.
            step: The round and the model that all start from.

        Returns:
            The group.
        """
        device = task.device
        features_of, labels = _reader(clients, device)
        sizes = torch.tensor(sizes_of(clients), device=device)
        domains = [mechanism.input_domain for mechanism in mechanisms]
        stepped = [domain for domain in domains if isinstance(domain, SteppedBall)]
        expected = [round(one.records * work.clip_norm / one.radius) for one in stepped]
        pulls = work.pulls(clients)
        assert isinstance(step.randomness, SeededRandomness)
        label = (step.run, step.round, names_of(clients[:1])[0])
        generators = [
            torch.Generator(device=device).manual_seed(
                int(step.randomness.generator(what, *label).integers(2**62))
            )
            for what in ("local steps", "local augmentation")
        ]
        return cls(
            work=work,
            learning_rate=work.learning_rate_of(step.round),
            task=task,
            features_of=features_of,
            labels=labels,
            sizes=sizes,
            starts=sizes.cumsum(0) - sizes,
            rates=torch.tensor([one.sampling_rate for one in stepped], device=device),
            steps=torch.tensor([one.steps for one in stepped], device=device),
            expected=torch.tensor(expected, dtype=torch.float32, device=device)[:, None],
            radii=torch.tensor([one.radius for one in stepped], device=device)[:, None]
            * (1.0 - ROUNDING_HEADROOM)
            if all(isinstance(one, SteppedL2Ball) for one in stepped)
            else None,
            pulls=torch.tensor(pulls, device=device)[:, None] if any(pulls) else None,
            mechanisms=mechanisms,
            generator=generators[0],
            of_changes=generators[1],
        )

    def train(self, origin: Tensor) -> Tensor:
        """Return the models after all steps."""
        models = origin.expand(len(self.sizes), -1).clone()
        rows = self.work.optimizer.start(models, learning_rate=self.learning_rate)
        first_stop, last = int(self.steps.min()), int(self.steps.max())
        most = int(self.sizes.max()) * len(self.sizes)
        together = max(1, _SAMPLED.get(self.task.device.type, 1 << 20) // most)
        for first in range(0, last, together):
            numbers = torch.arange(first, min(last, first + together), device=models.device)
            for number, (chosen, share) in zip(
                numbers.tolist(), self._samples(numbers), strict=True
            ):
                direction = self._noisy(self._means(rows.models, chosen, share))
                if self.pulls is not None:
                    direction = direction + self.pulls * (rows.models - origin)
                rows.step(direction, None if number < first_stop else self.steps[:, None] > number)
        return rows.models

    def _samples(self, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows of the records of each step, and 1 where such a row is in the sample.

        Both are (clients, width); the width is about that of the largest sample of the step.
        """
        longest = int(self.sizes.max())
        shape = (len(numbers), len(self.sizes), longest)
        draws = torch.rand(shape, generator=self.generator, device=self.task.device)
        own = torch.arange(longest, device=draws.device) < self.sizes[:, None]
        inside = (draws < self.rates[:, None]) & own
        largest = inside.sum(dim=2).amax(dim=1).tolist()
        grain = 1 << max(0, int(max(largest) * _WIDTH_SHARE).bit_length() - 1)
        widths = [min(longest, -(-max(one, 1) // grain) * grain) for one in largest]
        order = inside.to(torch.uint8).argsort(dim=2, descending=True, stable=True)
        order = order[:, :, : max(widths)]
        shares = inside.gather(2, order).float()
        # Padded places repeat the first record, which may belong to the client only.
        places = torch.where(shares > 0, order, 0) + self.starts[:, None]
        for step, width in enumerate(widths):
            yield places[step, :, :width], shares[step, :, :width]

    def _means(self, models: Tensor, places: Tensor, shares: Tensor) -> Tensor:
        """Return each client's sum of clipped gradients, divided by the expected number."""
        width = places.shape[1]
        elements = _elements_per_sample(self.work, self.task)
        most = max(1, _capacity(self.task) // (len(models) * elements))
        totals = torch.zeros_like(models)
        for start in range(0, width, most):
            part = slice(start, start + most)
            features = self._images(places[:, part])
            labels = self.labels[places[:, part]]
            share = shares[:, part].contiguous()
            totals = totals + self._sums(models, features, labels, share)
        means = totals / self.expected
        if self.radii is None:
            return means
        norms = torch.linalg.vector_norm(means, dim=1, keepdim=True)
        return means * torch.clamp(self.radii / norms, max=1.0)

    def _images(self, places: Tensor) -> Tensor:
        """Return the features of some records, each with its own random change."""
        features, augmentation = self.features_of(places), self.work.augmentation
        if augmentation is None:
            return features
        shape, device = places.shape, places.device
        draws = torch.randint(1 << 32, shape, generator=self.of_changes, device=device)
        return changed_images(features, augmentation.changes(draws))

    def _sums(self, *given: Tensor) -> Tensor:
        function = self._function(given)
        return function(*given)

    def _clipped_sums(
        self, models: Tensor, features: Tensor, labels: Tensor, shares: Tensor
    ) -> Tensor:
        work = self.work
        ghost = _ghost_sums(work, self.task)
        if ghost is not None:
            every = zip(models, features, labels, shares, strict=True)
            return torch.stack([ghost.clipped_total(*one, work.limit) for one in every])
        found = self.task.stacked_gradients(models, features, labels)
        totals = found.clipped_totals(
            work.limit, shares[:, None], work.geometry, normalizes=work.normalizes
        )
        return totals[:, 0]

    def _function(self, given: Sequence[Tensor]) -> Callable[..., Tensor]:
        """Return the function of clipped sums, captured if these shapes came before."""
        if self.task.device.type != "cuda" or self.work.kept.get("failed"):
            return self._clipped_sums
        key = (id(self.task), *((tensor.shape, tensor.dtype) for tensor in given))
        known = self.work.kept.get(key, 0)
        if isinstance(known, CapturedFunction):
            return known
        self.work.kept[key] = known + 1
        if known < _SEEN_BEFORE_CAPTURE:
            return self._clipped_sums
        try:
            pool = self.work.kept.setdefault("pool", torch.cuda.graph_pool_handle())
            captured = CapturedFunction(self._clipped_sums, given, pool)
            self.work.kept[key] = captured
        except RuntimeError as error:
            self.work.kept["failed"] = True
            warnings.warn(
                "local steps take longer, because they could not be captured as a CUDA graph "
                f"({str(error).splitlines()[0]}); remove copies to the CPU from the module",
                stacklevel=2,
            )
            return self._clipped_sums
        return captured

    def _noisy(self, means: Tensor) -> Tensor:
        """Return what the mechanism of each client would decode of its mean."""
        distinct = {id(mechanism): mechanism for mechanism in self.mechanisms}
        if len(distinct) == 1:
            return draw_rows(law_of(self.mechanisms[0]), means, self.generator)
        found = torch.empty_like(means)
        for key, mechanism in distinct.items():
            own = [i for i, one in enumerate(self.mechanisms) if id(one) == key]
            found[own] = draw_rows(law_of(mechanism), means[own], self.generator)
        return found
