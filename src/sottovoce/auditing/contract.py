"""The contract that every mechanism must meet, built-in or plug-in, as a list of checks.

    for finding in check("gauss_hermite"): ...

The tests apply it to every registered mechanism; authors of plug-ins run
`sottovoce mechanism check NAME`. It checks that samples follow the declared law and that the
divergences of the declared law stay below what the privacy event claims. Together: the claim holds
for what is sampled, at the inputs that are tried. A contract that holds is no proof of privacy. A
mechanism that packs its codes itself must produce the same bytes as its `encode`.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from sottovoce.auditing.draws import sample_decoded
from sottovoce.auditing.enumeration import (
    MAX_OUTCOMES,
    delta_function,
    extreme_inputs,
    neighboring_pairs,
    neighboring_pairs_nonzero_reference,
    num_outcomes,
    origin,
)
from sottovoce.auditing.law_divergences import p_values, renyi_of
from sottovoce.auditing.laws import cache_laws
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, Vector
from sottovoce.core.errors import (
    DomainError,
    ParameterError,
    RandomnessError,
    UnknownNameError,
    UnsupportedEventError,
)
from sottovoce.core.randomness import Keystream, SeededRandomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.encoding import EncodesPacked, encode_packed, pack_codes, prepare
from sottovoce.mechanisms.mechanism import (
    Codes,
    Float32Codes,
    Law,
    LevelCodes,
    Mechanism,
    MomentLaw,
    PointLaw,
    bits_per_coordinate,
    points_of,
)
from sottovoce.mechanisms.registry import Parameters, Registration, parameter_hash
from sottovoce.mechanisms.release import HidesOnlyAgainstZero, ReleaseTerms
from sottovoce.privacy.accounting import builtin_accountants, epsilon
from sottovoce.privacy.compositions import drop_zero_reference
from sottovoce.privacy.events import NonPrivate, PrivacyEvent, Repeated
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce.protocol.message import Envelope, open_sealed, seal


def packs_consistently(mechanism: Mechanism, values: Vector) -> bool:
    """Return whether a mechanism's own `encode_packed` gives the bytes of its packed `encode`.

    Two rows are compared under equal keystreams: `values`, and 3 times `values`, which is clipped
    if it leaves the domain (on an L1 ball: half of `values`, which is not clipped). Return True if
    the mechanism has no `encode_packed` of its own.
    """
    if not isinstance(mechanism, EncodesPacked):
        return True
    domain = mechanism.input_domain
    # A mean of records is not projected in L1, so there the second row stays inside the ball.
    longer = 0.5 if isinstance(domain, L1Ball) else 3.0
    rows = np.stack([values, longer * values])

    def streams() -> list[Keystream]:
        return [SeededRandomness(3).stream("packed", number) for number in range(len(rows))]

    expected = [
        pack_codes(mechanism.encode(domain.project(row), stream), mechanism.code_format())
        for row, stream in zip(rows, streams(), strict=True)
    ]
    found = encode_packed(prepare(mechanism, rows), streams()).on_cpu()
    return [row.tobytes() for row in found] == expected


ORDERS = (1.01, 1.5, 2.0, 3.0, 8.0, 32.0, 256.0)
EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
# All contract tests together make some thousand comparisons, so a false alarm has probability of
# about 1e-6 in a run of the tests.
SMALLEST_P_VALUE = 1e-9
_MESSAGES = 100  # Samples that are encoded as separate messages, as a client does.
_TOO_LITTLE = (
    "not compared: the declared law gives mean and variance only, from which no divergence "
    "follows; add a test of its divergences and run an audit"
)


class ContractError(AssertionError):
    """An error that says where a mechanism does not meet the contract."""


def _require(kept: object, broken: str) -> None:
    if not kept:
        raise ContractError(broken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One example of a registered mechanism, on one of its domains.

    Attributes:
        registration: The registered mechanism.
        example: The parameters of the example.
        domain: The input domain.
    """

    registration: Registration
    example: Parameters
    domain: Domain

    def mechanism(self) -> Mechanism:
        """Build the mechanism of this case.

        Returns:
            The mechanism on this domain with these parameters.
        """
        return self.registration.build(self.domain, self.example)

    def with_size(self, *, dimension: int | None = None, records: int = 1) -> "Case | None":
        """Return the same case on a domain of another size.

        Args:
            dimension: The new dimension; None keeps it.
            records: The number of records whose mean is the input; it is set to 1 if not given.

        Returns:
            The new case, or None if `records` is above 1 and the domain is a `Box`, which holds one
            record.
        """
        changes = {} if dimension is None else {"dimension": dimension}
        if not isinstance(self.domain, Box):
            changes["records"] = records
        elif records > 1:
            return None
        domain = dataclasses.replace(self.domain, **changes)  # type: ignore[type-var]
        return dataclasses.replace(self, domain=domain)

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.example.items())
        return f"{values or 'no parameters'} on {type(self.domain).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check for one case.

    Attributes:
        check: The name of the check.
        case: The parameters and the domain, in words.
        kept: Whether the check passed; None if it could not be made.
        remark: What is wrong, or why the check could not be made; empty if it passed.
    """

    check: str
    case: str
    kept: bool | None
    remark: str


def cases(registration: Registration) -> list[Case]:
    """Return every example of a mechanism on each of its example domains."""
    return [
        Case(registration=registration, example=example, domain=domain)
        for example, domain in itertools.product(
            registration.examples, registration.example_domains
        )
    ]


def check(kind: str) -> Iterator[Finding]:
    """Check the whole contract for a registered mechanism.

    Args:
        kind: The registered name of the mechanism.

    Returns:
        An iterator over the findings: one for each case and check. An exception inside a check is a
        finding, too.

    Raises:
        UnknownNameError: No mechanism has this name; raised when the first finding is requested.
        PluginError: The plug-in of this name does not work; raised then, too.

    Examples:
        >>> finding = next(check("laplace"))
        >>> finding.check, finding.kept
        ('samples follow the declared law', True)
    """
    for case in cases(registry.find(kind)):
        for name, kept in CHECKS.items():
            try:
                remark = kept(case)
            except Exception as error:
                what = "" if isinstance(error, ContractError) else f"{type(error).__name__}: "
                yield Finding(check=name, case=str(case), kept=False, remark=f"{what}{error}")
            else:
                held = None if remark else True
                yield Finding(check=name, case=str(case), kept=held, remark=remark or "")


def samples_follow_the_law(mechanism: Mechanism, values: Vector, num_samples: int) -> None:
    """Check that decoded samples of the input `values` follow the law that the mechanism declares.

    Raise ContractError if their mean is 7 or more standard errors from the declared one, or if a
    test of their distribution has a p-value of at most 1e-9. The first 100 samples are separate
    messages. Where coordinates are drawn independently, the others are drawn as blocks of one long
    vector, which is about a hundred times faster.
    """
    law = mechanism.law(values)
    randomness, alone = SeededRandomness(20), min(num_samples, _MESSAGES)
    decoded = np.stack(
        [
            mechanism.decode(mechanism.encode(values, randomness.stream("contract", n)))
            for n in range(alone)
        ]
    )
    if num_samples > alone:
        others = sample_decoded(mechanism, values, num_samples - alone, (20, "contract"))
        decoded = np.concatenate([decoded, others])
    if isinstance(law, PointLaw):
        _require(
            np.allclose(decoded, law.center, rtol=1e-6),
            f"samples differ from the only output that `law` declares at input {values}",
        )
        return
    errors = (decoded.mean(axis=0) - law.mean()) / np.sqrt(law.variance() / num_samples + 1e-18)
    far = float(np.abs(errors).max())
    _require(
        far < 7.0,
        f"the mean of samples is {far:.1f} standard errors from the mean that `law` declares at "
        f"input {values}",
    )
    for what, p_value in p_values(law, decoded):
        _require(
            p_value > SMALLEST_P_VALUE,
            f"samples do not follow the law that `law` declares at input {values} ({what}): their "
            f"p-value is {p_value:.2g}, and it must be above {SMALLEST_P_VALUE:g}",
        )


def privacy_covers_the_divergence(
    mechanism: Mechanism, adjacency: Adjacency, *, seed: int = 5
) -> str | None:
    """Check that no neighboring pair has a Renyi divergence or a delta above what the event claims.

    Compared are the declared laws of some pairs, a part of them drawn with `seed`, at fixed orders
    and epsilons; delta only where it can be computed. Raise ContractError at the first excess, or
    if the event has another adjacency. Return None if all is well, or if the event claims nothing.
    Return a remark if the declared law gives two moments only: such a mechanism needs a test of its
    own.
    """
    event = mechanism.privacy(adjacency)
    _require(
        event.adjacency is adjacency,
        f"`privacy` must return an event with the adjacency that it is given, {adjacency}; this "
        f"one has {event.adjacency}",
    )
    pairs = neighboring_pairs(mechanism.input_domain, adjacency, np.random.default_rng(seed))
    return _covers(mechanism, event, pairs)


def privacy_covers_nonzero_reference(mechanism: Mechanism, *, seed: int = 5) -> str | None:
    """Check the zero-out claim when the message also contains other, sampled records.

    The removed record then does not leave the input 0 behind. Raise ContractError if a divergence
    or delta exceeds the claim; otherwise return None, or a remark if the declared law gives two
    moments only. Mechanisms that claim privacy against the input 0 alone
    (`hides_only_against_zero`) are refused for sampled records elsewhere; they return None here.
    """
    if isinstance(mechanism, HidesOnlyAgainstZero) and mechanism.hides_only_against_zero:
        return None
    event = drop_zero_reference(mechanism.privacy(Adjacency.ZERO_OUT))
    pairs = neighboring_pairs_nonzero_reference(mechanism.input_domain, np.random.default_rng(seed))
    return _covers(mechanism, event, pairs)


def _covers(
    mechanism: Mechanism, event: PrivacyEvent, pairs: Iterable[tuple[Vector, Vector]]
) -> str | None:
    if isinstance(event, NonPrivate):
        return None
    divergences = [renyi_divergence(event, order) for order in ORDERS]
    deltas, law_of = _claimed_deltas(event), cache_laws(mechanism)
    for first, second in pairs:
        laws = law_of(first), law_of(second)
        if isinstance(laws[0], MomentLaw):
            return _TOO_LITTLE
        broken = _excess_divergence(laws, divergences) or _excess_delta(laws, deltas)
        if broken:
            raise ContractError(
                f"{broken}, at the neighboring inputs {first} and {second} ({event.adjacency})"
            )
    return None


def _excess_divergence(laws: tuple[Law, Law], claimed: Sequence[float]) -> str | None:
    """Return a sentence about a Renyi divergence above the claimed one, or None."""
    for order, most, found in zip(ORDERS, claimed, renyi_of(*laws, ORDERS), strict=True):
        if not found <= most * (1.0 + 1e-9) + 1e-12:
            return f"Renyi divergence of order {order:g} is {found:.6g}, claimed {most:.6g}"
    return None


def _excess_delta(laws: tuple[Law, Law], claimed: Sequence[tuple[str, float, float]]) -> str | None:
    """Return a sentence about a delta above an accountant's, or None."""
    if num_outcomes(laws[0]) > MAX_OUTCOMES:
        return None
    delta_at = delta_function(*laws)
    exact = {eps: delta_at(eps) for eps in EPSILONS}
    for name, eps, most in claimed:
        if not exact[eps] <= most * (1.0 + 1e-9) + 1e-12:
            return (
                f"delta at epsilon {eps:g} is {exact[eps]:.6g}, and the accountant '{name}' claims "
                f"at most {most:.6g}"
            )
    return None


