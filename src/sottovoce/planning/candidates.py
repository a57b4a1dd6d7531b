"""Calibrate every registered mechanism to one budget, or give the reason why it cannot be used.

A `PlanSetting` holds the question: the budget, the clipping, and how many bits may be sent.

Calibration is a search, and a good first guess saves most of its time while a bad one costs
little. At one budget all mechanisms may reveal about the same in one message, whatever their
calibrated parameter is called. The Renyi divergence of order 2 measures that in closed form, so
the parameter is set to where this divergence equals the one that calibration found last. Guesses
are never trusted: every value that is found is checked by the accountants.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sottovoce.core import parameter_rules
from sottovoce.core.domains import (
    Box,
    Domain,
    L1Ball,
    L2Ball,
    clip_norm_of,
    enclosing_ball,
    geometry_of,
)
from sottovoce.core.errors import ParameterError, SottovoceError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import (
    Mechanism,
    SummableCodes,
    bits_per_coordinate,
    masked_bytes,
)
from sottovoce.mechanisms.registry import Parameters, Registration
from sottovoce.mechanisms.release import OnlySums, ReleaseTerms, local_event
from sottovoce.planning.prediction import Prediction, predict
from sottovoce.privacy.accounting import PrivacySpent
from sottovoce.privacy.calibration import MAX_ROUNDS
from sottovoce.privacy.compositions import SAMPLE_ASSUMPTIONS
from sottovoce.privacy.events import PrivacyEvent, Repeated
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce.protocol.message import HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSetting:
    """The question of a plan: one update per round in `domain`, within (epsilon, delta) in total.

    Attributes:
        domain: The set that updates are clipped to: a ball, or a box centered at 0.
        epsilon: The budget of a client over all `rounds`.
        delta: The failure probability of that budget.
        terms: What an observer sees of an update, on which sample a round works, and the adjacency.
        rounds: The number of rounds in which the client takes part.
        bits: The most bits per coordinate that a message may hold, without its header; None for
            no limit.
        exact: For deployment: choose among mechanisms that are sampled exactly, if there are any.
            The others are still ranked.
        designs: Also calibrate mechanisms that take about a minute, because each value that is
            tried is a design to solve.
        summed_clients: The number of messages in a secure sum, whose mean is then predicted; None
            without one. `terms` count on fewer of them, those that do not collude.
    """

    domain: Domain
    epsilon: float
    delta: float
    terms: ReleaseTerms
    rounds: int
    bits: float | None = None
    exact: bool = False
    designs: bool = False
    summed_clients: int | None = None

    def __post_init__(self) -> None:
        self._check_clients()
        if not isinstance(self.domain, L1Ball | L2Ball) and not (
            isinstance(self.domain, Box) and self.domain.lower == -self.domain.upper
        ):
            raise ParameterError(
                f"a plan needs a ball, or a box centered at 0, got {self.domain}; shift the data"
            )
        parameter_rules.epsilon(self.epsilon)
        parameter_rules.delta(self.delta)
        parameter_rules.integer("rounds", self.rounds, low=1, high=MAX_ROUNDS)
        if self.bits is not None:
            parameter_rules.positive("bits (the most bits per coordinate)", self.bits)

    def _check_clients(self) -> None:
        visibility, clients = self.terms.visibility, self.summed_clients
        if clients is None and not isinstance(visibility, OnlySums):
            return
        if clients is None or not isinstance(visibility, OnlySums):
            raise ParameterError(
                "a plan for a secure sum needs the number of its clients and of the honest ones "
                "among them; give both, or neither"
            )
        honest = visibility.minimum_clients
        if clients < honest:
            raise ParameterError(
                f"honest must be at most the number of clients, {clients}, got {honest}; give the "
                "number of clients in the sum that neither drop out nor collude"
            )

    @property
    def clip_norm(self) -> float:
        """The largest norm of an update: the radius of a ball, half the width of a box."""
        return clip_norm_of(self.domain)

    def describe(self) -> dict[str, Any]:
        """Return the question as plain data.

        Returns:
            Names and values, as they appear under "setting" in `plan --json`.
        """
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
        if self.summed_clients is not None and isinstance(self.terms.visibility, OnlySums):
            described |= {
                "channel": "secure_sum",
                "clients": self.summed_clients,
                "honest": self.terms.visibility.minimum_clients,
            }
        sample = self.terms.sample
        if sample is not None:
            described |= {
                "sampling": sample.describe(),
                "assumes": SAMPLE_ASSUMPTIONS[sample.hidden_by],
            }
        return described


_HALVINGS = 24


class CalibrationGuesses:
    """First guesses for calibration, from what it has found so far for one setting."""

    def __init__(self, setting: PlanSetting) -> None:
        self._terms = setting.terms
        self._divergence = _divergence_of_a_message(setting)
        self._divergences: dict[type[PrivacyEvent], float] = {}  # the last one of each event type
        self._found: list[tuple[str, float, PrivacyEvent]] = []

    def learn(self, parameter: str, value: float, mechanism: Mechanism) -> None:
        """Remember the value that calibration found for a parameter, and the event it leads to."""
        event = local_event(mechanism, adjacency=self._terms.adjacency)
        self._divergences[type(event)] = renyi_divergence(event, 2.0)
        self._found.append((parameter, value, self._terms(mechanism)))

    def recall(self, registration: Registration, free: Parameters, domain: Domain) -> float | None:
        """Return a value found earlier for the same parameter and privacy event; None without one.

        The event is that of this mechanism with the value, its other parameters being `free`. So
        the value keeps the budget without another search.
        """
        for parameter, value, event in self._found:
            if (
                registration.calibrated_parameter
                and parameter == registration.calibrated_parameter.parameter
            ):
                mechanism = registration.build(domain, {**free, parameter: value})
                if self._terms(mechanism) == event:
                    return value
        return None

    def guess(self, registration: Registration, free: Parameters, domain: Domain) -> float | None:
        """Return a value of the calibrated parameter to start calibration from, or None.

        It is None if there is no such parameter, or if calibration on this domain takes long. The
        interval of the parameter is halved 24 times on a logarithmic scale, so that the Renyi
        divergence of order 2 of one message comes close to the one that calibration found before
        (at first, to one estimated from the budget), but not above it.
        """
        calibrated = registration.calibrated_parameter
        if calibrated is None or isinstance(domain, registration.slow_on):
            return None
        fallback = next(iter(self._divergences.values()), self._divergence)
        loose, safe = map(math.log, calibrated.ends_on(domain, free))
        for _ in range(_HALVINGS):
            middle = (loose + safe) / 2.0
            given = {**free, calibrated.parameter: math.exp(middle)}
            mechanism = registration.build(domain, given)
            event = local_event(mechanism, adjacency=self._terms.adjacency)
            aim = self._divergences.get(type(event), fallback)
            if renyi_divergence(event, 2.0) <= aim:
                safe = middle
            else:
                loose = middle
        return math.exp(safe)


def _divergence_of_a_message(setting: PlanSetting) -> float:
    """Return roughly the order-2 Renyi divergence that one message may have.

    From zCDP: rho = epsilon^2/(4 log(1/delta)) over all rounds, and at most epsilon; one message
    then has D_2 = 2 rho/rounds, and in a sum over h honest clients h times as much. A Poisson
    sample of rate q multiplies e^D_2 - 1 by q^2, so without the sample it may be q^-2 times as
    large.
    """
    rho = min(setting.epsilon, setting.epsilon**2 / (4.0 * math.log(1.0 / setting.delta)))
    visibility = setting.terms.visibility
    hiding = visibility.minimum_clients if isinstance(visibility, OnlySums) else 1
    sampled = 2.0 * rho * hiding / setting.rounds
    rate = 1.0 if setting.terms.sample is None else setting.terms.sample.rate
    return math.log1p(math.expm1(min(sampled, 500.0)) / rate**2)


# The tolerance of the calibrated parameter. Errors of a few in a thousand do not change a ranking,
# and calibration takes most of the time. The value found keeps the budget whatever the tolerance.
_RELATIVE_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A mechanism that keeps the budget, with the predicted error of its updates.

    Attributes:
        kind: The registered name of the mechanism.
        setting: The parameters that were tried, before calibration; "auto" is possible.
        parameters: All parameters, calibrated and with "auto" resolved.
        mechanism: The mechanism itself.
        spent: The epsilon that all rounds spend, by the accountants.
        prediction: The predicted error of a decoded update; of the mean, for a secure sum.
        summed_clients: The number of messages in a secure sum; None without one.
        local_spent: The epsilon of the same rounds if every message were seen; None where that is
            `spent`.
    """

    kind: str
    setting: Parameters
    parameters: Parameters
    mechanism: Mechanism
    spent: PrivacySpent
    prediction: Prediction
    summed_clients: int | None = None
    local_spent: PrivacySpent | None = None

    @property
    def mse(self) -> float:
        """The predicted mean squared error per coordinate of a decoded update."""
        return self.prediction.mse

    @property
    def bits_per_coordinate(self) -> float:
        """The bits of a message per coordinate, without its header."""
        return bits_per_coordinate(self.mechanism)

    @property
    def masked_bits(self) -> int | None:
        """The bits of a coordinate of a masked message, as many as of the sum; None without one."""
        if self.summed_clients is None or not isinstance(self.mechanism, SummableCodes):
            return None
        return self.mechanism.sum_bits(self.summed_clients)

    @property
    def sent_bits(self) -> float:
        """The bits that a message sends per coordinate: masked in a secure sum."""
        masked = self.masked_bits
        return self.bits_per_coordinate if masked is None else masked

    @property
    def bytes_per_update(self) -> int:
        """The size of the whole message in bytes, header included.

        In a secure sum it is the masked vector, without keys and shares of the protocol.
        """
        if self.summed_clients is not None:
            masked = masked_bytes(self.mechanism, self.summed_clients)
            if masked is not None:
                return HEADER_BYTES + masked
        payload_bits = self.mechanism.code_format().payload_bits(
            self.mechanism.input_domain.dimension
        )
        return HEADER_BYTES + (payload_bits + 7) // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedCandidate:
    """A mechanism with parameters that cannot be used here, and the reason.

    Attributes:
        kind: The registered name of the mechanism.
        setting: The parameters that were tried.
        reason: Why they cannot be used, in a sentence.
        fits: Whether the mechanism is made for this kind of domain.
        needs: The bits per coordinate that it would send if only the limit on bits excludes it;
            None for any other reason.
    """

    kind: str
    setting: Parameters
    reason: str
    fits: bool
    needs: float | None = None


