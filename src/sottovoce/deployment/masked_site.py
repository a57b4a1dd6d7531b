"""A site's part in training by secure sums: policy, training, charge, then masked codes."""

from collections.abc import Sequence
from functools import partial

from sottovoce.core.errors import PolicyError
from sottovoce.deployment.exchanges import Opening, sum_policy, trusted
from sottovoce.deployment.masked_orders import attempt_of, canonical
from sottovoce.deployment.orders import Order
from sottovoce.deployment.policy import Terms
from sottovoce.deployment.site import Site, check_uplinks, finite_or_zeros, order_name
from sottovoce.deployment.site_training import PreparedOrder, prepare_order
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import PendingCharge
from sottovoce.protocol.channels.channel import Channel
from sottovoce.protocol.channels.secure_sum import PAIRWISE, SecureSum
from sottovoce.protocol.secure.contribution import MaskedRequest, contribute, masked_charges
from sottovoce.protocol.secure.pairwise_site import PairwiseSite


def opening_of_order(order: Order, site: Site) -> Opening:
    """Return the attempt that an order opens, if the site's terms allow it; train nothing.

    Raises:
        PolicyError: The policy does not allow it.
    """
    key, roster = trusted(site)
    prepared = prepare_order(order, site)
    _check_pairwise(prepared.asked.plan.channel)
    policy = sum_policy(site)
    assert policy.honest is not None
    assert policy.colluders is not None
    attempt = attempt_of(
        prepared.asked.plan,
        prepared.asked.part.mechanism,
        roster=roster,
        number=order.attempt,
        cohort=order.cohort,
        uplinks=prepared.asked.uplinks,
        order=agreed(order),
        vectors=order.vectors,
    )
    return Opening(
        key=key,
        roster=roster,
        attempt=attempt,
        honest=policy.honest,
        colluders=policy.colluders,
        terms=canonical({**agreed(order), "rounds": prepared.asked.rounds}),
        planned_rounds=prepared.asked.rounds,
        contribute=partial(_contribute, prepared, order.attempt),
    )


def _contribute(
    ready: PreparedOrder,
    attempt: int,
    party: PairwiseSite,
    box: bytes,
    ledger: Ledger,
    site: Site,
) -> bytes:
    """Return the site's masked vectors, or raise and release nothing.

    As for a plain message, limits are checked before training and again in the transaction that
    charges. Every attempt at a round is charged.
    """
    asked = ready.asked
    terms = Terms.of(asked.plan, asked.part, cohort=asked.cohort, grade=ready.randomness.grade)
    site.check_terms(asked.part.client, terms)

    def check(pending: Sequence[PendingCharge], *, charging: bool) -> None:
        planned = asked.rounds * asked.uplinks
        site.check_charges(ledger, pending, planned=planned, charging=charging, retries=True)

    check(masked_charges(asked.plan, asked.part, asked.uplinks, attempt), charging=False)
    vectors = [finite_or_zeros(values) for values in ready.train()]
    check_uplinks(len(vectors), asked.uplinks)
    message = contribute(
        MaskedRequest(plan=asked.plan, part=asked.part, vectors=vectors, attempt=attempt),
        party,
        box,
        ledger,
        ready.randomness,
        permit=partial(check, charging=True),
    )
    if site.audit_log is not None:
        site.audit_log.answered(ledger, order_name(asked), charged=True, records=asked.records)
    return message


def _check_pairwise(channel: Channel) -> None:
    """Refuse an attempt on a channel whose messages are charged otherwise than those of a sum."""
    if not isinstance(channel, SecureSum) or channel.protocol != PAIRWISE:
        raise PolicyError(
            f"an order opens an attempt at a secure sum, but the run's channel is "
            f"'{channel.kind}' ({channel.describe()}); set channel.protocol = 'pairwise'"
        )


def agreed(order: Order) -> dict[str, object]:
    """Return what all sites of an attempt must have received alike, in addition to the model."""
    return {
        "spec": order.spec,
        "mechanism": order.mechanism,
        "classes": order.classes,
    }