@functools.lru_cache(maxsize=1024)  # Many dimensions have the same event.
def _claimed_deltas(event: PrivacyEvent) -> list[tuple[str, float, float]]:
    found = []
    for accountant, eps in itertools.product(builtin_accountants(), EPSILONS):
        with contextlib.suppress(UnsupportedEventError):
            found.append((accountant.name, eps, accountant.delta(event, eps)))
    return found


def codes_survive_the_wire(mechanism: Mechanism, values: Vector) -> None:
    """Check that codes fit their format, survive the wire and take exactly the announced bytes.

    Raise ContractError if the codes of `values` have another type or range than `code_format`, if
    they change when they are sealed into a message and read back, if the sizes differ, if they
    decode to another shape than that of `values` or to other values than `points`, or if
    `encode_packed` gives other bytes.
    """
    codes = mechanism.encode(values, SeededRandomness(3).stream("wire"))
    code_format = mechanism.code_format()
    _require(
        codes.dtype == code_format.dtype,
        f"`encode` returns codes of dtype {codes.dtype}, and `code_format` states "
        f"{code_format.dtype}",
    )
    match code_format:
        case LevelCodes(levels=levels):
            _require(
                codes.max() < levels,
                f"code {codes.max()} is not below {levels}, the number of levels",
            )
        case Float32Codes():
            pass
        case _:
            assert_never(code_format)
    envelope = Envelope(
        parameter_hash=parameter_hash(mechanism),
        round=7,
        uplink=0,
        dimension=mechanism.input_domain.dimension,
        code_format=code_format,
    )
    message = seal(codes, envelope)
    _require(
        len(message) == envelope.total_bytes,
        f"a sealed message has {len(message)} bytes, and {envelope.total_bytes} are announced",
    )
    payload = math.ceil(len(codes) * code_format.bits / 8)
    _require(
        envelope.payload_bytes == payload,
        f"{envelope.payload_bytes} payload bytes are announced, and codes take {payload}",
    )
    bits = len(codes) * code_format.bits / len(values)
    stated = bits_per_coordinate(mechanism)
    _require(stated == bits, f"{stated:g} bits per coordinate are stated, and codes take {bits:g}")
    shape = mechanism.decode(codes).shape
    _require(
        shape == values.shape, f"codes decode to shape {shape}, and inputs have {values.shape}"
    )
    points = points_of(mechanism, most=256)
    if points is not None and isinstance(code_format, LevelCodes):
        drawn = np.random.default_rng(3).integers(0, code_format.levels, len(values))
        every: Codes = drawn.astype(code_format.dtype)
        same = points.shape == (code_format.levels,)
        same = same and points[every].tobytes() == mechanism.decode(every).tobytes()
        _require(same, "`points` are not the values that codes decode to")
    same = np.array_equal(open_sealed(message, envelope), codes)
    _require(same, "codes change when they are sealed into a message and read back")
    alike = packs_consistently(mechanism, values)
    _require(alike, "`encode_packed` gives other bytes than the packed codes of `encode`")