def generate_candidates(setting: PlanSetting) -> Iterator[Candidate | ExcludedCandidate]:
    """Yield every registered mechanism with each of its settings, in order of their names.

    A `Candidate` is calibrated to the budget; an `ExcludedCandidate` says why there is none. A
    setting in which "auto" leads to the same parameters as an earlier one is skipped.
    """
    guesses = CalibrationGuesses(setting)
    for registration in registry.registrations():
        if setting.summed_clients is not None:
            if not issubclass(registration.factory, SummableCodes):  # type: ignore[arg-type]
                reason = "its codes are not added up in a secure sum; use another channel"
                yield ExcludedCandidate(
                    kind=registration.kind, setting={}, reason=reason, fits=False
                )
                continue
            registration = registration.in_sum(setting.summed_clients)
        yield from _candidates_of(registration, setting, guesses)


def _candidates_of(
    registration: Registration, setting: PlanSetting, guesses: CalibrationGuesses
) -> Iterator[Candidate | ExcludedCandidate]:
    seen: list[Parameters] = []
    if not registration.settings:
        reason = "it is made for secure sums; plan for channel secure_sum to rank it"
        yield ExcludedCandidate(kind=registration.kind, setting={}, reason=reason, fits=False)
    for free in registration.settings:
        try:
            candidate = _candidate(registration, free, setting, guesses)
            needs = candidate.sent_bits
        except SottovoceError as error:
            yield _left_out(registration, free, setting, str(error))
            continue
        if candidate.parameters in seen:  # 'auto' chose parameters that were also listed.
            continue
        seen.append(candidate.parameters)
        if setting.bits is not None and needs > setting.bits:
            reason = f"it sends {needs:g} bits per coordinate, above the limit of {setting.bits:g}"
            yield _left_out(registration, free, setting, reason, needs)
        else:
            yield candidate


