"""Audits of a mechanism: exact enumeration of its declared law, and sampling of its real output.

The sampling audit draws from two neighboring inputs and asks how well the draws can be told apart.
Two statistics compete: the likelihood ratio of the declared laws, and one that does not rely on
them, the observed frequencies of the outcomes (or, where there are too many outcomes to count, the
projection on the difference of the inputs).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.auditing.draws import sample_decoded
from sottovoce.auditing.enumeration import (
    MAX_OUTCOMES,
    audit_by_enumeration,
    delta_of,
    neighboring_pairs,
    num_outcomes,
)
from sottovoce.auditing.laws import cache_laws, log_ratio, refute_law
from sottovoce.auditing.lower_bounds import DrawScores, judge
from sottovoce.auditing.verdict import CONFIDENCE, Certificate, ErrorShares, Verdict
from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.mechanisms.mechanism import Mechanism

DRAWS = 1_000_000

Progress = Callable[[int, int], None]  # (draws made, draws in all)


def audit_by_sampling(
    mechanism: Mechanism,
    adjacency: Adjacency,
    *,
    delta: float,
    draws: int = DRAWS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    processes: int = 1,
    progress: Progress | None = None,
) -> Verdict:
    """Return lower bounds on epsilon and delta from samples of two neighbors, with the certificate.

    The certificate is the mechanism's privacy event. `draws` outputs are drawn by `encode` for each
    input of one pair: the one that the declared laws make easiest to tell apart. The verdict also
    says whether the draws refute the declared law. Raise ParameterError unless `draws` lies between
    200 and 10^9, and the confidence in [0.5, 1).
    """
    parameter_rules.integer("draws", draws, low=200, high=10**9)
    share = ErrorShares.of(confidence, 1).of_the_law / 2.0
    certificate = Certificate(event=mechanism.privacy(adjacency), delta=delta)
    first, second = _most_distinguishable_pair(mechanism, adjacency, certificate)
    made: list[Vector] = []
    for side, values in (("first", first), ("second", second)):
        note = None
        if progress is not None:
            done, report = len(made) * draws, progress

            def note(count: int, done: int = done, report: Progress = report) -> None:
                report(done + count, 2 * draws)

        made.append(sample_decoded(mechanism, values, draws, (seed, side), processes, note))
    learning = choosing = draws // 20
    statistics = [_score_outcomes(made[0], made[1], first - second, learning)]
    laws = mechanism.law(first), mechanism.law(second)
    ratios = [log_ratio(*laws, decoded) for decoded in made]
    if ratios[0] is not None and ratios[1] is not None:
        statistics.append(DrawScores(first=ratios[0], second=ratios[1]))
    verdict = judge(
        statistics,
        certificate,
        learning=learning,
        choosing=choosing,
        confidence=confidence,
        method="sampling of encode",
    )
    found = [refute_law(law, decoded, share) for law, decoded in zip(laws, made, strict=True)]
    return dataclasses.replace(verdict, law_refuted=next(filter(None, found), None))


def _most_distinguishable_pair(
    mechanism: Mechanism, adjacency: Adjacency, certificate: Certificate
) -> tuple[Vector, Vector]:
    """Return the neighbors whose declared laws have the largest delta.

    Delta is taken at half the certified epsilon, or at 1 without a certificate. Where it is not
    known, the pair at the largest distance is returned.
    """
    law_of = cache_laws(mechanism)
    middle = certificate.epsilon / 2.0 if np.isfinite(certificate.epsilon) else 1.0

    def distinguishability(pair: tuple[Vector, Vector]) -> tuple[float, float]:
        laws = law_of(pair[0]), law_of(pair[1])
        known = num_outcomes(laws[0]) <= MAX_OUTCOMES
        apart = float(np.linalg.norm(pair[0] - pair[1]))
        return (delta_of(*laws, middle) if known else 0.0), apart

    pairs = neighboring_pairs(mechanism.input_domain, adjacency, np.random.default_rng(5))
    return max(pairs, key=distinguishability)


def _score_outcomes(first: Vector, second: Vector, difference: Vector, learning: int) -> DrawScores:
    """Return the log ratio of the outcomes' frequencies as scores.

    Where few outcomes repeat, return the projection on `difference` instead. Both the choice and
    the frequencies come from the first `learning` draws, which are not used again; an outcome that
    does not occur among them has the score 0.
    """
    outcomes = _number_rows(np.concatenate([first, second]))
    sides = outcomes[: len(first)], outcomes[len(first) :]
    seen = [side[:learning] for side in sides]
    if len(np.unique(np.concatenate(seen))) > min(MAX_OUTCOMES, learning // 10):
        return DrawScores(first=first @ difference, second=second @ difference)
    size = int(outcomes.max()) + 1
    counts = [np.bincount(side, minlength=size) + 0.5 for side in seen]
    ratios = np.log(counts[0] / counts[1])
    return DrawScores(first=ratios[sides[0]], second=ratios[sides[1]])


def _number_rows(rows: Vector) -> NDArray[np.intp]:
    """Return a number for each row; equal rows have equal numbers."""
    numbers = np.zeros(len(rows), dtype=np.intp)
    for column in rows.T:
        distinct, codes = np.unique(column, return_inverse=True)
        _, numbers = np.unique(numbers * len(distinct) + codes, return_inverse=True)
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismAudit:
    """The results of both audits of a mechanism.

    Attributes:
        exact: The verdict of the enumeration; None if no law can be enumerated or nothing is
            certified.
        sampled: The verdict of the sampling.
    """

    exact: Verdict | None
    sampled: Verdict

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict of the enumeration, if there is one, and then that of the sampling."""
        return (self.sampled,) if self.exact is None else (self.exact, self.sampled)

    @property
    def violated(self) -> bool:
        """Whether an audit found a violation of the certificate, or refuted the declared law."""
        return any(verdict.violated for verdict in self.verdicts)

    @property
    def strongest(self) -> Verdict:
        """The verdict with a violation, or else the one with the larger lower bound."""
        return max(self.verdicts, key=lambda verdict: (verdict.violated, verdict.lower_bound))

    def plain(self) -> dict[str, Any]:
        """Return the audit as plain data for JSON.

        Returns:
            The fields of `strongest`, and the verdicts of all audits under "audits".
        """
        return {
            **self.strongest.plain(),
            "confidence": self.sampled.confidence,
            "violated": self.violated,
            "audits": [verdict.plain() for verdict in self.verdicts],
        }


