"""Why the accuracy of a finished run is what it is, and what is most likely to raise it.

It reads only what is public: the result, the metrics of the rounds, and the spec. The server sees
every decoded mean update, and the noise in it follows from the mechanism. So the norm of the signal
is estimated as the root of (mean squared norm of the update - that of the noise). How many updates
were clipped is private, and is not used.

Each suggestion states by what factor it is expected to raise the ratio of signal to noise; those
that cost neither privacy nor trust come first.
"""

import math
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from sottovoce.runs.spec import RunSpec

PAGE = "docs/how-to/my-accuracy-is-poor.md"  # Printed with every diagnosis.

_MOST_SUGGESTIONS = 3
_CONFIDENCE = 2.0  # Standard errors by which two accuracies must differ.
_ROUNDING_MATTERS = 1.2  # Noise of a mechanism over that of Gaussian noise of the same budget.
_NOISE_MATTERS = 0.3  # Noise over signal in one round.
_SHORT = 0.3  # Signal over clip norm.
# The best constant answer by the name of the score.
_CONSTANTS = {
    "R-squared": "the mean",
    "label accuracy": "the more frequent value of each label",
    "token accuracy": "the most frequent token",
}
_FEWEST_ROUNDS = 8  # For a trend of the accuracy.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyDiagnosis:
    """What a finished run says about its accuracy.

    Attributes:
        at_chance: Whether the score is no better than that of the best constant answer.
        signal_norm: The estimated norm of a mean update without noise; None if it is unknown.
        noise_norm: The norm of the noise in a mean update; None if it is unknown, or without noise.
        findings: One sentence for each thing that was found.
        suggestions: At most three changes, the most likely first.
    """

    at_chance: bool
    signal_norm: float | None
    noise_norm: float | None
    findings: tuple[str, ...]
    suggestions: tuple[Suggestion, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain data, for result.json."""
        suggestions = [asdict(one) for one in self.suggestions]
        return {**asdict(self), "findings": list(self.findings), "suggestions": suggestions}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """Return the diagnosis that `to_dict` has written."""
        return cls(
            at_chance=table["at_chance"],
            signal_norm=table["signal_norm"],
            noise_norm=table["noise_norm"],
            findings=tuple(table["findings"]),
            suggestions=tuple(
                Suggestion(key=one["key"], change=one["change"], reason=one["reason"])
                for one in table["suggestions"]
            ),
        )

    def __str__(self) -> str:
        """Return the findings and suggestions as lines of at most 100 columns."""
        lines = ["Why this accuracy, as far as public facts tell:"]
        lines += [_wrapped("  - ", finding) for finding in self.findings]
        if self.suggestions:
            lines.append("Changes that are likely to help, the likeliest first:")
        lines += [
            _wrapped(f"  {number}. ", str(one))
            for number, one in enumerate(self.suggestions, start=1)
        ]
        return "\n".join([*lines, f"More: {PAGE}"])


def _wrapped(mark: str, text: str) -> str:
    return textwrap.fill(
        text,
        100,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The public facts of a run, and what follows from them."""

    spec: RunSpec
    result: dict[str, Any]
    facts: dict[str, Any]
    rows: Sequence[dict[str, Any]]

    @property
    def noise(self) -> float:
        """The norm of the noise in a mean update; 0 if it is unknown, or without noise."""
        return self.facts["noise_norm"] or 0.0

    @property
    def signal(self) -> float | None:
        """The estimated norm of the mean update without noise."""
        norm = self.facts["update_norm"]
        if norm is None or self.facts["noise_norm"] is None:
            return None
        return math.sqrt(max(0.0, norm**2 - self.noise**2))

    @property
    def largest_signal(self) -> float:
        """The largest norm that the signal may have, given that the norm of noise varies."""
        # The standard deviation of the mean squared norm of Gaussian noise over all rounds.
        numbers = self.result["dimension"] * max(1, len(self.rows))
        spread = math.sqrt(2.0 / numbers) * self.noise**2
        return math.sqrt((self.signal or 0.0) ** 2 + _CONFIDENCE * spread)

    @property
    def noisy(self) -> bool:
        """Whether the noise in a round is a notable part of the signal."""
        return self.signal is not None and self.noise > _NOISE_MATTERS * self.signal

    @property
    def standard_error(self) -> float:
        """The standard error of an accuracy of one half, the largest."""
        return 0.5 / math.sqrt(max(1, self.facts["test_samples"]))

    @property
    def score(self) -> str:
        """What `accuracy` measures."""
        return str(self.result.get("score", "accuracy"))

    @property
    def quarters(self) -> list[float]:
        """The mean score in each quarter of the rounds; empty if there are too few."""
        scores = [row["accuracy"] for row in self.rows if row["accuracy"] is not None]
        if len(scores) < _FEWEST_ROUNDS:
            return []
        size = len(scores) // 4
        return [statistics.fmean(scores[i * size : (i + 1) * size]) for i in range(4)]


def diagnose(
    result: dict[str, Any], facts: dict[str, Any], rows: Sequence[dict[str, Any]], spec: RunSpec
) -> AccuracyDiagnosis:
    """Return what a finished run says about its accuracy.

    Args:
        result: The content of its result.json.
        facts: What `runs.public_facts` found.
        rows: The metrics of its rounds.
        spec: Its resolved spec.
    """
    run = _Run(spec=spec, result=result, facts=facts, rows=rows)
    margin = 0.0 if run.score != "accuracy" else _CONFIDENCE * run.standard_error
    trivial = facts["trivial_score"]
    at_chance = trivial is not None and result["accuracy"] <= trivial + margin
    ranked = sorted(_suggestions(run), key=lambda one: one[0])
    return AccuracyDiagnosis(
        at_chance=at_chance,
        signal_norm=run.signal,
        noise_norm=facts["noise_norm"],
        findings=tuple(_findings(run, at_chance=at_chance)),
        suggestions=tuple(one for _, one in ranked[:_MOST_SUGGESTIONS]),
    )


def _findings(run: _Run, *, at_chance: bool) -> Iterator[str]:
    found = f"{run.score} {run.result['accuracy']:.3f}"
    if run.facts["trivial_score"] is None:
        yield f"{found}."
    else:
        constant = _CONSTANTS.get(run.score, "the most frequent class")
        yield (
            f"{'The model is at chance level: ' if at_chance else ''}{found}; always answering "
            f"{constant} of the test data has {run.facts['trivial_score']:.3f}."
        )
    signal, norm = run.signal, run.facts["update_norm"]
    if signal is not None and run.noise:
        clip = _fixed_clip(run)
        clear = signal > run.largest_signal / 2.0
        ratio = (
            f"{run.noise / signal:.2g}" if clear else f"over {run.noise / run.largest_signal:.2g}"
        )
        yield (
            f"In a round's mean update (norm {norm:.3g}) the noise (norm {run.noise:.3g}) is "
            f"{ratio} times the signal."
        )
        if clip is not None and run.noise > clip:
            yield f"Even a mean update as long as the clip norm ({clip:g}) is lost in that noise."
    rounding = _rounding(run)
    if rounding is not None:
        kind = run.result["mechanism"]["kind"]
        yield f"{kind} has {rounding:.2f} times the noise of Gaussian noise of the same budget."
    if run.spec.runtime.downlink != "float32":
        yield (
            f"Rounding the model that clients receive to {run.spec.runtime.downlink} moves it by "
            f"{run.facts['downlink_error']:.3g}; a round's mean update has norm {norm or 0.0:.3g}."
        )
    if not run.result["private"]:
        yield "This run is not private: compare private runs with it."


def _rounding(run: _Run) -> float | None:
    """Return the noise of the mechanism over that of Gaussian noise of the same budget."""
    gaussian = run.facts["gaussian_noise_norm"]
    return run.noise / gaussian if gaussian and run.noise else None


def _suggestions(run: _Run) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield every suggestion that applies with its rank: what it costs, and minus the gain."""
    if run.facts["overshoots"]:
        yield from _shorter_steps(run)
    else:
        yield from _from_the_curve(run)
        yield from _of_the_updates(run)
    if run.noisy:
        yield from _against_noise(run)


_FREE, _TRUST, _PRIVACY = 0, 1, 2  # What a suggestion costs.


def _shorter_steps(run: _Run) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield smaller learning rates, for a model that moves too far."""
    loss = run.result["loss"]
    for name in ("server_learning_rate", "local_learning_rate"):
        rate = run.spec.algorithm.parameters.get(name)
        if isinstance(rate, float):
            yield (
                (_FREE, -10.0),
                Suggestion(
                    key=f"algorithm.{name}",
                    change=f"{rate:g} -> {rate / 10:g}",
                    reason=f"The test loss is {loss:.3g}, far above that of guessing, so the model "
                    "moves too far in each round.",
                ),
            )


def _from_the_curve(run: _Run) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield what the accuracy by round suggests."""
    if not run.quarters:
        return
    *_, before, last = run.quarters
    least = max(0.01, run.standard_error)  # All rounds are tested on the same data.
    if max(run.quarters) < (run.facts["trivial_score"] or 0.0) + least:
        return  # A model that has learned nothing moves up and down by chance.
    rate = run.spec.algorithm.parameters.get("server_learning_rate")
    if last - before > least and isinstance(rate, float):
        yield (
            (_FREE, -3.0),
            Suggestion(
                key="algorithm.server_learning_rate",
                change=f"{rate:g} -> {2 * rate:g}",
                reason=f"The {run.score} was still rising in the last quarter of the rounds "
                f"({before:.3f} to {last:.3f}), and a larger step costs no privacy.",
            ),
        )
    best = max(run.quarters)
    if best - last > least:
        place = run.quarters.index(best) + 1
        rounds = max(1, run.spec.rounds * place // 4)
        yield (
            (_FREE, -3.0),
            Suggestion(
                key="rounds",
                change=f"{run.spec.rounds} -> {rounds}",
                reason=f"The {run.score} was best in quarter {place} of the rounds ({best:.3f}, "
                f"then {last:.3f}), and with fewer rounds each has less noise.",
            ),
        )


def _against_noise(run: _Run) -> Iterator[tuple[tuple[int, float], Suggestion]]:
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
    rounding = _rounding(run)
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


def _can_be_summed(run: _Run) -> bool:
    """Return whether a secure sum can serve the run: equal clients, and only their mean is used."""
    spec = run.spec
    aggregation = spec.algorithm.parameters.get("aggregation") or {"kind": "mean"}
    plain = spec.algorithm.kind == "fedavg" and aggregation == {"kind": "mean"}
    alike = run.facts["equal_weights"] and not spec.privacy.groups
    return plain and alike and spec.privacy.record_sampling_rate == 1.0


def _fixed_clip(run: _Run) -> float | None:
    """Return the clip norm of the spec; None if it adapts to the updates."""
    given = run.spec.privacy.clip_norm
    return given if isinstance(given, float) else None


def _of_the_updates(run: _Run) -> Iterator[tuple[tuple[int, float], Suggestion]]:
    """Yield what makes updates use the norm that the noise is made for."""
    spec, signal, clip = run.spec, run.signal, _fixed_clip(run)
    if signal is None or not run.noise or clip is None or run.largest_signal > _SHORT * clip:
        return
    rate = spec.algorithm.parameters.get("local_learning_rate")
    share = 100.0 * run.largest_signal / clip
    short = f"The mean update has at most {share:.2g}% of the clip norm {clip:g}"
    if spec.privacy.level == "client" and isinstance(rate, float):
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