def _candidate(
    registration: Registration,
    free: Parameters,
    setting: PlanSetting,
    guesses: CalibrationGuesses,
) -> Candidate:
    if registration.calibrated_parameter is None:
        raise ParameterError("it gives no privacy, or has no parameter to calibrate")
    domain = domain_for(registration, setting.domain)
    if isinstance(domain, registration.slow_on) and not setting.designs:
        raise ParameterError(
            "calibrating it takes about a minute here, because a table must be designed for each "
            "value that is tried; use --designs (designs=True in Python) to rank it"
        )
    parameters = _calibrated(registration, free, domain, setting, guesses)
    mechanism = registration.build(domain, parameters)
    event = Repeated(event=setting.terms(mechanism), count=setting.rounds)
    spent = setting.terms.spent(event, setting.delta)
    if spent.epsilon > setting.epsilon:  # 'auto' may choose otherwise than during calibration.
        raise ParameterError(
            f"after calibration it spends {spent}, above epsilon {setting.epsilon:g}; calibrate it "
            "by itself, with parameters given explicitly instead of 'auto'"
        )
    summed, local = setting.summed_clients, None
    if summed is not None:
        alone = Repeated(event=setting.terms.local(mechanism), count=setting.rounds)
        local = setting.terms.spent(alone, setting.delta)
    return Candidate(
        kind=registration.kind,
        setting=free,
        parameters=parameters,
        mechanism=mechanism,
        spent=spent,
        prediction=predict(
            registration, parameters, mechanism, setting.domain, averaged=summed or 1
        ),
        summed_clients=summed,
        local_spent=local,
    )


