"""The keys of adaptive clipping and of private evaluation: what clients measure in addition.

Each statistic is one more coordinate of the message that a client sends anyway
(`client_statistics`), so it is charged by the same release. This module imports no torch, because
specs are also read where torch is not installed.

References: Andrew, Thakkar, McMahan and Ramaswamy 2021 (adaptive clipping); Bu, Wang, Zha and
Karypis 2023 (automatic clipping of records).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.core.sections import POSITIVE, check_keys, one_of, rule, whole


def _open_fraction(name: str, value: Any) -> float:
    if not 0.0 < parameter_rules.finite(name, value) < 1.0:
        raise ParameterError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return float(value)


def _share(name: str, value: Any) -> float:
    if not 0.0 < parameter_rules.finite(name, value) <= 0.25:
        raise ParameterError(f"{name} must lie in (0, 0.25], got {value!r}")
    return float(value)


def _held_out(name: str, value: Any) -> float:
    if not 0.0 <= parameter_rules.finite(name, value) < 1.0:
        raise ParameterError(f"{name} must be at least 0 and below 1, got {value!r}")
    return float(value)


def _clip_norm(name: str, value: Any) -> float:
    number = parameter_rules.clip_norm(name, value)
    if not SMALLEST_CLIP_NORM <= number <= LARGEST_CLIP_NORM:
        raise ParameterError(
            f"{name} must lie between {SMALLEST_CLIP_NORM:g} and {LARGEST_CLIP_NORM:g}, "
            f"got {value!r}"
        )
    return number


# An adaptive clipping norm stays between these powers of two, which float32 has.
SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 2.0**-40, 2.0**40
_LARGEST_LOSS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip:
    """A clipping norm that follows a quantile of the norms of clients' updates.

    A client sends, in the same message as its update, whether the update's norm was at most the
    clipping norm C. After each round the server sets C <- C exp(-rate (mean of bits - quantile)),
    with the mean that it decodes, and moves it less if that mean is very noisy. At sample level
    records are normalized instead, and these keys do not apply.

    Attributes:
        quantile: The part of the cohort whose updates should not be clipped.
        initial: The clipping norm of the first round; a constant, so that it reveals nothing.
        rate: How fast the clipping norm moves at most.
        share: The part of a message's squared norm that the bit takes from the update.

    Raises:
        ParameterError: A value is out of its range.

    Reference: Andrew et al. 2021, algorithm 1.
    """

    quantile: float = field(default=0.25, metadata=rule(_open_fraction))
    initial: float = field(default=0.3, metadata=rule(_clip_norm))
    rate: float = field(default=0.5, metadata=POSITIVE)
    share: float = field(default=0.01, metadata=rule(_share))
    kind: ClassVar[str] = "auto"

    def __post_init__(self) -> None:
        check_keys(self, "privacy.clip_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateEvaluation:
    """A private estimate of how well the released model fits the clients' own records.

    Each client of a round evaluates the model that it received and sends the result, between 0 and
    1, in the same message as its update.

    Attributes:
        metric: "accuracy", or "loss" for the mean loss, which counts as at most `largest_loss`.
        every: Evaluate in every such round; rounds that release nothing are not counted.
        share: The part of a message's squared norm that the result takes from the update, in the
            rounds that evaluate.
        largest_loss: The largest loss of a client that is told apart; a public bound.
        holdout_fraction: The part of a client's records that it evaluates on and never trains on;
            0 evaluates on the records that it trains on. At least one record of two or more is held
            out; a client with one record uses it for both.

    Raises:
        ParameterError: A value is out of its range.
    """

    metric: Literal["accuracy", "loss"] = field(
        default="accuracy", metadata=one_of("accuracy", "loss")
    )
    every: int = field(default=1, metadata=whole(1, 10**6))
    share: float = field(default=0.01, metadata=rule(_share))
    largest_loss: float = field(default=_LARGEST_LOSS, metadata=POSITIVE)
    holdout_fraction: float = field(default=0.0, metadata=rule(_held_out))

    def __post_init__(self) -> None:
        check_keys(self, "evaluation.private")
        if self.metric == "accuracy" and self.largest_loss != _LARGEST_LOSS:
            raise ParameterError(
                "evaluation.private.largest_loss bounds a loss, but the metric is 'accuracy'; drop "
                "it, or set metric = 'loss'"
            )

    @property
    def scale(self) -> float:
        """The value in the metric's unit that a result of 1 stands for."""
        return self.largest_loss if self.metric == "loss" else 1.0