def one_key_gives_one_message(mechanism: Mechanism) -> None:
    """Check that equal keystreams give equal codes, and that a used keystream is refused.

    Raise ContractError if not. A mechanism without randomness (`sampling` is "none") may accept a
    used keystream.
    """
    domain = mechanism.input_domain
    values = domain.project(np.arange(domain.dimension, dtype=np.float64))
    streams = [SeededRandomness(9).stream("a") for _ in range(2)]
    first, second = (mechanism.encode(values, stream) for stream in streams)
    _require(
        np.array_equal(first, second),
        "equal keystreams give different codes; draw all randomness from the given keystream",
    )
    if mechanism.sampling == "none":
        return
    try:
        mechanism.encode(values, streams[0])
    except RandomnessError:
        return
    raise ContractError(
        "a key can be used twice; draw from the given keystream, which refuses a second use"
    )


def nothing_is_changed(mechanism: Mechanism) -> None:
    """Check that a mechanism is immutable and hashable and does not change its input.

    Raise ContractError if a field can be set, TypeError if it cannot be hashed, and ValueError if
    `encode` writes to its input or `decode` to the codes.
    """
    for field in dataclasses.fields(mechanism):  # type: ignore[arg-type]
        with contextlib.suppress(dataclasses.FrozenInstanceError):
            setattr(mechanism, field.name, None)
            raise ContractError(
                f"'{field.name}' can be changed; make the mechanism a frozen dataclass"
            )
    hash(mechanism)
    domain = mechanism.input_domain
    values = domain.project(np.ones(domain.dimension))
    values.flags.writeable = False
    codes = mechanism.encode(values, SeededRandomness(1).stream("a"))
    codes.flags.writeable = False
    mechanism.decode(codes)


