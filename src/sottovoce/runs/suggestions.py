"""Changes of a spec that are likely to raise the accuracy of a finished run.

Each states by what factor it is expected to raise the ratio of signal to noise; those that cost
neither privacy nor trust come first.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sottovoce.federated.algorithms.statistics import AdaptiveClip
from sottovoce.runs.run_evidence import CLEAR, CONFIDENCE, RunEvidence

_MOST_SUGGESTIONS = 3
_ROUNDING_MATTERS = 1.2  # Noise of a mechanism over that of Gaussian noise of the same budget.
_SHORT = 0.3  # Signal over clip norm.
_STEADY = 0.6  # How much of the ups and downs of the loss is a fall where steps are short.
_OFF_TARGET = 0.2  # The distance of the share of unclipped updates to the quantile that is sought.


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A change of a spec that is likely to raise the accuracy.

    Attributes:
        key: The key to change, or the keys.
        change: What to write.
        reason: Why this helps, in one sentence.
    """

    key: str
    change: str
    reason: str

    def __str__(self) -> str:
        """Return the change and its reason in one line."""
        return f"{self.key}: {self.change}. {self.reason}"


def likeliest(run: RunEvidence) -> tuple[Suggestion, ...]:
    """Return at most three changes, the likeliest first."""
    ranked = sorted(_suggestions(run), key=lambda one: one[0])
    return tuple(one for _, one in ranked[:_MOST_SUGGESTIONS])


def _suggestions(run: RunEvidence) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield every suggestion that applies with its rank: what it costs, and minus the gain."""
    if run.facts.get("overshoots"):
        yield from _shorter_steps(run)
    elif not run.lost:
        yield from _from_the_curve(run)
    if run.noisy or run.facts.get("step_noise_norm"):
        yield from _against_noise(run)
    yield from _of_the_updates(run)


_FREE, _TRUST, _PRIVACY = 0, 1, 2  # What a suggestion costs.


def _shorter_steps(run: RunEvidence) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield smaller learning rates, for a model that moves too far."""
    reason = (
        f"The test loss is {run.result['loss']:.3g}, far above that of guessing, so the model "
        "moves too far in each round."
    )
    for name in ("server_learning_rate", "local_learning_rate"):
        rate = run.spec.algorithm.parameters.get(name)
        if isinstance(rate, float):
            change = f"{rate:g} -> {rate / 10:g}"
            yield (_FREE, -10.0), Suggestion(key=f"algorithm.{name}", change=change, reason=reason)


def _from_the_curve(run: RunEvidence) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield what the accuracy and the loss by round suggest."""
    if not run.quarters:
        return
    if max(run.quarters) < (run.facts["trivial_score"] or 0.0) + run.least_difference:
        return  # A model that has learned nothing moves up and down by chance.
    if run.moved_at_random:
        yield from _against_random_moves(run)
    else:
        yield from _of_a_rise(run)
    yield from _of_a_fall(run)


def _against_random_moves(run: RunEvidence) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield how the noise of many rounds cancels."""
    change = _changed_rate(run, 0.2)
    if change is not None:
        reason = (
            "Noise moves the model further than the signal does: the test loss goes up and down. "
            "With smaller steps the noise of many rounds cancels."
        )
        yield (_FREE, -3.0), Suggestion(key=_rate_key(run), change=change, reason=reason)
    algorithm = run.spec.algorithm
    if algorithm.kind == "fedavg" and not algorithm.parameters.get("averaging"):
        yield (
            (_FREE, -2.0),
            Suggestion(
                key="algorithm.averaging",
                change=f'{{ kind = "mean", rounds = {len(run.rows) // 2} }}',
                reason="The mean of the last models has less of the noise of single rounds, and "
                "costs no privacy.",
            ),
        )


