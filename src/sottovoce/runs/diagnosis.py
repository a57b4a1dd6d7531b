"""Why the accuracy of a finished run is what it is, and what is most likely to raise it.

It reads only what is public: the result, the metrics of the rounds, and the spec. The server sees
every decoded mean update, and the noise in it follows from the mechanism. So the norm of the signal
is estimated as the root of (mean squared norm of the update - that of the noise). How many updates
were clipped is private: it is stated only where clients' privatized and charged bits tell it
(`privacy.clip_norm = "auto"`), and in runs without privacy.
The suggestions are in `runs.suggestions`.
"""

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from sottovoce.federated.algorithms.statistics import AdaptiveClip
from sottovoce.runs.run_evidence import CLEAR, CONFIDENCE, RunEvidence
from sottovoce.runs.spec import RunSpec
from sottovoce.runs.suggestions import Suggestion, likeliest

PAGE = "docs/how-to/my-accuracy-is-poor.md"  # Printed with every diagnosis.

# The best constant answer by the name of the score.
_CONSTANTS = {
    "R-squared": "the mean",
    "label accuracy": "the more frequent value of each label",
    "token accuracy": "the most frequent token",
}


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
    run = RunEvidence(spec=spec, result=result, facts=facts, rows=rows)
    margin = 0.0 if run.score != "accuracy" else CONFIDENCE * run.standard_error
    trivial = facts["trivial_score"]
    at_chance = trivial is not None and result["accuracy"] <= trivial + margin
    return AccuracyDiagnosis(
        at_chance=at_chance,
        signal_norm=run.signal,
        noise_norm=facts["noise_norm"],
        findings=tuple(_findings(run, at_chance=at_chance)),
        suggestions=likeliest(run),
    )


def _findings(run: RunEvidence, *, at_chance: bool) -> Iterator[str]:
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
        adaptive = run.spec.privacy.level == "client" and run.fixed_clip is None
        unit = ", in units of the clip norm," if adaptive else ""
        clear = signal > run.largest_signal / 2.0
        ratio = (
            f"{run.noise / signal:.2g}" if clear else f"over {run.noise / run.largest_signal:.2g}"
        )
        yield (
            f"In a round's mean update{unit} (norm {norm:.3g}) the noise (norm {run.noise:.3g}) is "
            f"{ratio} times the signal."
        )
        if run.lost:
            yield (
                f"Even if all {len(run.rows)} mean updates were as long as the clip norm "
                f"({run.fixed_clip:g}), they would be lost in that noise."
            )
    yield from _of_noisy_steps(run)
    yield from _of_clipping(run)
    rounding = run.rounding
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
    if at_chance and run.result["private"]:
        yield (
            "Whether the model learns without noise shows a run without privacy: private=False in "
            "simulate, or 'sottovoce run SPEC --no-privacy'."
        )
    elif at_chance:
        yield "It learns nothing without privacy, either: correct model, learning rates or data."


def _of_noisy_steps(run: RunEvidence) -> Iterator[str]:
    """Yield what is known of the noise of local DP-SGD."""
    noise = run.facts.get("step_noise_norm")
    if noise:
        limit, clip = "", run.fixed_clip
        if clip is not None and run.spec.algorithm.parameters.get("clip_geometry", "l2") == "l2":
            limit = f"; the gradient without noise has at most the clip norm {clip:g}"
        yield f"In a local step the noise in a client's mean gradient has norm {noise:.3g}{limit}."
    rounding = run.facts.get("rounding_factor", 1.0)
    if rounding > 1.01:
        bits = run.spec.algorithm.parameters["message_bits"]
        yield (
            f"Rounding messages to {bits} bit{'s' if bits > 1 else ''} a coordinate multiplies the "
            f"noise in them by {rounding:.2f}."
        )


def _of_clipping(run: RunEvidence) -> Iterator[str]:
    """Yield the share of clipped updates, from charged bits or of a run without privacy."""
    shares = [row["clipped_share"] for row in run.rows if "clipped_share" in row]
    if shares:
        what = "clients' updates" if run.spec.privacy.level == "client" else "gradients of samples"
        yield (
            f"Clipping to norm {run.fixed_clip:g} shortened {statistics.fmean(shares):.0%} of "
            f"the {what}, counted from the clients' data, which nothing protects here."
        )
    clip = run.spec.privacy.clip_norm
    if run.unclipped is None or not isinstance(clip, AdaptiveClip):
        return
    share, error = run.unclipped
    ended = f"The clip norm went from {clip.initial:g} to {run.result['clip_norm']:.3g}"
    if error > CLEAR:
        yield (
            f"{ended}. What share of the updates it clipped is lost in noise (standard error "
            f"{error:.1g})."
        )
        return
    clipped = min(1.0, max(0.0, 1.0 - share))
    yield (
        f"{ended}, and in the last half of the rounds it clipped about {clipped:.0%} of the "
        f"updates (standard error {error:.0%}), of {1.0 - clip.quantile:.0%} that are sought."
        f"{' The bits that tell this are private and charged.' if run.result['private'] else ''}"
    )