_BAD_INPUTS: dict[str, Callable[[Vector], Vector]] = {
    "NaN": lambda v: np.full_like(v, np.nan),
    "infinity": lambda v: np.full_like(v, np.inf),
    "a vector that is too short": lambda v: v[:-1],
    "a matrix": lambda v: v[None, :],
    "a vector outside the domain": lambda v: v + 1e6,
}


def bad_input_is_refused(mechanism: Mechanism) -> None:
    """Check that input outside the domain raises DomainError and is not clamped.

    NaN, infinity, a short vector, a matrix and a distant vector are tried. Raise ContractError if
    `encode` accepts one of them.
    """
    for what, change in _BAD_INPUTS.items():
        try:
            mechanism.encode(
                change(origin(mechanism.input_domain)), SeededRandomness(1).stream("a")
            )
        except DomainError:
            continue
        raise ContractError(f"`encode` accepts {what}; call input_domain.check first")


def calibration_meets_the_budget(case: Case) -> str | None:
    """Check that calibration stays within the budget and uses almost all of it.

    The budget is epsilon 2 at delta 1e-6 for 10 rounds under replace-one. Raise ContractError if
    the calibrated mechanism spends more, or much less. Return None, also for a mechanism that has
    no parameter to calibrate.
    """
    registration, domain = case.registration, case.domain
    if registration.calibrated_parameter is None:
        return None
    given = {
        k: v for k, v in case.example.items() if k != registration.calibrated_parameter.parameter
    }
    event_of = ReleaseTerms(adjacency=Adjacency.REPLACE_ONE)
    found = registration.calibrated(
        domain, given, rounds=10, epsilon=2.0, delta=1e-6, event_of=event_of
    )
    event = event_of(registration.build(domain, found))
    spent = epsilon(Repeated(event=event, count=10), 1e-6)
    # Epsilon changes at most as the square of the parameter, and the parameter is found up to its
    # relative tolerance.
    least = 2.0 * min(0.9995, 1.0 - 2.5 * registration.calibrated_parameter.relative_tolerance)
    _require(
        least < spent <= 2.0,
        f"calibrated to epsilon 2, the mechanism spends {spent:.6g}; it must spend more than "
        f"{least:.6g} and at most 2",
    )
    return None


