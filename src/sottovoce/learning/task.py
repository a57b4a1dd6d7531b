"""A federated task: a module, its objective, and gradients for many clients at once.

Models are passed as flat float64 vectors; torch computes in float32, on the task's device.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sottovoce.core.domains import Floats, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Randomness
from sottovoce.learning.clients import (
    ClientData,
    Clients,
    DenseRows,
    OuterRows,
    Rows,
    as_inputs,
    have_one_sample,
    names_of,
    samples_of,
    sizes_of,
)
from sottovoce.learning.flat_layout import FlatLayout, digest_of_fixed, initial_vector
from sottovoce.learning.ghost_norms import GhostSums
from sottovoce.learning.layer_gradients import (
    DenseStack,
    GradientStack,
    chain_of,
    layer_gradients,
    stacked_gradients,
    stacked_outputs,
)
from sottovoce.learning.layer_randomness import LayerRandomness
from sottovoce.learning.local_training import LocalTrainer, copy_to
from sottovoce.learning.minibatches import Minibatches
from sottovoce.learning.model_steps import StepSettings
from sottovoce.learning.models.modules import (
    FlatLinear,
    check_module,
    draws_random_numbers,
    inputs_of_last_linear,
    logits_of,
)
from sottovoce.learning.objectives import Kind, Objective
from sottovoce.learning.optimizers import PLAIN_SGD, OptimizerSettings
from sottovoce.learning.precision import Precision, computing_in
from sottovoce.learning.stacked_models import ModuleOrder, StackForm
from sottovoce.mechanisms.kernels import cuda

if TYPE_CHECKING:  # It needs Triton.
    from sottovoce.learning.cuda_outputs import ChannelsLast

# How many numbers of gradients are held at once. It bounds the memory of a round for any number of
# clients.
MAX_GRADIENT_ELEMENTS = 1 << 25
_LARGE_NETWORK = 1 << 20  # From this many parameters on, gradients of single samples are not made.
_TIMES_ON_GPU = 16  # Many small kernels cost more time on a GPU than larger ones.
_EVALUATED_TOGETHER = 1024
_DIGESTED_ROWS = 1000
_KEPT_BYTES = 1 << 28
_ROWS_OF_OPTIMIZER = 5  # Its state for a model, at most three rows, and copies in a step.


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Performance on the held-out test data.

    Attributes:
        metrics: The figures by name, the most important one first.
        loss: The mean over samples of the objective's loss, such as the cross-entropy (in nats).
    """

    metrics: Mapping[str, float]
    loss: float

    @property
    def score_name(self) -> str:
        """The name of the most important figure, such as "accuracy" or "R-squared"."""
        return next(iter(self.metrics))

    @property
    def score(self) -> float:
        """The most important figure: the fraction of correct labels, or R-squared."""
        return self.metrics[self.score_name]


