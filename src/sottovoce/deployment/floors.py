"""Floors under what a sampled record gets: noise and sampling rate below which a site refuses.

(epsilon, delta) alone is no floor. A record that a round works on with probability q is touched in
T rounds with probability at most qT, so releasing it without any noise is (0, qT)-DP: with
qT <= delta a policy of (epsilon, delta) is kept by rounds that protect nobody whom they touch.
More generally, a sample that is (e, d)-DP for the records in it is (log(1 + q (e^e - 1)), q d)-DP:
a bound at delta on the whole bounds the failures for a record in the sample by d = delta/q only.

So two things are asked of a round on a secret sample, neither of which counts on the sample:

epsilon_if_sampled       the round without its sample is (epsilon_if_sampled, delta)-DP: what holds
                         for a record that is in the sample, by any mechanism
smallest_sampling_rate   q is at least 100 delta, so that d = delta/q is at most 1%. One round above
                         delta is enough to exclude qT <= delta, whatever T is, so the number of
                         rounds, which the server would tell, is not needed.

DP-SGD at noise multiplier 0.4 has epsilon 33 in the sample at delta 1e-5 (40 at 1e-8) under
replace-one, 13 under zero-out. Where a site lets an unsampled round cost more, so may this.
"""

from collections.abc import Iterable

from sottovoce.core.errors import PolicyError
from sottovoce.core.shown import show_epsilon
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.privacy.accounting import privacy_spent, within
from sottovoce.privacy.compositions import unhidden
from sottovoce.privacy.events import PrivacyEvent, Sampled, basic_counts

EPSILON_IF_SAMPLED = 40.0
SAMPLING_RATE_IN_DELTAS = 100.0
_NOISE_MULTIPLIER = "noise_multiplier"


def check_sampled(
    event: PrivacyEvent, *, delta: float, epsilon_if_sampled: float, smallest_sampling_rate: float
) -> None:
    """Refuse a round that protects too little what is in its sample, or samples too rarely.

    Raises:
        PolicyError: with a reason that follows from the event and the limits.
    """
    rates = [part.rate for part in basic_counts(event) if isinstance(part, Sampled)]
    if not rates:
        return  # nothing is amplified by a sample: `epsilon_per_round` says it all
    if not min(rates) >= smallest_sampling_rate:
        raise PolicyError(
            f"each record is sampled with probability {min(rates):g}, and "
            f"'smallest_sampling_rate' is {smallest_sampling_rate:g}: at delta {delta:g} next to "
            "nothing would be promised to a record that is sampled"
        )
    seen = unhidden(event, samples_too=True)
    if not within(seen, delta, epsilon_if_sampled):
        epsilon = show_epsilon(privacy_spent(seen, delta).epsilon)
        raise PolicyError(
            f"the round costs a record that is sampled epsilon {epsilon} at delta {delta:g}, and "
            f"'epsilon_if_sampled' is {epsilon_if_sampled:g}; add noise"
        )


def noise_multiplier_of(mechanism: Mechanism) -> float | None:
    """Return the noise of a mechanism in units of what one record moves; None if it has none."""
    found = getattr(mechanism, _NOISE_MULTIPLIER, None)
    return None if found is None else float(found)


def without_noise_multiplier(kinds: Iterable[str]) -> list[str]:
    """Return the mechanisms for which a smallest noise multiplier means nothing."""
    return [kind for kind in kinds if _NOISE_MULTIPLIER not in registry.find(kind).parameters]
