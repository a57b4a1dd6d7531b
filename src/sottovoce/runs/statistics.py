"""Adaptive clipping and private evaluation in a run: checks, the algorithm, and their figures."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.federated.algorithms.algorithm import Algorithm, AlgorithmSection
from sottovoce.federated.algorithms.statistics import AdaptiveClip
from sottovoce.mechanisms.release import NoisySums
from sottovoce.protocol.plan import message_dimension
from sottovoce.runs.spec import RunSpec

if TYPE_CHECKING:  # They import torch.
    from sottovoce.federated.training import Progress, RoundRecord
    from sottovoce.learning.objectives import Kind
    from sottovoce.runs.resolve import Resolved


def normalizes(spec: RunSpec) -> bool:
    """Return whether gradients of records are normalized: `clip_norm` is "auto" at sample level."""
    return isinstance(spec.privacy.clip_norm, AdaptiveClip) and spec.privacy.level == "sample"


def sends_statistics(spec: RunSpec) -> bool:
    """Return whether messages have more coordinates than the model, for statistics."""
    adaptive = isinstance(spec.privacy.clip_norm, AdaptiveClip) and not normalizes(spec)
    return adaptive or spec.evaluation.private is not None


def check_statistics(
    spec: RunSpec, section: AlgorithmSection, unit: Unit, objective: "Kind"
) -> None:
    """Check that adaptive clipping and private evaluation fit the rest of the spec.

    Args:
        spec: The spec.
        section: Its algorithm.
        unit: What is protected.
        objective: What the labels are.

    Raises:
        ConfigError: They do not.
    """
    clip = spec.privacy.clip_norm
    if unit is Unit.SAMPLE:
        if spec.evaluation.private is not None:
            raise ConfigError(
                "'evaluation.private' is one value of a whole client, which sample-level privacy "
                "does not protect; drop it, or set privacy.level = 'client'"
            )
        if isinstance(clip, AdaptiveClip) and clip != AdaptiveClip():
            raise ConfigError(
                "at sample level privacy.clip_norm = 'auto' normalizes the gradient of each record "
                "and has no keys; write 'auto' without them, or set privacy.level = 'client'"
            )
        return
    if not sends_statistics(spec):
        return
    evaluation = spec.evaluation.private
    if evaluation is not None and evaluation.metric == "accuracy" and objective == "regression":
        raise ConfigError(
            "evaluation.private.metric = 'accuracy' is a share of correct labels, which a "
            "regression does not have; set it to 'loss', with a 'largest_loss' that fits"
        )
    traits = section.traits(unit)
    if not traits.plain_mean or traits.sends_models or traits.keeps_client_state:
        what = "privacy.clip_norm = 'auto'"
        if not isinstance(clip, AdaptiveClip):
            what = "'evaluation.private'"
        own = traits.named or f"algorithm '{spec.algorithm.kind}'"
        raise ConfigError(
            f"{what} needs an algorithm whose server uses only the mean of one update of each "
            f"client, which {own} does not; use the algorithm 'fedavg' with aggregation 'mean', or "
            "give 'privacy.clip_norm' a number and drop 'evaluation.private'"
        )


def check_normalizes(algorithm: Algorithm, kind: str) -> None:
    """Refuse an algorithm at sample level that does not normalize gradients.

    Raises:
        ConfigError: The algorithm clips them instead.
    """
    if not getattr(getattr(algorithm, "local_work", None), "normalizes", False):
        raise ConfigError(
            f"algorithm '{kind}' clips gradients and does not normalize them, as "
            "privacy.clip_norm = 'auto' asks at sample level; give 'privacy.clip_norm' a number"
        )


def with_statistics(spec: RunSpec, algorithm: Algorithm) -> Algorithm:
    """Return the algorithm, whose clients also send the statistics that the spec asks for."""
    if not sends_statistics(spec):
        return algorithm
    from sottovoce.federated.algorithms.client_statistics import WithStatistics

    return WithStatistics(
        inner=algorithm, clip=spec.privacy.clip_norm, evaluation=spec.evaluation.private
    )


def sent_statistics(spec: RunSpec, update: str) -> str:
    """Return what a message describes: the update, and the statistics that the spec asks for."""
    if not sends_statistics(spec):
        return update
    found = [update]
    if isinstance(spec.privacy.clip_norm, AdaptiveClip):
        found.append("one number for whether the update's norm was at most the clipping norm")
    if spec.evaluation.private is not None:
        metric = spec.evaluation.private.metric
        found.append(f"one number for the {metric} of the released model on the client's records")
    return f"{', '.join(found[:-1])} and {found[-1]},"


def evaluation_text(figures: Mapping[str, Any]) -> str:
    """Return the private estimate in a row or a result with its standard error; "" for none."""
    for metric in ("accuracy", "loss"):
        value, error = figures.get(f"private_{metric}"), figures.get("private_evaluation_error")
        if value is not None:
            noise = "" if error is None else f" ± {error:.2g}"
            number = figures.get("private_evaluation_round")
            before = "" if number is None else f" before round {number}"
            return f"{metric} {value:.3f}{noise} on clients' records{before}"
    return ""


def statistics_metrics(
    resolved: "Resolved", progress: "Progress", record: "RoundRecord"
) -> dict[str, Any]:
    """Return what a round's row has of statistics: figures that were privatized and charged.

    Returns:
        `clip_norm`, the clipping norm of the next round, if it is adaptive; `unclipped_share`, the
        share of updates that were not longer than that of this round, as the clients' bits say, and
        `unclipped_share_error`, the standard error that noise gives it. `private_accuracy` or
        `private_loss`, the estimate for the model that clients received in this round, and
        `private_evaluation_error`, the standard error that the mechanism's noise gives it (None if
        it is not known; with a secret sample of clients also what their number adds), if the round
        evaluated.
    """
    from sottovoce.federated.algorithms import client_statistics

    spec, state, found = resolved.spec, progress.algorithm_state, dict[str, Any]()
    if not sends_statistics(spec):
        return found
    if isinstance(spec.privacy.clip_norm, AdaptiveClip):
        found["clip_norm"] = client_statistics.released_clip_norm(state)
        share = client_statistics.released_share(state)
        if share is not None and record.clients_received:
            found["unclipped_share"], found["unclipped_share_error"] = share
    evaluation = spec.evaluation.private
    if evaluation is None:
        return found
    value, is_new = client_statistics.released_result(state)
    if is_new and record.clients_received:
        noise = _noise_of_coordinate(resolved, record.clients_received)
        error = None
        if noise is not None:
            of_noise = noise / (2.0 * math.sqrt(evaluation.share))
            of_count = _error_of_count(resolved) * min(1.0, abs(2.0 * value - 1.0)) / 2.0
            error = evaluation.scale * math.hypot(of_noise, of_count)
        found[f"private_{evaluation.metric}"] = evaluation.scale * value
        found["private_evaluation_error"] = error
    return found


def statistics_warnings(spec: RunSpec, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence if the noise of the private evaluation exceeds the range of its results."""
    evaluation, error = spec.evaluation.private, None
    if evaluation is not None:
        error = latest_statistics(rows).get("private_evaluation_error")
    if evaluation is None or error is None or error <= evaluation.scale:
        return []
    return [
        f"the private {evaluation.metric} has a standard error of {error:.2g}, more than its range "
        f"of {evaluation.scale:g}, so it says nothing; raise 'evaluation.private.share', or use "
        "more clients or a secure sum"
    ]


