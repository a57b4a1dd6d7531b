"""Privacy events: the closed set of shapes onto which every mechanism lowers itself.

Mechanisms are open, events are closed: a new mechanism is one file because it reuses one of these,
and a new accountant is one file because it handles all of them (`match` ending in `assert_never`).
Each event carries its adjacency; events of different adjacencies do not compose.

Events are plain immutable data. The ledger stores them, never epsilons: epsilon is recomputed.

All of them are in this one file, long as it is: who writes an accountant reads the whole set.

Stability contract. Ledgers outlive versions of this package: what was charged must be read, with
the same meaning, by every later version. Therefore:

- An event class is never removed, even if no mechanism produces it any longer.
- The name under which an event is stored (`privacy.event_json.STORED_NAMES`) never changes. The
  class itself may be renamed or moved.
- Fields are never removed or renamed. A new field is optional. Its default states what held for
  the events that were stored before it, and at its default it is left out of the stored text, so
  that their text (and every digest over it) stays the same.
- The meaning of an event, of a field and of a field's value never changes. If an event turns out to
  promise more than was proved, accountants must charge more for it; they never charge less on the
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
    """A word in its place would compare unequal to either, and be taken for the other."""
    if not isinstance(adjacency, Adjacency):
        raise ParameterError(
            f"adjacency must be Adjacency.ZERO_OUT or Adjacency.REPLACE_ONE, got {adjacency!r}"
        )


def _check_zero_centered(value: object, adjacency: Adjacency) -> None:
    if not isinstance(value, bool):
        raise ParameterError(f"zero_centered must be true or false, got {value!r}")
    if value and adjacency != Adjacency.REPLACE_ONE:
        raise ParameterError(
            f"under {adjacency} one of the neighbors is zero itself; zero_centered is for "
            "replace-one"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPrivate:
    """A release with no guarantee."""

    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise:
    """Gaussian noise whose neighbours lie `mu` standard deviations apart (mu-GDP, exactly).

    `zero_centered` (replace-one only): no contribution lies farther than mu/2 from zero, which
    stands for a contribution that is left out of a sample.
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
    """Laplace noise on `dimension` coordinates, whose neighbours lie `shift` scales apart.

    In Euclidean norm. With dimension 1 it also stands for any number of coordinates whose
    neighbours lie `shift` scales apart in L1; see `privacy.additive_noise`.
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
    """D_a <= rho a for every order a > 1, in both directions (Bun and Steinke 2016).

    `zero_centered` (replace-one only): the laws are products of exponential families, with Fisher
    information at most M for every tilt, and each contribution tilts the law that is left without
    it by at most mu (Euclidean), where rho = M (2 mu)^2/2.
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
    """The likelihood ratio of neighbours is at most e^epsilon."""

    epsilon: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        parameter_rules.positive("epsilon", self.epsilon)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDp:
    """The likelihood ratio of inputs a distance t apart is at most e^(epsilon t).

    `epsilon` is per unit of `metric`; `distance` is the largest between neighbours, so neighbours
    are epsilon * distance-DP, which is what accountants count.
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
        """What it says about the farthest neighbours."""
        return PureDp(epsilon=self.epsilon * self.distance, adjacency=self.adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinitePair:
    """One dominating pair of pmfs over the same outcomes; both directions are accounted."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        if len(self.first) != len(self.second) or not self.first:
            raise ParameterError("a pair of pmfs needs two of the same, positive length")
        for pmf in (self.first, self.second):
            if any(not 0.0 <= p <= 1.0 for p in pmf) or abs(math.fsum(pmf) - 1.0) > 1e-12:
                raise ParameterError("each pmf must hold probabilities that sum to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteTable:
    """One message, drawn from a row of a finite table that the input alone selects.

    `rows` are pmfs over the same outcomes. Row `zero` is that of a contribution which is left out;
    None if nothing is known but that it is a mixture of rows. Zero-out compares every row with that
    one (which it needs), replace-one any two rows. Nobody else's contribution is in the message.
    """

    rows: tuple[tuple[float, ...], ...]
    zero: int | None
    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        if len(self.rows) < 2 or len({len(row) for row in self.rows}) != 1 or not self.rows[0]:
            raise ParameterError("a table needs at least two rows of the same, positive length")
        for row in self.rows:
            if any(not 0.0 <= p <= 1.0 for p in row) or abs(math.fsum(row) - 1.0) > 1e-12:
                raise ParameterError("each row must hold probabilities that sum to 1")
        if self.zero is None:
            if self.adjacency == Adjacency.ZERO_OUT:
                raise ParameterError(
                    "zero-out compares with the row of a zero contribution; name it with `zero`, "
                    "or ask for replace-one"
                )
        elif isinstance(self.zero, bool) or self.zero not in range(len(self.rows)):
            raise ParameterError(
                f"zero must be a row's index, from 0 to {len(self.rows) - 1}, got {self.zero!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiCurve:
    """Bounds D_a <= divergences[i] at a = orders[i], in both directions.

    Between two orders the next larger one is used, for D_a grows with a; beyond the last the curve
    says nothing.
    """

    orders: tuple[float, ...]
    divergences: tuple[float, ...]
    adjacency: Adjacency

    def __post_init__(self) -> None:
        _check_adjacency(self.adjacency)
        if len(self.orders) != len(self.divergences) or not self.orders:
            raise ParameterError("a Renyi curve needs as many divergences as orders, at least one")
        if not self.orders[0] > 1.0 or any(
            not a < b for a, b in zip(self.orders, self.orders[1:], strict=False)
        ):
            raise ParameterError("orders must increase and lie above 1")
        if any(not d >= 0.0 for d in self.divergences):
            raise ParameterError("divergences must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBit:
    """`dimension` independent bits, P(1) = 1/(1 + e^-z) for the logit z of each.

    Whatever the logits are, those of neighbours lie at most `shift` apart (Euclidean). Those of one
    neighbour are all 0, its bits fair, if `against_zero`: nothing else is in the message.
    `zero_centered` (replace-one only): each contribution moves the logits that are left without it
    by at most shift/2.
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
                f"under {self.adjacency} neither neighbour's bits need be fair; against_zero is "
                "for zero-out"
            )
        _check_zero_centered(self.zero_centered, self.adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededBits:
    """Bits as in `OneBit`, expanded from seeds that rejection sampling chose with truncated odds.

    That raises the Renyi divergences of such bits by at most `excess` a/(a - 1), and (against_zero)
    what the cubic comparison says of their losses to e^excess E h(loss + excess). No likelihood
    ratio exceeds e^largest_loss.
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
        """The bits that these are compared with."""
        return OneBit(
            shift=self.shift,
            dimension=self.dimension,
            adjacency=self.adjacency,
            against_zero=self.against_zero,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureSum:
    """Sums of `clients` vectors of bits, of which nothing but the sums is seen.

    One of them is protected as in `OneBit`, the others hide it: all of them draw their bits as they
    should, with logits within `logit_bound` of 0, and tell nobody.
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

    def local(self) -> OneBit:
        """What one client's bits alone give away."""
        return OneBit(
            shift=self.shift,
            dimension=self.dimension,
            adjacency=self.adjacency,
            against_zero=self.against_zero,
        )


SamplingScheme = Literal["poisson", "fixed-size"]
# What keeps from everybody who was sampled; without it sampling amplifies nothing. Behind a secure
# sum those who were not sampled send the encoding of zero: whoever sends nothing adds no noise.
HiddenBy = Literal["own-records", "central-noise", "secure-sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """`event` on a secret sample, in which a contribution is with probability `rate`.

    poisson      each contribution independently; one that is left out counts as zero.
    fixed-size   a set of fixed size, every one equally likely. Under zero-out the place of a
                 contribution that is left out is taken by another, so only replace-one is bounded.

    `event` is one release: a basic event or a composition of some.
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
                "fixed-size sampling is accounted under replace-one only (whoever is left out is "
                "replaced by another); ask for adjacency replace-one, or sample by Poisson"
            )

    @property
    def adjacency(self) -> Adjacency:
        return self.event.adjacency


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """`clients` messages in random order, each from a randomiser with the local `event`.

    Which message is whose is not seen. `event` must be pure; see `privacy.shuffling`.

    `ratios` (lo, hi): there is one common law Q for all clients, which may depend on the past but
    on no client's input, and lo <= dR/dQ <= hi for the law R of every client's message, whatever
    its input is. None if no such bounds are known.
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
                    f"ratios must be (lo, hi) with 0 < lo <= 1 <= hi, got {self.ratios!r}"
                )
            if not math.isfinite(self.ratios[1]):
                raise ParameterError(f"ratios must be finite, got {self.ratios!r}")

    @property
    def adjacency(self) -> Adjacency:
        return self.event.adjacency


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """A contribution that takes part in one of `steps` releases, at random (balls and bins).

    Each client draws its step uniformly, independently of the other clients, and tells nobody;
    every step releases the sum of its contributions with the noise `event`. Cohorts that are cut
    from one permutation are something else: there a client's step moves the others.
    """

    event: GaussianNoise
    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.event, GaussianNoise):
            raise ParameterError(
                f"random allocation is accounted for GaussianNoise only, got {self.event!r}"
            )
        parameter_rules.integer("steps", self.steps, low=1, high=2**31)

    @property
    def adjacency(self) -> Adjacency:
        return self.event.adjacency


def _check_local(event: "PrivacyEvent", verb: str) -> None:
    """One release without amplification: amplifying twice needs a theorem of its own."""
    if not isinstance(event, PrivacyEvent):
        raise ParameterError(f"only a privacy event can be {verb}, got {event!r}")
    for part in basic_counts(event):
        if isinstance(part, Sampled | Shuffled | SecureSum | Allocated):
            raise ParameterError(
                f"{type(part).__name__} cannot be {verb} again: no bound is proved for both "
                "together; use one of them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The same event `count` times, adaptively."""

    event: "PrivacyEvent"
    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.event, PrivacyEvent):
            raise ParameterError(f"only a privacy event can be repeated, got {self.event!r}")
        object.__setattr__(
            self, "count", parameter_rules.integer("count", self.count, low=1, high=2**53)
        )

    @property
    def adjacency(self) -> Adjacency:
        return self.event.adjacency


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """Several events one after another, adaptively."""

    events: tuple["PrivacyEvent", ...]

    def __post_init__(self) -> None:
        if not self.events:
            raise ParameterError("a composition needs at least one event")
        found = sorted({event.adjacency for event in self.events})
        if len(found) > 1:
            raise AdjacencyMismatchError(
                f"cannot compose events under {' and '.join(found)}; "
                "ask every mechanism for its event under one adjacency"
            )

    @property
    def adjacency(self) -> Adjacency:
        return self.events[0].adjacency


# What an epsilon rests on beside its proof, to be printed beside it.
ASSUMPTIONS = {
    "chacha20": "no efficient test tells ChaCha20's expansion of a random 16-byte seed from "
    "random bits",
}
_PLUG_IN = "plug-in "  # and who it is: its own word is what the event rests on
_LONGEST = 300


def assumption_in_words(assumption: str) -> str:
    """The sentence that is printed beside an epsilon."""
    if assumption.startswith(_PLUG_IN):
        return f"the word of {assumption} holds, on which this rests"
    return ASSUMPTIONS[assumption]


def _is_assumption(value: object) -> bool:
    if not isinstance(value, str):
        return False
    named = value.startswith(_PLUG_IN) and value.isprintable() and len(value) <= _LONGEST
    return named or value in ASSUMPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """`event`, which holds only if an assumption does; accountants count the event.

    The `assumption` is 'chacha20', or a plug-in by name, as 'plug-in mechanism ...': then the event
    is what the plug-in says of itself.
    """

    event: "PrivacyEvent"
    assumption: str

    def __post_init__(self) -> None:
        if not isinstance(self.event, PrivacyEvent):
            raise ParameterError(f"only a privacy event can be assumed, got {self.event!r}")
        if not _is_assumption(self.assumption):
            raise ParameterError(
                f"assumption must be one of {', '.join(ASSUMPTIONS)}, or '{_PLUG_IN}' and its "
                f"name, got {self.assumption!r}"
            )

    @property
    def adjacency(self) -> Adjacency:
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
    | SecureSum
    | Sampled
    | Shuffled
    | Allocated
)
PrivacyEvent = BasicEvent | Repeated | Composed | Assumed


def basic_counts(event: PrivacyEvent) -> dict[BasicEvent, int]:
    """How often each basic event occurs in a composition."""
    counts: dict[BasicEvent, int] = {}
    pending: list[tuple[PrivacyEvent, int]] = [(event, 1)]
    while pending:
        current, times = pending.pop()
        match current:
            case Repeated():
                pending.append((current.event, times * current.count))
            case Composed():
                pending.extend((part, times) for part in current.events)
            case Assumed():
                pending.append((current.event, times))
            case _:
                counts[current] = counts.get(current, 0) + times
    return counts


def table_pairs(table: FiniteTable) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Every ordered pair of different rows that neighbors may have."""
    pairs = []
    for i, first in enumerate(table.rows):
        for j, second in enumerate(table.rows):
            zero_out = table.adjacency == Adjacency.ZERO_OUT
            if i != j and not (zero_out and table.zero not in (i, j)):
                pairs.append((first, second))
    return pairs