class Task:
    """A module with its flat layout, its objective and the test data.

    Args:
        module: The torch module to train. It is moved to the device.
        test_features: Features of the test data, one row for each sample.
        test_labels: Labels of the test data: classes, or for a regression a row of targets for each
            sample.
        objective: The loss and the figures of an evaluation, or what the labels are:
            "classification" (cross-entropy loss), "regression" (squared loss) or another kind.
        device: The torch device to compute on.
        one_by_one: Whether clients are always trained one after the other, never many at once.
        precision: The precision of products in training on a CUDA device; norms and sums of
            gradients that are clipped are float32 in any case.

    Raises:
        ParameterError: The module cannot be trained, as `models.modules.check_module` decides.

    Attributes:
        device: The torch device to compute on.
        objective: What the labels are, such as "classification" or "regression".
        precision: The precision of products in training on a CUDA device; norms and sums of
            gradients that are clipped are float32 in any case.
    """

    def __init__(
        self,
        module: nn.Module,
        test_features: Tensor | NDArray[Any],
        test_labels: Tensor,
        *,
        objective: Objective | Kind = "classification",
        device: str = "cpu",
        one_by_one: bool = False,
        precision: Precision = "float32",
    ) -> None:
        check_module(module)
        self.precision = precision
        self.device = torch.device(device)
        if not isinstance(objective, Objective):
            objective = Objective(kind=objective)
        self._objective = objective
        self.objective: Kind = objective.kind
        self._flat = FlatLayout.of(module)
        # Frozen parameters count for the memory of a step, as a measure of what layers hold.
        self._num_parameters = sum(one.numel() for one in module.parameters())
        self._all_trained = all(one.requires_grad for one in module.parameters())
        self._chain = chain_of(module, test_features.shape[1:])
        self._module = module.to(self.device)
        self._in_training = [layer for layer in module.modules() if layer.training]
        self._layer_randomness: LayerRandomness | None = None
        self._test_features = self._place_test_features(test_features)
        self._test_labels = test_labels.to(self.device)
        self._trainer = LocalTrainer(self, one_by_one=one_by_one)

    @cached_property
    def dimension(self) -> int:
        """The number of trainable parameters of the module."""
        return self._flat.dimension

    @cached_property
    def is_random(self) -> bool:
        """Whether a layer draws random numbers in training, as dropout does."""
        if self._chain is not None:
            return self._chain.is_random
        return draws_random_numbers(self._module, self.test_samples(1))

    @cached_property
    def fixed_digest(self) -> str:
        """A digest of the frozen parameters and persistent buffers; empty if there are none.

        Server and sites build them from the spec, and compare this digest.
        """
        return digest_of_fixed(self._module)

    def initial_model(self) -> Vector:
        """Return the module's own trainable parameters, its initial weights, as a flat vector.

        Returns:
            A new float64 vector, in the order of `layout`.
        """
        return initial_vector(self._module)

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every trainable tensor, in the order of the flat vector."""
        return {name: tuple(shape) for name, shape in self._flat.shapes.items()}

    @property
    def is_chain(self) -> bool:
        """Whether the module is a chain of known layers, in which no sample influences another."""
        return self._chain is not None

    @property
    def has_softmax(self) -> bool:
        """Whether the loss is the cross-entropy of one class for each sample."""
        return self._objective.is_softmax

    def test_samples(self, count: int) -> Tensor:
        """Return the features of the first samples of the test data.

        Args:
            count: How many, at most.

        Returns:
            One row for each sample, on the task's device.
        """
        return self._features(self._test_features[:count])

    def inputs(self, features: NDArray[Any]) -> Tensor:
        """Return features as the model takes them, on the task's device.

        Args:
            features: One row for each sample; whole numbers only if the model takes them.

        Returns:
            A tensor of int64 or float32, of the type of the test data.
        """
        whole = self._test_features.dtype in (torch.int64, np.int64)
        return self._features(features if whole else np.asarray(features, dtype=np.float32))

    def test_digest(self, *, features: bool) -> str:
        """Return a digest that identifies the test data, as `Clients.digest` does training data.

        It detects that data differ; it does not authenticate them. It covers all labels.

        Args:
            features: Whether to include features, of at most 1000 rows.

        Returns:
            Sixteen hex digits.
        """
        labels = self._test_labels.cpu().numpy()
        hashed = hashlib.blake2b(labels.tobytes(), digest_size=8)
        if features:
            some = self._test_features[:: 1 + len(labels) // _DIGESTED_ROWS]
            hashed.update(self._features(some).cpu().numpy().tobytes())
        return hashed.hexdigest()

    # -- what the model does ---------------------------------------------------------------

    def evaluate(self, model: Floats) -> Evaluation:
        """Return loss and other figures of a model on the test data.

        Args:
            model: A flat model.

        Returns:
            All figures, over the whole test data.
        """
        parameters = self._flat.split(self.tensor(model))
        totals = []
        with torch.no_grad(), self.evaluating():
            for start in range(0, len(self._test_labels), _EVALUATED_TOGETHER):
                part = slice(start, start + _EVALUATED_TOGETHER)
                labels = self._test_labels[part]
                outputs = self._outputs(parameters, self._features(self._test_features[part]))
                losses = self._losses(outputs, labels).double().sum()
                totals.append(torch.cat([losses[None], self._objective.totals(outputs, labels)]))
        loss, *_ = sums = torch.stack(totals).sum(dim=0).cpu()
        labels = self._test_labels.cpu()
        figures = self._objective.figures(sums[1:], labels)
        return Evaluation(metrics=figures, loss=float(loss) / len(labels))

    def check_objective(self) -> None:
        """Refuse labels, losses and metrics that do not fit the model's outputs, by a trial.

        Raises:
            ParameterError: They do not fit; the message says what does.
        """
        samples, labels = self.test_samples(2), self._test_labels[:2]
        if len(labels) == 1:
            samples, labels = torch.cat([samples, samples]), torch.cat([labels, labels])
        with torch.no_grad():
            outputs = self.outputs(self.tensor(self.initial_model()), samples)
        self._objective.check(outputs, labels)

    def check_sample_gradients(self, *, exact_sums: bool) -> None:
        """Refuse modules without a gradient for each sample, by a trial on a test sample.

        Args:
            exact_sums: Whether gradients of single samples are always needed; otherwise those of
                large networks may not be (`ghost_sums`).

        Raises:
            ParameterError: The gradient of one sample cannot be computed.
        """
        if self._linear is not None or self._chain is not None:
            return
        cuda_devices = [self.device] if self.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(cuda_devices):
                self._gradients(self.initial_model(), *self.test_pairs(1))
        except Exception as error:  # The user's module may raise anything.
            if not exact_sums and self.ghost_sums is not None:
                return
            raise ParameterError(
                "sample-level privacy clips the gradient of each sample, and torch.func.vmap "
                "cannot compute this module for one sample at a time "
                f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); use "
                "torch.nn.GroupNorm in place of batch normalization, and neither branches on "
                "values nor .item() nor tensors that are changed in place, or set privacy.level = "
                "'client'"
            ) from error

    @property
    def num_test_samples(self) -> int:
        """The number of samples of the test data."""
        return len(self._test_labels)

    def trivial_score(self) -> float | None:
        """Return the score of the best constant answer on the test data.

        Returns:
            The most important figure of an evaluation: for classification the share of the most
            frequent class, for regression the R-squared of the mean, which is 0. None for a metric
            of the user.
        """
        return self._objective.trivial_score(self._test_labels)

    def evaluate_clients(
        self, model: Floats, clients: Sequence[ClientData]
    ) -> tuple[Tensor, Tensor]:
        """Return loss and score of a model on the records of each client.

        Args:
            model: A flat model.
            clients: The clients.

        Returns:
            The mean losses and the mean scores (the share of correct labels, for a regression 1 -
            the mean absolute error): two float64 tensors with one entry for each client. They are
            NaN for a client without records.
        """
        parameters = self._flat.split(self.tensor(model))
        features, labels = self._samples(clients)
        sizes = torch.tensor(sizes_of(clients), device=self.device)
        owners = torch.repeat_interleave(sizes)
        totals = torch.zeros(2, len(clients), dtype=torch.float64, device=self.device)
        # In a module of another kind one sample may influence another, which must not be one of
        # another client: a client would then move the results of others, too.
        groups = [len(labels)] if self.is_chain else sizes.tolist()
        with torch.no_grad(), self.evaluating():
            for part in _parts_of(groups, _EVALUATED_TOGETHER):
                outputs = self._outputs(parameters, features[part])
                losses = self._losses(outputs, labels[part])
                scores = self._objective.scores(outputs, labels[part])
                found = torch.stack([losses.double(), scores.double()])
                totals.index_add_(1, owners[part], found)
        losses, scores = totals / sizes
        return losses, scores

    def loss(self, flat: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a flat model on some samples, for differentiation.

        Args:
            flat: The model as a float32 tensor on the task's device.
            features: Features of the samples.
            labels: Labels of the samples.

        Returns:
            A scalar.
        """
        with self.evaluating():
            outputs = self._outputs(self._flat.split(flat), features)
        return self._losses(outputs, labels).mean()

    def gradient(self, flat: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient of the mean loss in training, with a small use of memory.

        Args:
            flat: The model as a float32 tensor on the task's device.
            features: Features of the samples.
            labels: Labels of the samples.

        Returns:
            A new flat tensor.
        """
        parameters = self.parameters_of(flat)
        with torch.enable_grad():
            loss = self._losses(self._outputs(parameters, features), labels).mean()
        pieces = [*parameters.values()]
        found = torch.autograd.grad(loss, pieces, allow_unused=True, materialize_grads=True)
        return self._flat.join(dict(zip(parameters, found, strict=True)))

    def outputs(self, flat: Tensor, features: Tensor) -> Tensor:
        """Return the outputs of a flat model for some samples; for a classification, the logits.

        Args:
            flat: The model as a float32 tensor on the task's device.
            features: Features of the samples.

        Returns:
            One row for each sample.
        """
        with self.evaluating():
            return self._outputs(self._flat.split(flat), features)

    def embeddings(self, flat: Tensor, features: Tensor) -> Tensor:
        """Return the inputs of the last linear layer: the penultimate representation.

        Args:
            flat: The model as a float32 tensor on the task's device.
            features: Features of the samples.

        Returns:
            One row for each sample.

        Raises:
            ParameterError: The module has no linear layer, or its last one has another number of
                outputs than the module.
        """
        return inputs_of_last_linear(self._module, lambda: self.outputs(flat, features))

    def tensor(self, model: Floats) -> Tensor:
        """Return a flat model as a float32 tensor on the task's device.

        Args:
            model: A flat model.

        Returns:
            The tensor, which must not be written to: it may share the memory of the model.
        """
        given = np.asarray(model, dtype=np.float32)
        if self.device.type == "cpu" and given.flags.writeable and given.flags.c_contiguous:
            return torch.from_numpy(given)  # Large models are not copied.
        return copy_to(given, self.device)

    # -- layers that compute something else in training -----------------------------------

    def seed_layers(self, randomness: Randomness, run: str, number: int) -> None:
        """Draw what random layers need in a round from the clients' own randomness.

        Args:
            randomness: The clients' own randomness.
            run: Name of the run.
            number: The round.
        """
        self._layer_randomness = LayerRandomness(randomness, run, number)

    def layers_of(self, clients: Sequence[ClientData]) -> AbstractContextManager[None]:
        """Return a context in which random layers draw from the randomness of these clients.

        Args:
            clients: The clients that are trained inside it.

        Returns:
            The context; it does nothing for a module without random layers.
        """
        if self._layer_randomness is None or not len(clients) or not self.is_random:
            return nullcontext()
        return self._layer_randomness.of_client(names_of(clients)[0])

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put all layers into eval mode, in which dropout does nothing, inside the block."""
        for layer in self._in_training:
            layer.training = False
        try:
            yield
        finally:
            for layer in self._in_training:
                layer.training = True

    # -- gradients -------------------------------------------------------------------------

    def sample_gradients(
        self, model: Floats, clients: Sequence[ClientData], chosen: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Yield the unclipped gradient of each sample's loss, in chunks that bound the memory.

        Args:
            model: A flat model.
            clients: The clients whose samples are used.
            chosen: A boolean mask over all clients' samples, one client after the other; None for
                all samples.

        Yields:
            (owners, gradients) of some samples, in the order of the clients: the position of each
            sample's client in `clients`, and one row of gradients for each sample.
        """
        features, labels = samples_of(clients)
        owners = torch.repeat_interleave(
            torch.arange(len(clients)), torch.tensor(sizes_of(clients))
        )
        if chosen is not None:
            features, labels, owners = features[chosen], labels[chosen], owners[chosen]
        features, labels = features.to(self.device), labels.to(self.device)
        owners = owners.to(self.device)
        rows = self._chunk_rows(self.elements_per_sample)
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            with self.layers_of(clients), computing_in(self.precision, self.device):
                found = self._gradients(model, features[part], labels[part])
            yield owners[part], found

    def closed_form_gradients(self, model: Floats, clients: Sequence[ClientData]) -> Rows | None:
        """Return each client's gradient in closed form, or None where there is no such form.

        There is one for a linear classifier if each client has one sample.

        Args:
            model: A flat model.
            clients: The clients.

        Returns:
            One row for each client, unclipped, as factors that are not multiplied out; or None.
        """
        if self._linear is None or not have_one_sample(clients):
            return None
        return self._linear_gradients(model, *self._samples(clients))

    def local_models(
        self,
        model: Floats,
        clients: Sequence[ClientData],
        *,
        steps: int | Minibatches,
        learning_rate: float,
        optimizer: OptimizerSettings = PLAIN_SGD,
        gradient_clip: float | None = None,
        proximal_weights: Sequence[float] | None = None,
        corrections: Tensor | None = None,
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the models of clients after their local steps, several clients at once.

        Each client's loss is increased by (its proximal weight/2) |w - model|^2, and in each step
        its row of `corrections` is added to its gradient. Each client has an optimizer of its own.

        Args:
            model: The flat model that all clients start from.
            clients: The clients.
            steps: The number of steps, which use all records of a client; or their minibatches.
            learning_rate: The optimizer's learning rate; for plain SGD the length of a step
                relative to the gradient.
            optimizer: How gradients move the models.
            gradient_clip: The norm to which the gradient of each minibatch is clipped, before
                proximal terms and corrections are added; None for no clipping.
            proximal_weights: One weight for each client; None for zero.
            corrections: One row for each client; None for zero.

        Yields:
            For one group of consecutive clients after the other: the position of its first client,
            and the flat models of its clients as rows of a float32 tensor.
        """
        if isinstance(steps, int):
            steps = Minibatches.full(sizes_of(clients), steps=steps)
        work = StepSettings(
            model=self.tensor(model),
            learning_rate=learning_rate,
            minibatches=steps,
            optimizer=optimizer,
            gradient_clip=gradient_clip,
            pulls=proximal_weights,
            shifts=corrections,
        )
        yield from self._trainer.models(clients, work)

    def clients_at_once(self, width: int, *, keeps_state: bool = False) -> int:
        """Return how many clients are trained at once, which bounds the memory that they take.

        Args:
            width: The most records of a step.
            keeps_state: Whether an optimizer keeps numbers for each parameter of each client.

        Returns:
            At least one.
        """
        if self._chain is None and self._num_parameters >= _LARGE_NETWORK:
            return 1  # One keeps a device busy, and the convolutions of several are slower.
        rows = 5 + (_ROWS_OF_OPTIMIZER if keeps_state else 0)
        return self._chunk_rows(rows * self._num_parameters + width * self.elements_in_layers)

    @property
    def elements_in_layers(self) -> int:
        """How many numbers the layers hold for one sample; 0 unless the module is a chain."""
        return self._chain.elements_per_sample if self._chain else 0

    # -- several models at once ------------------------------------------------------------

    def stacked_outputs(self, models: Tensor, features: Tensor) -> Tensor:
        """Return the outputs of several models at once.

        Args:
            models: Flat models as rows.
            features: Features of each model's samples, (models, samples, ...).

        Returns:
            The outputs, (models, samples, outputs).
        """
        form = self.stack_form
        return form.outputs(form.enter(models), features)

    @cached_property
    def stack_form(self) -> StackForm:
        """The form in which several models take steps, on the task's device."""
        return self._cuda_form or ModuleOrder(self._compute_outputs)

    @cached_property
    def _cuda_form(self) -> "ChannelsLast | None":
        """The form for a chain of layers on a CUDA device with Triton; None anywhere else."""
        on_gpu = self.device.type == "cuda" and cuda.available()
        if self._chain is None or not self._all_trained or not on_gpu:
            return None
        from sottovoce.learning.cuda_outputs import ChannelsLast

        return ChannelsLast(self._chain, self._flat.shapes, self.device)

    def _compute_outputs(self, models: Tensor, features: Tensor) -> Tensor:
        parameters = self._flat.split(models)
        if self._chain is not None:
            return stacked_outputs(self._chain, parameters, features)
        if len(models) == 1:  # Under vmap some layers take several kernels instead of one.
            alone = {name: piece[0] for name, piece in parameters.items()}
            return self._outputs(alone, features[0])[None]
        each = vmap(self._outputs, randomness="different")
        outputs: Tensor = each(parameters, features)
        return outputs

    @cached_property
    def ghost_sums(self) -> GhostSums | None:
        """How sums of clipped gradients of a large network are computed; None in other ways."""
        if self.is_chain or self.is_random or self.dimension < _LARGE_NETWORK:
            return None
        return GhostSums.of(self, self._module, self._flat.shapes)

    def parameters_of(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters of a flat model by name, for differentiation.

        Args:
            flat: The model as a float32 tensor on the task's device.

        Returns:
            New leaf tensors.
        """
        return {n: piece.detach().requires_grad_() for n, piece in self._flat.split(flat).items()}

    def losses_of(self, parameters: dict[str, Tensor], features: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, as a function of parameters by name.

        Args:
            parameters: The trained parameters.
            features: Features of the samples.
            labels: Labels of the samples.

        Returns:
            One number for each sample.
        """
        return self._losses(self._outputs(parameters, features), labels)

    def test_pairs(self, count: int) -> tuple[Tensor, Tensor]:
        """Return features and labels of the first samples of the test data.

        Args:
            count: How many, at most.

        Returns:
            Both, on the task's device.
        """
        return self.test_samples(count), self._test_labels[:count]

    def sample_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, for several models at once.

        Args:
            outputs: The outputs of each model for its samples, (models, samples, outputs).
            labels: Labels of each model's samples, (models, samples, ...).

        Returns:
            The losses, (models, samples).
        """
        losses = self._losses(outputs.flatten(0, 1), labels.flatten(0, 1))
        return losses.reshape(labels.shape[:2])

    def stacked_gradients(self, models: Tensor, features: Tensor, labels: Tensor) -> GradientStack:
        """Return the gradient of each sample's loss, for several models at once.

        Args:
            models: Flat models as rows.
            features: Features of each model's samples, (models, samples, ...).
            labels: Labels of each model's samples, (models, samples, ...).

        Returns:
            The unclipped gradients of every model at its own samples.
        """

        def losses(outputs: Tensor) -> Tensor:
            return self._losses(outputs.flatten(0, 1), labels.flatten(0, 1))

        with computing_in(self.precision, self.device):
            form = self._cuda_form
            if form is not None:
                return form.sample_gradients(form.enter(models), features, losses)
            parameters = self._flat.split(models)
            if self._chain is not None:
                return stacked_gradients(self._chain, parameters, features, losses)
            of_samples = vmap(grad(self._sample_loss), in_dims=(None, 0, 0), randomness="different")
            found = vmap(of_samples, randomness="different")(parameters, features, labels)
            return GradientStack((DenseStack(self._flat.join(found)),))

    # -- inside ----------------------------------------------------------------------------

    @cached_property
    def _linear(self) -> nn.Linear | None:
        """The layer, if the whole model is one linear layer and the task a classification."""
        if not self._objective.is_softmax or not self._all_trained:
            return None
        # Exactly these types, because any other module may do more than apply its layers.
        layers = [self._module]
        if type(self._module) is nn.Sequential:
            layers = [layer for layer in self._module if type(layer) is not nn.Flatten]
        only = layers[0] if len(layers) == 1 else None
        if isinstance(only, nn.Linear) and type(only) in (nn.Linear, FlatLinear):
            return only
        return None

    def _chunk_rows(self, elements: int) -> int:
        """Return how many rows with this many numbers are held at once."""
        most = MAX_GRADIENT_ELEMENTS * (_TIMES_ON_GPU if self.device.type == "cuda" else 1)
        return max(1, most // elements)

    @property
    def elements_per_sample(self) -> int:
        """How many numbers computing one sample's gradient for one model holds in memory."""
        if self._chain is None or self._linear is not None:
            return self._num_parameters
        return max(self.dimension, self._chain.elements_per_sample)

    def _gradients(self, model: Floats, features: Tensor, labels: Tensor) -> Rows:
        if self._linear is not None:
            return self._linear_gradients(model, features, labels)
        parameters = self._flat.split(self.tensor(model))
        if self._chain is not None:
            return layer_gradients(
                self._chain, parameters, features, lambda outputs: self._losses(outputs, labels)
            )
        # Each sample has its own dropout, which depends on no other sample.
        per_sample = vmap(grad(self._sample_loss), in_dims=(None, 0, 0), randomness="different")
        gradients = per_sample(parameters, features, labels)
        return DenseRows(self._flat.join(gradients))

    def _linear_gradients(self, model: Floats, features: Tensor, labels: Tensor) -> OuterRows:
        """Return the gradient of cross-entropy in factors.

        It is (softmax(W x + b) - onehot(y)) x (x, 1).
        """
        weight, *bias = self._flat.split(self.tensor(model)).values()
        inputs = features.reshape(len(features), -1)
        residuals = torch.softmax(nn.functional.linear(inputs, weight, *bias), dim=1)
        residuals.scatter_(1, labels.unsqueeze(1), -1.0, reduce="add")
        return OuterRows(residuals, inputs, has_bias=bool(bias))

    def _sample_loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self._losses(self._outputs(parameters, x[None]), y[None]).sum()

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample."""
        return self._objective.losses(outputs, labels)

    def _outputs(self, parameters: dict[str, Tensor], features: Tensor) -> Tensor:
        return logits_of(functional_call(self._module, parameters, (features,)))

    def _samples(self, clients: Sequence[ClientData]) -> tuple[Tensor, Tensor]:
        """Return features and labels of all clients on the device; they must not be written to."""
        if isinstance(clients, Clients):
            features, labels = clients.shared_samples()
        else:
            features, labels = samples_of(clients)
        return features.to(self.device), labels.to(self.device)

    def _place_test_features(self, features: Tensor | NDArray[Any]) -> Tensor | NDArray[Any]:
        """Move test features to the device if they fit, because they are used often."""
        if self.device.type == "cuda" or 4 * math.prod(features.shape) <= _KEPT_BYTES:
            return self._features(features)
        return features

    def _features(self, features: Tensor | NDArray[Any]) -> Tensor:
        if not isinstance(features, Tensor):
            features = as_inputs(features)
        return features.to(self.device)


def _parts_of(sizes: Iterable[int], most: int) -> Iterator[slice]:
    """Yield slices of consecutive groups of these sizes; none has more than `most` places."""
    start = 0
    for size in sizes:
        for begin in range(start, start + size, most):
            yield slice(begin, min(begin + most, start + size))
        start += size
