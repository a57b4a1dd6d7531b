"""What a model is trained for: the loss of each sample, and the figures of an evaluation.

Labels decide which losses fit. One class for each sample is a classification, a class for each
position of a sequence are tokens, and numbers are a regression, or with zeros and ones several
labels at once. A loss returns one number for each sample, because at sample level the gradient of
each sample is clipped, and no sample may change that of another.

Torch is imported late: specs are also read where it is not installed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sottovoce.core.errors import ParameterError, UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

    PerSample = Callable[[Tensor, Tensor], Tensor]

Kind = Literal["classification", "tokens", "regression", "multi_label"]
# Labels with this value are left out of losses and scores; torch's losses use the same.
IGNORED_TOKEN = -100
# The kinds that a loss is for; the first loss of a kind is its default.
LOSSES: dict[str, tuple[Kind, ...]] = {
    "cross_entropy": ("classification", "tokens"),
    "squared_error": ("regression",),
    "absolute_error": ("regression",),
    "huber": ("regression",),
    "binary_cross_entropy": ("multi_label",),
}
ACCURACY = "accuracy"


MEMORY = "memory:"  # The start of a name of a function that a Python program gave.


def is_function_path(name: str) -> bool:
    """Return whether the text names a function to import, "package.module:function"."""
    return ":" in name and not name.startswith(MEMORY)


def check_loss_name(name: str) -> None:
    """Raise UnknownNameError for text that is neither a loss nor a function 'package.module:f'."""
    if ":" not in name and name not in LOSSES:
        raise UnknownNameError.among("loss", name, [*LOSSES, "package.module:function"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A loss for each sample, and the figures that are reported of a model.

    Attributes:
        kind: What the labels are.
        loss: The name of a loss in `LOSSES`; None for the default of the kind.
        own_loss: A function of (outputs, labels) that returns one number for each sample, and
            replaces `loss`; None for none.
        own_metric: A function of (outputs, labels) that returns one number for each sample; their
            mean over test samples is reported in place of the figures of the kind. None for none.
        metric_name: How the figure of `own_metric` is called.

    Raises:
        ParameterError: The loss is not one for labels of this kind.
    """

    kind: Kind = "classification"
    loss: str | None = None
    own_loss: "PerSample | None" = None
    own_metric: "PerSample | None" = None
    metric_name: str = "metric"

    def __post_init__(self) -> None:
        if self.loss is not None and self.kind not in LOSSES[self.loss]:
            raise ParameterError(
                f"the loss '{self.loss}' is for {' and '.join(LOSSES[self.loss])}, and these "
                f"labels are {self.kind}: integers are classes, a row of them for each sample are "
                "tokens, floats are numbers to predict (regression); use another loss, or labels "
                "of another type, such as y.astype(float)"
            )

    @property
    def is_softmax(self) -> bool:
        """Whether the loss is the cross-entropy of one class for each sample."""
        return self.kind == "classification" and self.own_loss is None

    def losses(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        """Return the loss of each sample, one row of outputs and labels for each."""
        from torch.func import vmap
        from torch.nn import functional

        own = self.own_loss
        if own is not None:
            # Each sample is computed alone, so that none can change the loss of another.
            found: Tensor = vmap(lambda y, t: own(y[None], t[None])[0])(outputs, labels)
            return found
        if self.kind == "classification":
            return functional.cross_entropy(outputs, labels, reduction="none")
        if self.kind == "tokens":
            return _token_losses(outputs, labels)
        _check_targets(outputs, labels)
        match self.loss:
            case "absolute_error":
                each_output = functional.l1_loss(outputs, labels, reduction="none")
            case "huber":
                each_output = functional.huber_loss(outputs, labels, reduction="none")
            case _ if self.kind == "multi_label":
                each_output = functional.binary_cross_entropy_with_logits(
                    outputs, labels, reduction="none"
                )
            case _:
                each_output = functional.mse_loss(outputs, labels, reduction="none")
        return each_output.mean(dim=-1)

    def totals(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        """Return sums over some test samples, from which `figures` computes the figures."""
        import torch

        if self.own_metric is not None:
            return self.own_metric(outputs, labels).double().sum()[None]
        if self.kind == "regression":
            errors = (outputs - labels).double()
            return torch.cat([errors.abs().sum(dim=0), errors.square().sum(dim=0)])
        if self.kind == "multi_label":
            said, true = outputs > 0.0, labels > 0.5
            parts = [(said == true).double().mean(dim=1), (said & true), (said | true)]
            return torch.stack([part.double().sum() for part in parts])
        counted = labels != IGNORED_TOKEN
        right = (outputs.argmax(dim=-1) == labels) & counted
        return torch.stack([right.sum(), counted.sum()]).double()

    def figures(self, totals: "Tensor", labels: "Tensor") -> dict[str, float]:
        """Return the figures by name, the most important one first.

        Args:
            totals: The sums over all test samples.
            labels: The labels of all test samples.
        """
        sums = totals.tolist()
        if self.own_metric is not None:
            return {self.metric_name: sums[0] / len(labels)}
        match self.kind:
            case "regression":
                absolute, squares = totals.chunk(2)
                targets = labels.double()
                spread = (targets - targets.mean(dim=0)).square().sum(dim=0)
                return {
                    "R-squared": _r_squared(squares, spread),
                    "mean absolute error": float(absolute.mean()) / len(labels),
                }
            case "multi_label":
                # F1 = 2 tp / (2 tp + fp + fn), and |said or true| = tp + fp + fn.
                both, either = sums[1], sums[2]
                return {
                    "label accuracy": sums[0] / len(labels),
                    "micro F1": 2.0 * both / (both + either) if either else 1.0,
                }
            case "tokens":
                return {"token accuracy": sums[0] / max(1.0, sums[1])}
            case _:
                return {ACCURACY: sums[0] / len(labels)}

    def scores(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        """Return a score of each sample: its share of correct labels, or 1 - its absolute error."""
        match self.kind:
            case "regression":
                return 1.0 - (outputs - labels).abs().mean(dim=-1)
            case "multi_label":
                return ((outputs > 0.0) == (labels > 0.5)).double().mean(dim=-1)
            case "tokens":
                counted = labels != IGNORED_TOKEN
                right = (outputs.argmax(dim=-1) == labels) & counted
                return right.sum(dim=-1) / counted.sum(dim=-1).clamp(min=1)
            case _:
                return outputs.argmax(dim=-1) == labels

    def trivial_score(self, labels: "Tensor") -> float | None:
        """Return the first figure of the best constant answer; None for an own metric."""
        import torch

        if self.own_metric is not None:
            return None
        match self.kind:
            case "regression":
                return 0.0
            case "multi_label":
                share = labels.double().mean(dim=0)
                return float(torch.maximum(share, 1.0 - share).mean())
            case _:
                _, counts = torch.unique(labels[labels != IGNORED_TOKEN], return_counts=True)
                return float(counts.max()) / float(counts.sum()) if len(counts) else 0.0

    def check(self, outputs: "Tensor", labels: "Tensor") -> None:
        """Refuse outputs and labels that do not fit, and functions that mix samples.

        Args:
            outputs: The outputs for two samples.
            labels: Their labels.

        Raises:
            ParameterError: Shapes do not fit, or an own function does not return one number for
                each sample.
        """
        import torch

        for what, function in (("loss", self.own_loss), ("metric", self.own_metric)):
            if function is not None:
                _check_own(what, function, outputs, labels)
        if self.own_loss is None:
            self.losses(outputs, labels)
            return
        try:
            found = self.losses(outputs, labels)
            together = self.own_loss(outputs, labels)
        except Exception as error:  # The user's code may raise anything.
            raise ParameterError(
                "the loss cannot be computed for one sample at a time by torch.func.vmap "
                f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); use torch's "
                "functions on whole tensors, without branches on values and without .item()"
            ) from error
        if not found.isfinite().all():
            raise ParameterError(
                f"the loss of two samples is {found.tolist()} before any training; make it finite"
            )
        if not torch.allclose(found, together.to(found.dtype), rtol=1e-3, atol=1e-4):
            raise ParameterError(
                "the loss of a sample depends on the other samples of the batch; make it a "
                "function of its own outputs and labels"
            )


def kind_of(labels_are_numbers: bool, label_axes: int, loss: str | None) -> Kind:
    """Return what labels are for.

    Args:
        labels_are_numbers: Whether they are floats, not classes.
        label_axes: The number of dimensions of all labels.
        loss: The name of the loss; None for none.
    """
    if loss == "binary_cross_entropy":
        return "multi_label"
    if labels_are_numbers:
        return "regression"
    return "classification" if label_axes == 1 else "tokens"


def _token_losses(outputs: "Tensor", labels: "Tensor") -> "Tensor":
    from torch.nn.functional import cross_entropy

    if outputs.ndim != 3 or outputs.shape[:2] != labels.shape:
        raise ParameterError(
            f"labels of shape {tuple(labels.shape)} have a class for each position, and the "
            f"model's outputs have shape {tuple(outputs.shape)}; return (samples, positions, "
            "num_outputs), or set model.loss = 'binary_cross_entropy' if each sample has several "
            "labels"
        )
    losses = cross_entropy(
        outputs.transpose(1, 2), labels, ignore_index=IGNORED_TOKEN, reduction="none"
    )
    counted = (labels != IGNORED_TOKEN).sum(dim=1)
    return losses.sum(dim=1) / counted.clamp(min=1)


def _check_targets(outputs: "Tensor", labels: "Tensor") -> None:
    if labels.shape != outputs.shape or outputs.ndim < 2:  # Else samples would be mixed.
        raise ParameterError(
            f"targets of shape {tuple(labels.shape)} do not fit outputs of shape "
            f"{tuple(outputs.shape)}; targets and the model's outputs must both have a row for "
            "each sample, with one target for each output"
        )


_PER_SAMPLE = {
    "loss": "the gradient of each sample is clipped on its own: use reduction='none', and average "
    "only over a sample's own outputs",
    "metric": "batches of test data are added up: leave out the mean over samples",
}


def _check_own(what: str, function: "PerSample", outputs: "Tensor", labels: "Tensor") -> None:
    import torch

    try:
        found = function(outputs, labels)
    except Exception as error:  # The user's code may raise anything.
        raise ParameterError(
            f"the {what} fails on two samples, outputs of shape {tuple(outputs.shape)} and labels "
            f"of shape {tuple(labels.shape)}: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}; correct it"
        ) from error
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    if shape != (len(outputs),):
        raise ParameterError(
            f"the {what} returns {'one number' if shape == () else shape} for {len(outputs)} "
            f"samples; it must return one for each sample, because {_PER_SAMPLE[what]}"
        )


def _r_squared(squares: "Tensor", spread: "Tensor") -> float:
    """Return 1 - squared error/variance of the targets, averaged over the targets.

    A target that does not vary counts as 1 if it is predicted exactly, else as 0.
    """
    pairs = zip(squares.tolist(), spread.tolist(), strict=True)
    each = [1.0 - e / s if s > 0.0 else float(e == 0.0) for e, s in pairs]
    return math.fsum(each) / len(each)
