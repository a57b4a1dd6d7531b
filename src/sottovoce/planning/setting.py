"""What is asked of a mechanism: the budget, the clip, and how much may be sent."""

from dataclasses import dataclass
from typing import Any

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball, clip_norm_of, geometry_of
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.privacy.calibration import MAX_ROUNDS
from sottovoce.privacy.compositions import SAMPLE_ASSUMPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One update a round in `domain`, within (epsilon, delta) over all `rounds`.

    terms     what decides the cost of an update beside its mechanism.
    bits      the most bits a coordinate that a message may hold, header apart; None is any number.
    exact     for deployment: choose among mechanisms sampled exactly, if there are any.
    designs   also calibrate what takes a minute, because every value tried is a design to solve.
    """

    domain: Domain
    epsilon: float
    delta: float
    terms: ReleaseTerms
    rounds: int
    bits: float | None = None
    exact: bool = False
    designs: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.domain, L1Ball | L2Ball) and not (
            isinstance(self.domain, Box) and self.domain.lower == -self.domain.upper
        ):
            raise ParameterError(
                f"a plan is for a ball, or a box around 0, got {self.domain}; shift the data"
            )
        parameter_rules.epsilon(self.epsilon)
        parameter_rules.delta(self.delta)
        parameter_rules.integer("rounds", self.rounds, low=1, high=MAX_ROUNDS)
        if self.bits is not None:
            parameter_rules.positive("bits (the most a coordinate may take)", self.bits)

    @property
    def clip_norm(self) -> float:
        """The largest norm of an update."""
        return clip_norm_of(self.domain)

    def describe(self) -> dict[str, Any]:
        """The question as plain data, to stand beside its answer."""
        described: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": str(self.terms.adjacency),
            "rounds": self.rounds,
            "dimension": self.domain.dimension,
            "clip_norm": self.clip_norm,
            "clip_geometry": geometry_of(self.domain),
            "bits": self.bits,
        }
        sample = self.terms.sample
        if sample is not None:
            described |= {
                "sampling": sample.describe(),
                "assumes": SAMPLE_ASSUMPTIONS[sample.hidden_by],
            }
        return described