def domain_for(registration: Registration, domain: Domain) -> Domain:
    """Return the domain itself, or the enclosing L2 ball if the mechanism is not made for it.

    It is the domain itself, too, if the mechanism is not made for L2 balls either.
    """
    made_for = tuple(type(one) for one in registration.example_domains)
    if not isinstance(domain, made_for) and L2Ball in made_for:
        return enclosing_ball(domain)
    return domain


def _calibrated(
    registration: Registration,
    free: Parameters,
    domain: Domain,
    setting: PlanSetting,
    guesses: CalibrationGuesses,
) -> Parameters:
    known = guesses.recall(registration, free, domain)
    if registration.calibrated_parameter is not None and known is not None:
        return registration.resolve(
            domain, {**free, registration.calibrated_parameter.parameter: known}
        )
    parameters = registration.calibrated(
        domain,
        free,
        rounds=setting.rounds,
        epsilon=setting.epsilon,
        delta=setting.delta,
        event_of=setting.terms,
        relative_tolerance=_RELATIVE_TOLERANCE,
        near=guesses.guess(registration, free, domain),
    )
    assert registration.calibrated_parameter is not None
    name = registration.calibrated_parameter.parameter
    guesses.learn(name, parameters[name], registration.build(domain, parameters))
    return parameters


def _left_out(
    registration: Registration,
    free: Parameters,
    setting: PlanSetting,
    reason: str,
    needs: float | None = None,
) -> ExcludedCandidate:
    return ExcludedCandidate(
        kind=registration.kind,
        setting=free,
        reason=reason,
        fits=any(isinstance(setting.domain, type(one)) for one in registration.example_domains),
        needs=needs,
    )