def parameters_have_no_defaults(case: Case) -> None:
    """Check that `build` refuses a missing parameter by its name, and an unknown parameter.

    Raise ContractError if a parameter of the example can be left out that is not in `may_omit`, if
    the ParameterError about it does not name it, or if an unknown parameter does not raise
    UnknownNameError.
    """
    registration, example = case.registration, case.example
    for name in sorted(set(example) - set(registration.may_omit)):
        try:
            registration.build(case.domain, {k: v for k, v in example.items() if k != name})
        except ParameterError as error:
            _require(name in str(error), f"the error does not name '{name}': {error}")
        else:
            raise ContractError(
                f"'{name}' has a default; remove it, privacy parameters must be given"
            )
    try:
        registration.build(case.domain, {**example, "noise_multiplyer": 1.0})
    except UnknownNameError:
        return
    raise ContractError("an unknown parameter is accepted; raise UnknownNameError")


def _samples(case: Case) -> str | None:
    for records in (1, 5):
        sized = case.with_size(records=records)
        if sized is not None:
            for values in extreme_inputs(sized.domain, np.random.default_rng(1)):
                samples_follow_the_law(sized.mechanism(), values, num_samples=1500)
    return None


def _privacy(case: Case) -> str | None:
    remark = None
    for dimension, records in ((1, 1), (3, 1), (3, 4), (8, 1)):
        sized = case.with_size(dimension=dimension, records=records)
        if sized is not None:
            for adjacency in Adjacency:
                remark = privacy_covers_the_divergence(sized.mechanism(), adjacency) or remark
    return privacy_covers_nonzero_reference(case.mechanism()) or remark


def _wire(case: Case) -> str | None:
    for dimension in (1, 7, 8, 101):
        sized = case.with_size(dimension=dimension)
        assert sized is not None  # Every domain can hold one record.
        for values in extreme_inputs(sized.domain, np.random.default_rng(2)):
            codes_survive_the_wire(sized.mechanism(), values)
    return None


# Each check raises if it fails, and returns None or a remark that says what could not be checked.
CHECKS: dict[str, Callable[[Case], str | None]] = {
    "samples follow the declared law": _samples,
    "the event covers the law's divergence": _privacy,
    "codes survive the wire in the bytes announced": _wire,
    "one key gives one message": lambda case: one_key_gives_one_message(case.mechanism()),
    "nothing is changed": lambda case: nothing_is_changed(case.mechanism()),
    "bad input is refused": lambda case: bad_input_is_refused(case.mechanism()),
    "calibration lands just inside the budget": calibration_meets_the_budget,
    "parameters have no defaults": parameters_have_no_defaults,
}