def latest_statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last figures that `statistics_metrics` gave any of the rows.

    `private_evaluation_round` is the round at whose start the model was evaluated.
    """
    names = ("clip_norm", "private_accuracy", "private_loss", "private_evaluation_error")
    latest: dict[str, Any] = {}
    for row in rows:
        latest |= {name: row[name] for name in names if name in row}
        if "private_evaluation_error" in row:
            latest["private_evaluation_round"] = row["round"]
    return latest


def _noise_of_coordinate(resolved: "Resolved", received: int) -> float | None:
    """Return the standard deviation that noise gives a coordinate of the mean; None if unknown.

    It is in multiples of the largest norm of a message, like the statistics themselves.
    """
    from sottovoce.runs.public_facts import noise_norm

    norm = noise_norm(resolved, resolved.parts, received)
    if norm is None:
        return None
    return norm / resolved.spec.privacy.message_norm / math.sqrt(message_dimension(resolved.parts))


def _error_of_count(resolved: "Resolved") -> float:
    """Return the relative standard deviation of a secret number of answers; 0 if it is public.

    A trusted server that samples clients secretly divides the sum by their expected number.
    """
    visibility = resolved.channel.visibility
    if not isinstance(visibility, NoisySums):
        return 0.0
    rate = visibility.client_sampling_rate
    return math.sqrt((1.0 - rate) / (rate * len(resolved.parts)))
