"""Every registered mechanism at the same budget, or the reason why not.

A `Setting` says what is asked of them: the budget, the clip, and how much may be sent.

Calibration begins with a guess: a good one saves most of its time, a bad one costs little. At one
budget all mechanisms give away about as much in a message, whatever their knobs are called. The
order-2 Renyi divergence measures that in closed form, so the knob is turned until it matches what
calibration found last. Nothing here is trusted: what is found is always accounted for.
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
from sottovoce.mechanisms.mechanism import Mechanism, bits_per_coordinate
from sottovoce.mechanisms.registry import Parameters, Registration
from sottovoce.mechanisms.release import ReleaseTerms, local_event
from sottovoce.planning.prediction import Prediction, predict
from sottovoce.privacy.accounting import PrivacySpent
from sottovoce.privacy.calibration import MAX_ROUNDS
from sottovoce.privacy.compositions import SAMPLE_ASSUMPTIONS
from sottovoce.privacy.events import PrivacyEvent, Repeated
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce.protocol.message import HEADER_BYTES


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


_HALVINGS = 24


class Guesses:
    """What calibration found so far for one setting."""

    def __init__(self, setting: Setting) -> None:
        self._terms = setting.terms
        self._divergence = _divergence_of_a_message(setting)
        self._divergences: dict[type[PrivacyEvent], float] = {}  # what was found, by event
        self._found: list[tuple[str, float, PrivacyEvent]] = []

    def learn(self, knob: str, value: float, mechanism: Mechanism) -> None:
        """Keep what calibration found."""
        event = local_event(mechanism, adjacency=self._terms.adjacency)
        self._divergences[type(event)] = renyi_divergence(event, 2.0)
        self._found.append((knob, value, self._terms(mechanism)))

    def known(self, registration: Registration, free: Parameters, domain: Domain) -> float | None:
        """The value at which an event comes again that calibration ended with: nothing to find."""
        for knob, value, event in self._found:
            if registration.knob and knob == registration.knob.parameter:
                mechanism = registration.build(domain, {**free, knob: value})
                if self._terms(mechanism) == event:
                    return value
        return None

    def guess(self, registration: Registration, free: Parameters, domain: Domain) -> float | None:
        """The value with which to begin, or None where there is none or it would take long."""
        knob = registration.knob
        if knob is None or isinstance(domain, registration.slow_on):
            return None
        fallback = next(iter(self._divergences.values()), self._divergence)
        loose, safe = map(math.log, knob.ends_on(domain, free))
        for _ in range(_HALVINGS):
            middle = (loose + safe) / 2.0
            given = {**free, knob.parameter: math.exp(middle)}
            mechanism = registration.build(domain, given)
            event = local_event(mechanism, adjacency=self._terms.adjacency)
            aim = self._divergences.get(type(event), fallback)
            if renyi_divergence(event, 2.0) <= aim:
                safe = middle
            else:
                loose = middle
        return math.exp(safe)


def _divergence_of_a_message(setting: Setting) -> float:
    """About what a message may give away: zCDP over the rounds, amplified by sampling.

    rho = epsilon^2/(4 log(1/delta)) or epsilon^2/2, over all rounds; D_2 = 2 rho/rounds; a Poisson
    sample turns e^D_2 - 1 into q^2 times as much.
    """
    rho = min(setting.epsilon, setting.epsilon**2 / (4.0 * math.log(1.0 / setting.delta)))
    sampled = 2.0 * rho / setting.rounds
    rate = 1.0 if setting.terms.sample is None else setting.terms.sample.rate
    return math.log1p(math.expm1(min(sampled, 500.0)) / rate**2)


# Of the knob: errors of a few in a thousand do not change a ranking, and calibration is most of
# the time. The value found keeps the budget whatever the tolerance.
_RELATIVE_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A mechanism that keeps the budget, and what it does to an update."""

    kind: str
    setting: Parameters
    parameters: Parameters
    mechanism: Mechanism
    spent: PrivacySpent
    prediction: Prediction

    @property
    def mse(self) -> float:
        return self.prediction.mse

    @property
    def bits_per_coordinate(self) -> float:
        return bits_per_coordinate(self.mechanism)

    @property
    def bytes_per_update(self) -> int:
        """The whole message as sent."""
        payload_bits = self.mechanism.code_format().payload_bits(
            self.mechanism.input_domain.dimension
        )
        return HEADER_BYTES + (payload_bits + 7) // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A mechanism with parameters that do not apply, and why, in a sentence.

    fits      whether it is made for such a domain at all.
    needs     bits a coordinate that it would take, if only that stands against it.
    """

    kind: str
    setting: Parameters
    reason: str
    fits: bool
    needs: float | None = None


def candidates(setting: Setting) -> Iterator[Candidate | LeftOut]:
    """Every registered mechanism with each of its settings, by name."""
    guesses = Guesses(setting)
    for registration in registry.registrations():
        yield from _candidates_of(registration, setting, guesses)


def _candidates_of(
    registration: Registration, setting: Setting, guesses: Guesses
) -> Iterator[Candidate | LeftOut]:
    seen: list[Parameters] = []
    for free in registration.settings:
        try:
            candidate = _candidate(registration, free, setting, guesses)
            needs = candidate.bits_per_coordinate
        except SottovoceError as error:
            yield _left_out(registration, free, setting, str(error))
            continue
        if candidate.parameters in seen:  # 'auto' chose what is listed too
            continue
        seen.append(candidate.parameters)
        if setting.bits is not None and needs > setting.bits:
            reason = f"it sends {needs:g} bits a coordinate, and at most {setting.bits:g} are asked"
            yield _left_out(registration, free, setting, reason, needs)
        else:
            yield candidate


def _candidate(
    registration: Registration,
    free: Parameters,
    setting: Setting,
    guesses: Guesses,
) -> Candidate:
    if registration.knob is None:
        raise ParameterError("it gives no privacy, so there is nothing to calibrate")
    domain = domain_for(registration, setting.domain)
    if isinstance(domain, registration.slow_on) and not setting.designs:
        raise ParameterError(
            "every value that calibration tries is a design to solve and to account for, which "
            "takes a minute or so here; ask for designs (--designs) to have it ranked"
        )
    parameters = _calibrated(registration, free, domain, setting, guesses)
    mechanism = registration.build(domain, parameters)
    event = Repeated(event=setting.terms(mechanism), count=setting.rounds)
    spent = setting.terms.spent(event, setting.delta)
    if spent.epsilon > setting.epsilon:  # 'auto' may not see what calibration saw
        raise ParameterError(f"calibrated, it spends {spent}, above epsilon {setting.epsilon:g}")
    return Candidate(
        kind=registration.kind,
        setting=free,
        parameters=parameters,
        mechanism=mechanism,
        spent=spent,
        prediction=predict(registration, parameters, mechanism, setting.domain),
    )


def domain_for(registration: Registration, domain: Domain) -> Domain:
    """Where the mechanism takes its inputs: the domain, or a Euclidean ball that holds it."""
    made_for = tuple(type(one) for one in registration.example_domains)
    if not isinstance(domain, made_for) and L2Ball in made_for:
        return enclosing_ball(domain)
    return domain


def _calibrated(
    registration: Registration,
    free: Parameters,
    domain: Domain,
    setting: Setting,
    guesses: Guesses,
) -> Parameters:
    known = guesses.known(registration, free, domain)
    if registration.knob is not None and known is not None:
        return registration.resolve(domain, {**free, registration.knob.parameter: known})
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
    assert registration.knob is not None
    knob = registration.knob.parameter
    guesses.learn(knob, parameters[knob], registration.build(domain, parameters))
    return parameters


def _left_out(
    registration: Registration,
    free: Parameters,
    setting: Setting,
    reason: str,
    needs: float | None = None,
) -> LeftOut:
    return LeftOut(
        kind=registration.kind,
        setting=free,
        reason=reason,
        fits=any(isinstance(setting.domain, type(one)) for one in registration.example_domains),
        needs=needs,
    )
