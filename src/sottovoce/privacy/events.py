"""Privacy events: the closed set of classes that describe the privacy of every mechanism.

Mechanisms are an open set, events a closed one. A new mechanism is one file because it describes
itself by one of these events; a new accountant is one file because it handles all of them (`match`
ending in `assert_never`). Each event carries its adjacency relation; events under different
adjacencies do not compose.

Events are plain immutable data. The ledger stores events, never epsilons: epsilon is recomputed
from them. All events are in this one file because the author of an accountant has to read the whole
set.

Notation used by all accountants. P and Q are the laws (probability distributions) of a release on
two neighboring inputs; the privacy loss is log(dP/dQ); D_a(P || Q) is the Renyi divergence of order
a > 1. Under zero-out adjacency neighbors differ in one contribution that is replaced by zero, under
replace-one adjacency by another valid contribution.

Stability contract. Ledgers outlive versions of this package: every later version must read what was
charged, with the same meaning. Therefore:

- An event class is never removed, even if no mechanism produces it any longer.
- The name under which an event is stored (`privacy.event_json.STORED_NAMES`) never changes. The
  class itself may be renamed or moved.
- Fields are never removed or renamed. A new field is optional. Its default states what held for
  the events that were stored before it existed, and a field at its default is left out of the
  stored text, so that the text of older events (and every digest over it) stays the same.
- The meaning of an event, of a field and of a field's value never changes. If an event turns out to
  promise more than was proved, accountants must charge more for it. They never charge less on the
  ground of a property that earlier events were not known to have.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import MAX_DIMENSION
from sottovoce.core.errors import AdjacencyMismatchError, ParameterError


def _check_adjacency(adjacency: object) -> None:
    # A string would compare unequal to both members, so that a check for one of them would
    # silently take it for the other.
    if not isinstance(adjacency, Adjacency):
        raise ParameterError(
            f"adjacency must be Adjacency.ZERO_OUT or Adjacency.REPLACE_ONE, got {adjacency!r}"
        )


def _check_zero_centered(value: object, adjacency: Adjacency) -> None:
    if not isinstance(value, bool):
        raise ParameterError(f"zero_centered must be true or false, got {value!r}")
    if value and adjacency != Adjacency.REPLACE_ONE:
        raise ParameterError(
            f"zero_centered applies to replace-one adjacency only, got {adjacency} (there one of "
            "the neighbors is zero itself); leave zero_centered out"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPrivate:
    """A release without any privacy guarantee; every finite epsilon is exceeded.

    Attributes:
        adjacency: The adjacency relation under which the event is composed.
    """

    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise:
    """Gaussian noise whose mean moves by at most `mu` standard deviations between neighbors.

    The pair N(mu, 1) and N(0, 1) dominates it and is attained: it is exactly mu-GDP (Dong, Roth and
    Su 2022).

    Attributes:
        mu: Sensitivity divided by the standard deviation of the noise.
        adjacency: The adjacency relation.
        zero_centered: For replace-one only. True if no contribution lies farther than mu/2 standard
            deviations of the noise from zero, where zero is what counts for a contribution that was
            not sampled.

    Examples:
        >>> from sottovoce.core.adjacency import Adjacency
        >>> GaussianNoise(mu=0.5, adjacency=Adjacency.ZERO_OUT).mu
        0.5
    """

    mu: float
    adjacency: Adjacency
    zero_centered: bool = False

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        parameter_rules.positive("mu", self.mu)
        _check_zero_centered(self.zero_centered, self.adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoise:
    """Independent Laplace noise on `dimension` coordinates.

    The inputs of neighbors lie at most `shift` noise scales apart in Euclidean norm. With dimension
    1 the event also covers any number of coordinates whose inputs lie `shift` scales apart in L1
    norm: there a shift of a single coordinate is the worst case (see `privacy.additive_noise`).

    Attributes:
        shift: L2 sensitivity (with dimension 1 also L1) divided by the scale of the noise.
        dimension: Number of coordinates.
        adjacency: The adjacency relation.
    """

    shift: float
    dimension: int
    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        parameter_rules.positive("shift", self.shift)
        parameter_rules.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConcentrated:
    """A rho-zCDP release: D_a <= rho a for every order a > 1, in both directions.

    D_a is the Renyi divergence of order a between the laws of the release on two neighbors.

    Reference: Bun and Steinke 2016, definition 1.1.

    Attributes:
        rho: The zCDP parameter.
        adjacency: The adjacency relation.
        zero_centered: For replace-one only. True if the laws are products of exponential families
            with Fisher information at most M at every tilt, and each contribution tilts the law
            that results without it by at most t (Euclidean norm), where rho = M (2t)^2/2.
    """

    rho: float
    adjacency: Adjacency
    zero_centered: bool = False

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        parameter_rules.positive("rho", self.rho)
        _check_zero_centered(self.zero_centered, self.adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class PureDp:
    """A release that is (epsilon, 0)-DP: likelihood ratios of neighbors are at most e^epsilon.

    Attributes:
        epsilon: The pure epsilon, above 0.
        adjacency: The adjacency relation.
    """

    epsilon: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        parameter_rules.positive("epsilon", self.epsilon)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDp:
    """A metric-DP release: inputs at distance t have likelihood ratios of at most e^(epsilon t).

    Accountants count it as pure DP with epsilon * distance, the bound between neighbors.

    Attributes:
        epsilon: Epsilon per unit of the metric.
        metric: Name of the metric.
        distance: Largest distance between neighbors, in units of the metric.
        adjacency: The adjacency relation.
    """

    epsilon: float
    metric: str
    distance: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        parameter_rules.positive("epsilon", self.epsilon)
        parameter_rules.positive("distance", self.distance)

    def pure(self) -> "PureDp":
        """Return the pure DP event that holds between neighbors.

        Returns:
            `PureDp` with epsilon * distance.
        """
        return PureDp(epsilon=self.epsilon * self.distance, adjacency=self.adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinitePair:
    """A release that one pair of pmfs dominates; accountants count the pair in both orders.

    For any two neighbors in a given order, one of the two orders of the pair has at least their
    delta at every epsilon.

    Attributes:
        first: Probabilities of the outcomes for one neighbor.
        second: Probabilities of the same outcomes for the other neighbor.
        adjacency: The adjacency relation.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        if len(self.first) != len(self.second) or not self.first:
            raise ParameterError(
                "first and second must be pmfs of the same, positive length, got "
                f"{len(self.first)} and {len(self.second)} outcomes"
            )
        for pmf in (self.first, self.second):
            if any(not 0.0 <= p <= 1.0 for p in pmf) or abs(math.fsum(pmf) - 1.0) > 1e-12:
                raise ParameterError("each pmf must hold probabilities that sum to 1 within 1e-12")


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteTable:
    """One message drawn from a row of a finite table; the client's input alone selects the row.

    Zero-out compares every row with the row `zero`, replace-one compares any two rows. The message
    must not contain any other client's contribution.

    Attributes:
        rows: The pmfs, all over the same outcomes.
        zero: Index of the row of a zero contribution. None if it is only known to be some mixture
            of the rows; zero-out needs an index.
        adjacency: The adjacency relation.
    """

    rows: tuple[tuple[float, ...], ...]
    zero: int | None
    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        if len(self.rows) < 2 or len({len(row) for row in self.rows}) != 1 or not self.rows[0]:
            raise ParameterError("rows must be at least two pmfs of the same, positive length")
        for row in self.rows:
            if any(not 0.0 <= p <= 1.0 for p in row) or abs(math.fsum(row) - 1.0) > 1e-12:
                raise ParameterError("each row must hold probabilities that sum to 1 within 1e-12")
        if self.zero is None:
            if self.adjacency == Adjacency.ZERO_OUT:
                raise ParameterError(
                    "zero must be a row's index under zero-out, which compares every row with "
                    "that of a zero contribution; give the index, or use replace-one"
                )
        elif isinstance(self.zero, bool) or self.zero not in range(len(self.rows)):
            raise ParameterError(
                f"zero must be a row's index, from 0 to {len(self.rows) - 1}, got {self.zero!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiCurve:
    """Bounds on Renyi divergences: D_a <= divergences[i] at a = orders[i], in both directions.

    D_a is the Renyi divergence of order a between the laws of the release on two neighbors. It does
    not decrease with a, so between two orders, and below the first, the bound of the next larger
    order holds. Beyond the last order nothing is known.

    Attributes:
        orders: Increasing Renyi orders above 1.
        divergences: The bound at each order; infinity where none is known.
        adjacency: The adjacency relation.
    """

    orders: tuple[float, ...]
    divergences: tuple[float, ...]
    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        if len(self.orders) != len(self.divergences) or not self.orders:
            raise ParameterError(
                "divergences must have one bound for each order, at least one, got "
                f"{len(self.divergences)} for {len(self.orders)} orders"
            )
        if not self.orders[0] > 1.0 or any(
            not a < b for a, b in zip(self.orders, self.orders[1:], strict=False)
        ):
            raise ParameterError("orders must increase and lie above 1")
        if any(not d >= 0.0 for d in self.divergences):
            raise ParameterError("divergences must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBit:
    """Independent bits with P(1) = 1/(1 + e^-z), one logit z per coordinate.

    Whatever the logits are, those of neighbors differ by at most `shift` in Euclidean norm.

    Attributes:
        shift: Largest Euclidean distance between the logits of neighbors.
        dimension: Number of bits.
        adjacency: The adjacency relation.
        against_zero: For zero-out only. True if the message contains nothing but this contribution,
            so that all bits of the neighbor without it are fair (logit 0).
        zero_centered: For replace-one only. True if each contribution moves the logits that result
            without it by at most shift/2 in Euclidean norm.
    """

    shift: float
    dimension: int
    adjacency: Adjacency
    against_zero: bool = False
    zero_centered: bool = False

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        parameter_rules.positive("shift", self.shift)
        parameter_rules.integer("dimension", self.dimension, low=1, high=MAX_DIMENSION)
        if not isinstance(self.against_zero, bool):
            raise ParameterError(f"against_zero must be true or false, got {self.against_zero!r}")
        if self.against_zero and self.adjacency != Adjacency.ZERO_OUT:
            raise ParameterError(
                f"against_zero applies to zero-out adjacency only, got {self.adjacency} (where the "
                "bits of neither neighbor need be fair); leave against_zero out"
            )
        _check_zero_centered(self.zero_centered, self.adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededBits:
    """The bits of `OneBit`, sent as seeds that rejection sampling chose with truncated odds.

    The client sends a seed from which the server expands the bits. Truncating the odds of the
    rejection sampler raises the Renyi divergence D_a of the bits by at most `excess` a/(a - 1), in
    both directions. With `against_zero`, E h(loss) <= e^excess E h(loss of the bits + excess) for
    every sum h of functions (l - t)_+^3 with nonnegative coefficients. Proof:
    docs/explanation/privacy.md, section 27.

    Attributes:
        shift: Largest Euclidean distance between the logits of neighbors.
        dimension: Number of bits.
        excess: Bound on the logarithm of the distortion by truncation.
        largest_loss: Bound on the logarithm of every likelihood ratio of neighbors: a pure epsilon.
        adjacency: The adjacency relation.
        against_zero: For zero-out only. True if the bits of the neighbor without the contribution
            are fair.
    """

    shift: float
    dimension: int
    excess: float
    largest_loss: float
    adjacency: Adjacency
    against_zero: bool = False

    def __post_init__(self) -> None:
        parameter_rules.positive("excess", self.excess)
        parameter_rules.positive("largest_loss", self.largest_loss)
        self.bits()  # checks the rest

    def bits(self) -> OneBit:
        """Return the event of the same bits drawn directly, without seeds.

        Returns:
            `OneBit` with the same shift, dimension, adjacency and `against_zero`.
        """
        return OneBit(
            shift=self.shift,
            dimension=self.dimension,
            adjacency=self.adjacency,
            against_zero=self.against_zero,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedBits:
    """Coordinate-wise sums of the bits of `clients` clients, of which only the sums are seen.

    One client is protected as in `OneBit`; the bits of the others hide its bits. All of them must
    draw their bits with the stated law, with logits within `logit_bound` of 0, and must not reveal
    them. Proof: docs/explanation/privacy.md, sections 17 and 30.

    Attributes:
        shift: Largest Euclidean distance between the logits of neighbors.
        dimension: Number of coordinates.
        logit_bound: Bound on the absolute value of every logit.
        clients: Number of clients in the sum that follow the protocol, the protected one included.
        adjacency: The adjacency relation.
        against_zero: For zero-out only. True if the bits of the neighbor without the contribution
            are fair.
    """

    shift: float
    dimension: int
    logit_bound: float
    clients: int
    adjacency: Adjacency
    against_zero: bool = False

    def __post_init__(self) -> None:
        parameter_rules.positive("logit_bound", self.logit_bound)
        parameter_rules.integer("clients", self.clients, low=1, high=2**31)
        self.local()  # checks the rest

    @classmethod
    def of(cls, local: OneBit, logit_bound: float, clients: int) -> "SummedBits":
        """Return the event of sums over `clients` clients with bits of a local event.

        Args:
            local: The event of one client's bits by themselves.
            logit_bound: Bound on the absolute value of every logit.
            clients: Number of clients in the sum that follow the protocol.

        Returns:
            The event of the sums.
        """
        return cls(
            shift=local.shift,
            dimension=local.dimension,
            logit_bound=logit_bound,
            clients=clients,
            adjacency=local.adjacency,
            against_zero=local.against_zero,
        )

    def local(self) -> OneBit:
        """Return the event of the protected client's bits if they were seen themselves.

        Returns:
            `OneBit` with the same shift, dimension, adjacency and `against_zero`.
        """
        return OneBit(
            shift=self.shift,
            dimension=self.dimension,
            adjacency=self.adjacency,
            against_zero=self.against_zero,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedNoise:
    """Sums of noisy integers of `clients` clients, of which only the sums are seen.

    Every message by itself is `GaussianNoise` of this `mu`, rounded to a grid. All clients must
    draw noise of the same standard deviation, independently, and must not reveal it. The law of the
    sum differs from that of Gaussian noise of sqrt(clients) times that standard deviation, followed
    by post-processing, at most by a factor of e^excess in either direction. Proof:
    docs/explanation/privacy.md, section 35.

    Attributes:
        mu: Sensitivity divided by the standard deviation of the noise of one message.
        clients: Number of clients in the sum that follow the protocol, the protected one included.
        excess: Bound on the logarithm of the factor between the two laws, of all coordinates.
        adjacency: The adjacency relation.
    """

    mu: float
    clients: int
    excess: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        parameter_rules.integer("clients", self.clients, low=1, high=2**31)
        if parameter_rules.finite("excess", self.excess) < 0.0:
            raise ParameterError(f"excess must be at least 0, got {self.excess!r}; use 0 for none")
        self.local()  # checks the rest

    def local(self) -> GaussianNoise:
        """Return the event of the protected client's message if it were seen itself.

        Returns:
            `GaussianNoise` with the same mu and adjacency.
        """
        return GaussianNoise(mu=self.mu, adjacency=self.adjacency)


SamplingScheme = Literal["poisson", "fixed-size"]
# What keeps the sample secret. Without it sampling does not amplify. With "secure-sum" the clients
# that were not sampled send the encoding of zero, because a missing message would lack its noise.
HiddenBy = Literal["own-records", "central-noise", "secure-sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One release on a secret sample that contains each contribution with probability `rate`.

    The two schemes:

        poisson      Each contribution is sampled independently; one that is not sampled counts as
                     zero.
        fixed-size   The sample is uniform among the sets of a fixed size. Under zero-out another
                     contribution takes the place of one that is not sampled, so this scheme is
                     accounted under replace-one only.

    Attributes:
        event: One release without amplification: a basic event or a composition of basic events.
        rate: Probability that a contribution is in the sample, above 0 and at most 1.
        scheme: "poisson" or "fixed-size".
        hidden_by: What keeps the sample secret: "own-records" (a client samples its own records),
            "central-noise" or "secure-sum".
    """

    event: "PrivacyEvent"
    rate: float
    scheme: SamplingScheme
    hidden_by: HiddenBy

    def __post_init__(self) -> None:
        parameter_rules.fraction("sampling rate", self.rate)
        for name, value, choices in (
            ("scheme", self.scheme, get_args(SamplingScheme)),
            ("hidden_by", self.hidden_by, get_args(HiddenBy)),
        ):
            if value not in choices:
                raise ParameterError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        _check_local(self.event, "sampled")
        if self.scheme == "fixed-size" and self.adjacency != Adjacency.REPLACE_ONE:
            raise ParameterError(
                "fixed-size sampling is accounted under replace-one only, got zero-out (another "
                "contribution takes the place of one that is not sampled); use adjacency "
                "replace-one or Poisson sampling"
            )

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency relation of the inner event."""
        return self.event.adjacency


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """The messages of `clients` clients in a uniformly random, secret order.

    Every message comes from a local randomizer with the privacy `event`, which must have a finite
    pure epsilon; see `privacy.shuffling`.

    Attributes:
        event: The local guarantee of one message, without amplification.
        clients: Number of clients that follow the protocol, the protected one included.
        ratios: (lo, hi) such that lo <= dR/dQ <= hi for the law R of every client's message,
            whatever its input, against one common law Q. Q may depend on earlier messages but on
            no client's input. None if no such bounds are known.
    """

    event: "PrivacyEvent"
    clients: int
    ratios: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        parameter_rules.integer("clients", self.clients, low=1, high=2**31)
        _check_local(self.event, "shuffled")
        if self.ratios is not None:
            if len(self.ratios) != 2 or not 0.0 < self.ratios[0] <= 1.0 <= self.ratios[1]:
                raise ParameterError(
                    "ratios (bounds on the density of a message relative to one common law) must "
                    f"be (lo, hi) with 0 < lo <= 1 <= hi, got {self.ratios!r}"
                )
            if not math.isfinite(self.ratios[1]):
                raise ParameterError(f"ratios must be finite, got {self.ratios!r}")

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency relation of the inner event."""
        return self.event.adjacency


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """Random allocation (balls and bins): a client takes part in one of `steps` releases.

    Each client draws its step uniformly, independently of the other clients and in secret. Every
    step releases the sum of its contributions with the noise of `event`. Cohorts that are cut from
    one permutation of the clients are not covered: there the step of one client constrains the
    steps of the others.

    Attributes:
        event: Gaussian noise of one step, with the mu of a contribution to that step.
        steps: Number of steps, at least 1.
    """

    event: GaussianNoise
    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.event, GaussianNoise):
            raise ParameterError(
                f"random allocation is accounted for GaussianNoise only, got {self.event!r}; use "
                "Sampled for other events"
            )
        parameter_rules.integer("steps", self.steps, low=1, high=2**31)

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency relation of the inner event."""
        return self.event.adjacency


def _check_local(event: "PrivacyEvent", verb: str) -> None:
    """Raise unless the event is one release without amplification.

    Amplifying an amplified event would need a theorem of its own.
    """
    if not isinstance(event, PrivacyEvent):
        raise ParameterError(f"what is {verb} must be a privacy event, got {event!r}")
    for part in basic_counts(event):
        if isinstance(part, Sampled | Shuffled | SummedBits | SummedNoise | Allocated):
            raise ParameterError(
                f"an event with a part {type(part).__name__} cannot be {verb} too: no bound is "
                "proved for two amplifications together; use only one of them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Adaptive composition of the same event, `count` times.

    Attributes:
        event: The event that is repeated.
        count: Number of repetitions, from 1 to 2^53.
    """

    event: "PrivacyEvent"
    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.event, PrivacyEvent):
            raise ParameterError(f"event must be a privacy event, got {self.event!r}")
        object.__setattr__(
            self, "count", parameter_rules.integer("count", self.count, low=1, high=2**53)
        )

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency relation of the inner event."""
        return self.event.adjacency


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """Adaptive composition of several events under one adjacency.

    Events under different adjacencies raise `AdjacencyMismatchError`.

    Attributes:
        events: The events, at least one.
    """

    events: tuple["PrivacyEvent", ...]

    def __post_init__(self) -> None:
        if not self.events:
            raise ParameterError("events is empty; give a composition at least one event")
        found = sorted({event.adjacency for event in self.events})
        if len(found) > 1:
            raise AdjacencyMismatchError(
                f"cannot compose events under {' and '.join(found)}; "
                "ask every mechanism for its event under one adjacency"
            )

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency relation that all events share."""
        return self.events[0].adjacency


# Assumptions that a guarantee needs in addition to its proof, printed together with the epsilon.
ASSUMPTIONS = {
    "chacha20": "no efficient test tells ChaCha20's expansion of a random 16-byte seed from "
    "random bits",
}
_PLUG_IN = "plug-in "  # followed by the plug-in's kind, name and distribution
_LONGEST_NAME = 300


def describe_assumption(assumption: str) -> str:
    """Return the clause that states an assumption, for printing next to an epsilon.

    `assumption` is that of a `Conditional` event: "chacha20", or "plug-in ..." with its name.
    """
    if assumption.startswith(_PLUG_IN):
        return f"the privacy claims of {assumption} hold (not verified)"
    return ASSUMPTIONS[assumption]


def _is_assumption(value: object) -> bool:
    if not isinstance(value, str):
        return False
    named = value.startswith(_PLUG_IN) and value.isprintable() and len(value) <= _LONGEST_NAME
    return named or value in ASSUMPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """An event that holds only under an assumption; accountants count the inner event.

    Attributes:
        event: The event that holds if the assumption does.
        assumption: "chacha20" (its output is indistinguishable from random bits), or "plug-in ..."
            with the name of a plug-in: then the event is what the plug-in claims about itself.
    """

    event: "PrivacyEvent"
    assumption: str

    def __post_init__(self) -> None:
        if not isinstance(self.event, PrivacyEvent):
            raise ParameterError(f"event must be a privacy event, got {self.event!r}")
        if not _is_assumption(self.assumption):
            raise ParameterError(
                f"assumption must be one of {', '.join(ASSUMPTIONS)}, or '{_PLUG_IN}' followed by "
                f"the name of a plug-in, got {self.assumption!r}"
            )

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency relation of the inner event."""
        return self.event.adjacency


BasicEvent = (
    NonPrivate
    | GaussianNoise
    | LaplaceNoise
    | ZeroConcentrated
    | PureDp
    | MetricDp
    | FinitePair
    | FiniteTable
    | RenyiCurve
    | OneBit
    | SeededBits
    | SummedBits
    | SummedNoise
    | Sampled
    | Shuffled
    | Allocated
)
#: The type of all privacy events.
PrivacyEvent = BasicEvent | Repeated | Composed | Conditional


def basic_counts(event: PrivacyEvent) -> dict[BasicEvent, int]:
    """Return how often each basic event occurs in a composition.

    Basic events are all but `Repeated`, `Composed` and `Conditional`, which are resolved: counts
    multiply, and assumptions are left out. A `Sampled`, `Shuffled` or `Allocated` event is basic;
    the event inside it is not counted. A basic event alone has the count 1.
    """
    counts: dict[BasicEvent, int] = {}
    pending: list[tuple[PrivacyEvent, int]] = [(event, 1)]
    while pending:
        current, times = pending.pop()
        match current:
            case Repeated():
                pending.append((current.event, times * current.count))
            case Composed():
                pending.extend((part, times) for part in current.events)
            case Conditional():
                pending.append((current.event, times))
            case _:
                counts[current] = counts.get(current, 0) + times
    return counts


def table_pairs(table: FiniteTable) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return every ordered pair of rows, of different indices, that two neighbors may have.

    Zero-out: the row of zero with each other row, in both orders. Replace-one: any two rows.
    """
    pairs = []
    for i, first in enumerate(table.rows):
        for j, second in enumerate(table.rows):
            zero_out = table.adjacency == Adjacency.ZERO_OUT
            if i != j and not (zero_out and table.zero not in (i, j)):
                pairs.append((first, second))
    return pairs
