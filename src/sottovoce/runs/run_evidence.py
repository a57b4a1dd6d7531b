"""A finished run as its diagnosis sees it: public facts, and what follows from them."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.runs.spec import RunSpec

CONFIDENCE = 2.0  # Standard errors by which two figures must differ.
CLEAR = 0.25  # The largest standard error of a share that is told.
_FEWEST_ROUNDS = 8  # For a trend of the accuracy.
_NOISE_MATTERS = 0.3  # Noise over signal in one round.
_LOUD = 3.0  # Noise over signal in one round, above which noise may move the model at random.
_RANDOM = 0.25  # How much of the ups and downs of the loss is a fall where noise decides.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
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
        return math.sqrt((self.signal or 0.0) ** 2 + CONFIDENCE * spread)

    @property
    def noisy(self) -> bool:
        """Whether the noise in a round is a notable part of the signal."""
        return self.signal is not None and self.noise > _NOISE_MATTERS * self.signal

    @property
    def loud(self) -> bool:
        """Whether the noise in a round is many times the signal."""
        return bool(self.noise) and self.noise > _LOUD * self.largest_signal

    @property
    def lost(self) -> bool:
        """Whether even mean updates as long as the clip norm are lost in the noise of all rounds.

        Over n rounds such updates add up to n times their norm, and noise to sqrt(n) times its own.
        """
        clip = self.fixed_clip
        if clip is None or self.takes_noisy_steps or not self.noise:
            return False
        return self.noise > clip * math.sqrt(max(1, len(self.rows)))

    @property
    def takes_noisy_steps(self) -> bool:
        """Whether clients add the noise to their local steps."""
        return "step_noise_norm" in self.facts

    @property
    def standard_error(self) -> float:
        """The standard error of an accuracy of one half, the largest."""
        return 0.5 / math.sqrt(max(1, self.facts["test_samples"]))

    @property
    def least_difference(self) -> float:
        """The least difference of scores that counts; all rounds are tested on the same data."""
        return max(0.01, self.standard_error)

    @property
    def moved_at_random(self) -> bool:
        """Whether noise, and not the signal, decides where a step leads."""
        return self.loud and self.steadiness < _RANDOM

    @property
    def score(self) -> str:
        """What `accuracy` measures."""
        return str(self.result.get("score", "accuracy"))

    @property
    def quarters(self) -> list[float]:
        """The mean score in each quarter of the rounds; empty if there are too few."""
        return self._quarters_of("accuracy")

    @property
    def steadiness(self) -> float:
        """The fall of the test loss in the last half of the rounds over the sum of all changes.

        Near 1 it falls from round to round, as with steps that are rather short; near 0 it moves up
        and down, as where noise decides where a step leads. 1 if there are too few rounds.
        """
        losses = [row["loss"] for row in self.rows if row["loss"] is not None]
        losses = losses[len(losses) // 2 :]
        if len(losses) < _FEWEST_ROUNDS // 2:
            return 1.0
        changes = [before - after for before, after in itertools.pairwise(losses)]
        return float(sum(changes) / max(sum(map(abs, changes)), 1e-300))

    def _quarters_of(self, name: str) -> list[float]:
        known = [row[name] for row in self.rows if row[name] is not None]
        if len(known) < _FEWEST_ROUNDS:
            return []
        size = len(known) // 4
        return [statistics.fmean(known[i * size : (i + 1) * size]) for i in range(4)]

    @property
    def unclipped(self) -> tuple[float, float] | None:
        """The private share of unclipped updates in the last half of the rounds, and its error."""
        rows = [row for row in self.rows if "unclipped_share" in row]
        rows = rows[len(rows) // 2 :]
        if not rows:
            return None
        errors = [float(row["unclipped_share_error"]) for row in rows]
        share = statistics.fmean(row["unclipped_share"] for row in rows)
        return share, math.sqrt(sum(error**2 for error in errors)) / len(rows)

    @property
    def fixed_clip(self) -> float | None:
        """The clip norm of the spec; None if it adapts to the updates."""
        given = self.spec.privacy.clip_norm
        return given if isinstance(given, float) else None

    @property
    def rounding(self) -> float | None:
        """The noise of the mechanism over that of Gaussian noise of the same budget."""
        gaussian = self.facts["gaussian_noise_norm"]
        return self.noise / gaussian if gaussian and self.noise else None
