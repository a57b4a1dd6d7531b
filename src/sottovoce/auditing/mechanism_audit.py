"""A mechanism audited both ways: its law outcome by outcome, and what it really draws.

Many real draws of two neighbouring inputs, and what can be told of them.

Two statistics compete: the likelihood ratio of the declared laws, and one that trusts no
declaration, the frequencies of the outcomes themselves (or, where there are too many to count, the
projection on the difference of the inputs).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.auditing.draws import drawn
from sottovoce.auditing.enumeration import (
    MAX_OUTCOMES,
    audit_by_enumeration,
    delta_of,
    neighbours,
    num_outcomes,
)
from sottovoce.auditing.laws import log_ratio, refutation, remembered
from sottovoce.auditing.lower_bounds import Scores, judge
from sottovoce.auditing.verdict import CONFIDENCE, Certificate, Shares, Verdict
from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.mechanisms.mechanism import Mechanism

DRAWS = 1_000_000

Progress = Callable[[int, int], None]  # draws made, and of how many


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
    """What `draws` of each of two neighbours prove about the mechanism as it runs."""
    parameter_rules.integer("draws", draws, low=200, high=10**9)
    share = Shares.of(confidence, 1).of_the_law / 2.0
    certificate = Certificate(event=mechanism.privacy(adjacency), delta=delta)
    first, second = telling_pair(mechanism, adjacency, certificate)
    made: list[Vector] = []
    for side, values in (("first", first), ("second", second)):
        note = None
        if progress is not None:
            done, report = len(made) * draws, progress

            def note(count: int, done: int = done, report: Progress = report) -> None:
                report(done + count, 2 * draws)

        made.append(drawn(mechanism, values, draws, (seed, side), processes, note))
    learning = choosing = draws // 20
    statistics = [_by_outcome(made[0], made[1], first - second, learning)]
    laws = mechanism.law(first), mechanism.law(second)
    ratios = [log_ratio(*laws, decoded) for decoded in made]
    if ratios[0] is not None and ratios[1] is not None:
        statistics.append(Scores(first=ratios[0], second=ratios[1]))
    verdict = judge(
        statistics,
        certificate,
        learning=learning,
        choosing=choosing,
        confidence=confidence,
        method="sampling of encode",
    )
    found = [refutation(law, decoded, share) for law, decoded in zip(laws, made, strict=True)]
    return dataclasses.replace(verdict, law_refuted=next(filter(None, found), None))


def telling_pair(
    mechanism: Mechanism, adjacency: Adjacency, certificate: Certificate
) -> tuple[Vector, Vector]:
    """Neighbours that the declared laws tell apart best, or the farthest where none says."""
    law_of = remembered(mechanism)
    middle = certificate.epsilon / 2.0 if np.isfinite(certificate.epsilon) else 1.0

    def worth(pair: tuple[Vector, Vector]) -> tuple[float, float]:
        laws = law_of(pair[0]), law_of(pair[1])
        known = num_outcomes(laws[0]) <= MAX_OUTCOMES
        apart = float(np.linalg.norm(pair[0] - pair[1]))
        return (delta_of(*laws, middle) if known else 0.0), apart

    pairs = neighbours(mechanism.input_domain, adjacency, np.random.default_rng(5))
    return max(pairs, key=worth)


def _by_outcome(first: Vector, second: Vector, difference: Vector, learning: int) -> Scores:
    """The log-ratio of outcomes' frequencies; or the projection, where few are seen twice.

    Both are decided by the first draws, which no set is chosen by and none counted: an outcome that
    is not among them speaks for neither.
    """
    outcomes = _numbered(np.concatenate([first, second]))
    sides = outcomes[: len(first)], outcomes[len(first) :]
    seen = [side[:learning] for side in sides]
    if len(np.unique(np.concatenate(seen))) > min(MAX_OUTCOMES, learning // 10):
        return Scores(first=first @ difference, second=second @ difference)
    size = int(outcomes.max()) + 1
    counts = [np.bincount(side, minlength=size) + 0.5 for side in seen]
    ratios = np.log(counts[0] / counts[1])
    return Scores(first=ratios[sides[0]], second=ratios[sides[1]])


def _numbered(rows: Vector) -> NDArray[np.intp]:
    """A number for each row, the same where rows are."""
    numbers = np.zeros(len(rows), dtype=np.intp)
    for column in rows.T:
        distinct, codes = np.unique(column, return_inverse=True)
        _, numbers = np.unique(numbers * len(distinct) + codes, return_inverse=True)
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismAudit:
    """`exact` is None where no law can be enumerated, or nothing is certified."""

    exact: Verdict | None
    sampled: Verdict

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return (self.sampled,) if self.exact is None else (self.exact, self.sampled)

    @property
    def violated(self) -> bool:
        return any(verdict.violated for verdict in self.verdicts)

    @property
    def telling(self) -> Verdict:
        """The one that found a violation, else the one that came closer to the certificate."""
        return max(self.verdicts, key=lambda verdict: (verdict.violated, verdict.lower_bound))

    def plain(self) -> dict[str, Any]:
        return {
            **self.telling.plain(),
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
    """Return both audits of one release: by exact enumeration, and by sampling."""
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
