"""A mechanism audited both ways: its law outcome by outcome, and what it really draws."""

from dataclasses import dataclass
from typing import Any

from sottovoce.auditing.enumeration import audit_by_enumeration
from sottovoce.auditing.sampling import DRAWS, Progress, audit_by_sampling
from sottovoce.auditing.verdict import CONFIDENCE, Verdict
from sottovoce.core.adjacency import Adjacency
from sottovoce.mechanisms.mechanism import Mechanism


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