def _of_a_rise(run: RunEvidence) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield a larger learning rate, if the score was still rising, and not by chance."""
    *_, before, last = run.quarters
    change = _changed_rate(run, 2.0)
    if change is None or last - before <= run.least_difference:
        return
    if run.loud and run.steadiness < _STEADY:
        return
    reason = (
        f"The {run.score} was still rising in the last quarter of the rounds ({before:.3f} to "
        f"{last:.3f}), and a larger step costs no privacy."
    )
    yield (_FREE, -3.0), Suggestion(key=_rate_key(run), change=change, reason=reason)


def _of_a_fall(run: RunEvidence) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield fewer rounds, or smaller steps without noise, if the score was better before."""
    best, last = max(run.quarters), run.quarters[-1]
    # Where noise moves the model at random, only a large difference means anything.
    if best - last <= run.least_difference * (CONFIDENCE if run.loud else 1.0):
        return
    place = run.quarters.index(best) + 1
    found = (
        f"The {run.score} was best in quarter {place} of the rounds ({best:.3f}, then {last:.3f})"
    )
    change = _changed_rate(run, 0.5)
    if run.noise:
        rounds = max(1, run.spec.rounds * place // 4)
        suggestion = Suggestion(
            key="rounds",
            change=f"{run.spec.rounds} -> {rounds}",
            reason=f"{found}, and with fewer rounds each has less noise.",
        )
        yield (_FREE, -3.0), suggestion
    elif change is not None:
        reason = f"{found}: steps are too long towards the end."
        yield (_FREE, -3.0), Suggestion(key=_rate_key(run), change=change, reason=reason)


def _changed_rate(run: RunEvidence, factor: float) -> str | None:
    """Return how to write another learning rate; None if there is none."""
    rate = run.spec.algorithm.parameters.get(_rate_key(run).removeprefix("algorithm."))
    return f"{rate:g} -> {factor * rate:g}" if isinstance(rate, float) else None


def _rate_key(run: RunEvidence) -> str:
    """Return the learning rate to change: with local DP-SGD that of the local steps."""
    name = "local_learning_rate" if run.takes_noisy_steps else "server_learning_rate"
    return f"algorithm.{name}"


def _against_noise(run: RunEvidence) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield what lowers the noise of a mean update."""
    spec, clients = run.spec, run.facts["clients"]
    everyone, budget = len(run.result["clients"]), spec.privacy.epsilon
    local = spec.channel.kind == "direct"
    if local and budget and spec.sampling.kind in ("fixed_size", "poisson"):
        gain = math.sqrt(everyone / clients)
        yield (
            (_FREE, -gain),
            Suggestion(
                key="sampling.kind",
                change=f'"{spec.sampling.kind}" -> "everyone"',
                reason="The noise is calibrated as if every client were asked in every round, so "
                f"asking all {everyone} of them costs no more and divides the noise of a mean by "
                f"{gain:.1f}.",
            ),
        )
    rounding = run.rounding
    if rounding is not None and rounding > _ROUNDING_MATTERS:
        yield (
            (_FREE, -rounding),
            Suggestion(
                key="mechanism",
                change='"auto"',
                reason="The few values of a message cost more than their bytes save: Gaussian "
                f"noise of the same budget is {rounding:.2f} times smaller.",
            ),
        )
    if run.takes_noisy_steps:
        yield from _for_noisy_steps(run)
    if local and budget and clients >= 4.0 and _can_be_summed(run):
        gain = math.sqrt(clients)
        stored = "" if spec.runtime.messages == "stored" else ', runtime.messages = "stored"'
        yield (
            (_TRUST, -gain),
            Suggestion(
                key="channel.kind, mechanism",
                change=f'"secure_sum" with minimum_clients = {int(clients)}, "auto"{stored}',
                reason="If the server sees only sums, the noise of all clients protects each of "
                f"them, and about {gain:.1f} times less is enough for the same epsilon.",
            ),
        )
    if run.result["dimension"] > 1000 and spec.model.kind != "linear":
        yield (
            (_FREE, -1.4),
            Suggestion(
                key="model",
                change="a model with fewer parameters",
                reason=f"The noise grows with the square root of the {run.result['dimension']:,} "
                "parameters, the signal does not: a quarter of them has half the noise.",
            ),
        )
    yield (
        (_TRUST, -2.0),
        Suggestion(
            key="data.clients",
            change=f"{everyone} -> {4 * everyone}, if more people can take part",
            reason="The noise of a mean falls with the square root of the number of clients.",
        ),
    )
    if budget:
        yield (
            (_PRIVACY, -2.0),
            Suggestion(
                key="privacy.epsilon",
                change=f"{budget:g} -> {2 * budget:g}",
                reason="Twice the budget about halves the noise, at the price of privacy.",
            ),
        )


def _for_noisy_steps(run: RunEvidence) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield what lowers the noise that local DP-SGD sends, for the same budget."""
    parameters, rounding = run.spec.algorithm.parameters, run.facts["rounding_factor"]
    if rounding > _ROUNDING_MATTERS:
        yield (
            (_FREE, -rounding),
            Suggestion(
                key="algorithm.message_bits",
                change=f"{parameters['message_bits']} -> 4",
                reason=f"The bits of a message cost no privacy, and so few multiply its noise by "
                f"{rounding:.2f}.",
            ),
        )
    rate = run.facts["sampling_rate"]
    if rate <= 0.5:
        size = parameters.get("batch_size")
        given = run.spec.privacy.record_sampling_rate
        yield (
            (_FREE, -1.1),
            Suggestion(
                key="algorithm.batch_size" if size else "privacy.record_sampling_rate",
                change=f"{size} -> {2 * size}" if size else f"{given:g} -> {2 * given:g}",
                reason="A larger sample needs less noise in its mean for the same budget; it costs "
                "time.",
            ),
        )


def _can_be_summed(run: RunEvidence) -> bool:
    """Return whether a secure sum can serve the run: equal clients, and only their mean is used."""
    spec = run.spec
    if run.takes_noisy_steps:  # Nothing is proved for other channels.
        return False
    aggregation = spec.algorithm.parameters.get("aggregation") or {"kind": "mean"}
    plain = spec.algorithm.kind == "fedavg" and aggregation == {"kind": "mean"}
    alike = run.facts["equal_weights"] and not spec.privacy.groups
    return plain and alike and spec.privacy.record_sampling_rate == 1.0


def _of_the_updates(run: RunEvidence) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield what makes updates use the norm that the noise is made for."""
    spec, signal, clip = run.spec, run.signal, run.fixed_clip
    yield from _of_the_first_clip(run)
    if run.takes_noisy_steps:  # Their update is not clipped.
        return
    if signal is None or not run.noise or clip is None or run.largest_signal > _SHORT * clip:
        return
    rate = spec.algorithm.parameters.get("local_learning_rate")
    share = 100.0 * run.largest_signal / clip
    short = f"The mean update has at most {share:.2g}% of the clip norm {clip:g}"
    if spec.privacy.level == "client" and isinstance(rate, float) and not run.lost:
        yield (
            (_FREE, -2.5),
            Suggestion(
                key="algorithm.local_learning_rate",
                change=f"{rate:g} -> {2 * rate:g}",
                reason=f"{short}: if clients' updates are shorter than that, larger local steps "
                "raise the signal and not the noise.",
            ),
        )
    elif spec.privacy.level == "sample":
        yield (
            (_FREE, -1.3),
            Suggestion(
                key="privacy.clip_norm",
                change=f'{clip:g} -> {clip / 2:g}, or "auto"',
                reason=f"{short}: if most gradients are shorter than half of that, the noise "
                "halves and the signal stays; otherwise double the learning rate with it.",
            ),
        )


def _of_the_first_clip(run: RunEvidence) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield a clip norm to start from, if an adaptive one did not reach its quantile."""
    clip = run.spec.privacy.clip_norm
    if run.unclipped is None or not isinstance(clip, AdaptiveClip):
        return
    share, error = run.unclipped
    if error <= CLEAR and abs(share - clip.quantile) > max(_OFF_TARGET, CONFIDENCE * error):
        factor = 0.5 if share > clip.quantile else 2.0
        first = factor * float(run.result["clip_norm"])
        yield (
            (_FREE, -2.5),
            Suggestion(
                key="privacy.clip_norm",
                change=f'{{ kind = "auto", initial = {first:.2g} }}',
                reason=f"The clip norm did not settle: it ended with {share:.0%} of the updates "
                f"unclipped, and {clip.quantile:.0%} are sought.",
            ),
        )
