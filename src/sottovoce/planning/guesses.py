"""Where calibration should begin: a good guess saves most of its time, a bad one costs little.

At one budget all mechanisms give away about as much in a message, whatever their knobs are called.
The order-2 Renyi divergence measures that in closed form, so the knob is turned until it matches
what calibration found last. Nothing here is trusted: what is found is always accounted for.
"""

import math

from sottovoce.core.domains import Domain
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import Parameters, Registration
from sottovoce.mechanisms.release import local_event
from sottovoce.planning.setting import Setting
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.privacy.renyi import renyi_divergence

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