def audit_mechanism(
    mechanism: Mechanism,
    adjacency: str | Adjacency,
    *,
    delta: float,
    draws: int = DRAWS,
    confidence: float = CONFIDENCE,
    seed: int,
    processes: int = 1,
    progress: Progress | None = None,
) -> MechanismAudit:
    """Audit one release of a mechanism by exact enumeration and by sampling.

    Args:
        mechanism: The mechanism.
        adjacency: "zero-out" or "replace-one"; an underscore may stand for the hyphen.
        delta: The delta at which epsilon is compared.
        draws: Samples of each of two neighboring inputs.
        confidence: Probability with which the bounds of the sampling hold.
        seed: Seed of the samples; the same seed gives the same verdict.
        processes: Processes for mechanisms that are sampled one message at a time.
        progress: Called with the samples drawn so far and their total number.

    Returns:
        Both verdicts. A verdict that is violated shows that the mechanism is not as private as its
        event claims, or that its output does not follow the law that it declares (by sampling: with
        the stated confidence); one that holds proves nothing.

    Raises:
        ParameterError: The number of draws (200 to 10^9), the confidence (from 0.5, below 1) or
            delta is out of range, or the domain is not a Box, an L1Ball or an L2Ball.
        UnknownNameError: There is no such adjacency.

    Examples:
        >>> from sottovoce.core import L2Ball
        >>> from sottovoce.mechanisms import Gaussian
        >>> ball = L2Ball(dimension=2, radius=1.0)
        >>> mechanism = Gaussian(input_domain=ball, noise_multiplier=2.0)
        >>> audit = audit_mechanism(mechanism, "zero_out", delta=1e-5, draws=2000, seed=1)
        >>> audit.violated
        False
    """
    adjacency = Adjacency.parse(adjacency)
    return MechanismAudit(
        exact=audit_by_enumeration(mechanism, adjacency, delta=delta),
        sampled=audit_by_sampling(
            mechanism,
            adjacency,
            delta=delta,
            draws=draws,
            confidence=confidence,
            seed=seed,
            processes=processes,
            progress=progress,
        ),
    )
