"""A site's part in secure sums by pairwise masks: policy, training, charge, then masked codes.

The secrets of an attempt live in the memory of the site's worker only, so a site that restarts has
dropped out of the attempt. `Exchanges` holds the newest attempt of each run.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from sottovoce.core import printable_text
from sottovoce.core.errors import PolicyError, SottovoceError, WireError
from sottovoce.deployment.machines.trust_files import load_trust
from sottovoce.deployment.masked_orders import Step, attempt_of, canonical
from sottovoce.deployment.orders import Order
from sottovoce.deployment.policy import Policy, Terms
from sottovoce.deployment.site import (
    Site,
    SiteRules,
    check_uplinks,
    finite_or_zeros,
    order_name,
)
from sottovoce.deployment.site_training import PreparedOrder, prepare_order
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import PendingCharge
from sottovoce.protocol.channels.channel import Channel
from sottovoce.protocol.channels.secure_sum import PAIRWISE, SecureSum
from sottovoce.protocol.secure.contribution import MaskedRequest, contribute, masked_charges
from sottovoce.protocol.secure.pairwise_site import PairwiseSite
from sottovoce.protocol.secure.roster import Roster, TrustKey

_LOG = printable_text.logger()
_MOST_RUNS = 16  # Attempts of so many runs are kept open at once.


@dataclass(frozen=True, slots=True)
class _Assumed:
    """What the owner of a site has decided about an attempt's safety.

    A server may keep an attempt open for days. Its owner's decisions hold from the next step on.
    """

    roster: bytes
    honest: int
    colluders: int


@dataclass(slots=True)
class _Exchange:
    """One attempt that a site takes part in."""

    order: PreparedOrder
    ledger: Ledger
    party: PairwiseSite
    attempt: int
    assumed: _Assumed


@dataclass(slots=True)
class Exchanges:
    """The attempts that this process takes part in, one for each run."""

    _open: dict[str, _Exchange] = field(default_factory=dict)

    def open(self, order: Order, site: Site) -> bytes:
        """Begin an attempt, and return the site's keys; nothing is trained or charged yet.

        Raises:
            PolicyError: The policy or the pinned roster does not allow it.
            WireError: This attempt, or a later one of the run, was begun before.
            DeploymentError: The site has no usable key or roster.
        """
        key, roster = _trusted(site)
        prepared = prepare_order(order, site)
        _check_pairwise(prepared.asked.plan.channel)
        assumed = _assumed(site.policy, roster)
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
        ledger = site.open_ledger()
        try:
            journal = ledger.journal()
            _check_attempts(ledger, order, prepared, site.policy, roster.federation)
            party = PairwiseSite(
                name=site.name,
                roster=roster,
                key=key,
                journal=journal,
                attempt=attempt,
                honest=assumed.honest,
                colluders=assumed.colluders,
            )
            keys = party.begin()
        except BaseException:
            ledger.close()
            raise
        # Only now: an order that is refused, such as a copy of an earlier one, ends no attempt.
        self.close(order.run)
        if len(self._open) >= _MOST_RUNS:
            self.close(next(iter(self._open)))
        self._open[order.run] = _Exchange(prepared, ledger, party, order.attempt, assumed)
        return keys

    def step(self, step: Step, site: Site) -> bytes:
        """Return the site's next message of an open attempt.

        Raises:
            WireError: The attempt is not open, or the message is not the one that it waits for.
            PolicyError: The policy does not allow the charge.
        """
        open_ = self._open.get(step.run)
        place = (step.client, step.round, step.attempt)
        if open_ is None or place != (
            site.name,
            open_.order.asked.plan.round,
            open_.attempt,
        ):
            raise WireError(
                f"attempt {step.attempt} at round {step.round} of the run '{step.run}' is not open "
                "at this site; it may have restarted since"
            )
        if _assumed(site.policy, _trusted(site)[1]) != open_.assumed:
            self.close(step.run)
            raise PolicyError(
                "the site has changed its roster, or 'honest' or 'colluders' of its policy, since "
                "the attempt began; begin another one"
            )
        party = open_.party
        match step.action:
            case "share":
                return party.share(step.content)
            case "contribute":
                return _contribute(open_, step.content, site)
            case "sign":
                return party.sign(step.content)
            case "answer":
                answer = party.answer(step.content)
                self.close(step.run)
                return answer

    def close(self, run: str) -> None:
        """Forget the secrets of a run's open attempt, if there is one."""
        found = self._open.pop(run, None)
        if found is not None:
            try:
                found.party.close()
            finally:
                found.ledger.close()


def _contribute(exchange: _Exchange, box: bytes, site: Site) -> bytes:
    """Return the site's masked vectors, or raise and release nothing.

    As for a plain message, limits are checked before training and again in the transaction that
    charges. Every attempt at a round is charged.
    """
    ready, ledger = exchange.order, exchange.ledger
    asked = ready.asked
    terms = Terms.of(asked.plan, asked.part, cohort=asked.cohort, grade=ready.randomness.grade)
    site.check_terms(asked.part.client, terms)
    # Training takes as long as the data make it, so nothing is trained that is not charged.
    message = exchange.party.check_box(box)
    if message is None:
        message = _trained(exchange, box, site)
    if site.audit_log is not None:
        site.audit_log.answered(ledger, order_name(asked), charged=True, records=asked.records)
    site.settle(ledger.position())
    return message


def _trained(exchange: _Exchange, box: bytes, site: Site) -> bytes:
    """Train, charge and return the masked vectors for a box that was checked."""
    ready, ledger = exchange.order, exchange.ledger
    asked = ready.asked

    def check(pending: Sequence[PendingCharge], *, charging: bool) -> None:
        site.check_charges(
            ledger,
            pending,
            planned=asked.rounds * asked.uplinks,
            charging=charging,
            retries=True,
        )

    check(masked_charges(asked.plan, asked.part, asked.uplinks, exchange.attempt), charging=False)
    vectors = [finite_or_zeros(values) for values in ready.train()]
    check_uplinks(len(vectors), asked.uplinks)
    return contribute(
        MaskedRequest(plan=asked.plan, part=asked.part, vectors=vectors, attempt=exchange.attempt),
        exchange.party,
        box,
        ledger,
        ready.randomness,
        permit=partial(check, charging=True),
    )


def _trusted(site: Site) -> tuple[TrustKey, Roster]:
    """Return the site's key and pinned roster; what is wrong with its files is only logged."""
    try:
        return load_trust(site.trust)
    except SottovoceError as error:
        _LOG.error("%s", error)
        raise PolicyError(
            "this site has no usable key or pinned roster for secure sums; see its log"
        ) from None


def _assumed(policy: SiteRules, roster: Roster) -> _Assumed:
    assert isinstance(policy, Policy), "only a policy allows secure sums"
    if policy.honest is None or policy.colluders is None:
        raise PolicyError("set 'honest' and 'colluders' in [policy] to allow secure sums")
    return _Assumed(roster.digest, policy.honest, policy.colluders)


def _check_pairwise(channel: Channel) -> None:
    """Refuse an attempt on a channel whose messages are charged otherwise than those of a sum."""
    if not isinstance(channel, SecureSum) or channel.protocol != PAIRWISE:
        raise PolicyError(
            f"an order opens an attempt at a secure sum, but the run's channel is "
            f"'{channel.kind}' ({channel.describe()}); set channel.protocol = 'pairwise'"
        )


def agreed(order: Order) -> dict[str, object]:
    """Return what all sites of an attempt must have received alike, beside the model."""
    return {
        "spec": order.spec,
        "mechanism": order.mechanism,
        "classes": order.classes,
    }


def _check_attempts(
    ledger: Ledger, order: Order, prepared: PreparedOrder, policy: SiteRules, federation: bytes
) -> None:
    """Raise PolicyError if the run's terms have changed, or it has had too many attempts.

    A server that could change what an attempt costs after it has seen results would choose it by
    them, and one that could repeat attempts without end would use up the site's budget.
    """
    assert isinstance(policy, Policy), "only a policy allows secure sums"
    journal = ledger.journal()
    # A digest, because an order's spec has megabytes if the server likes, and stays for ever.
    fixed = canonical({**agreed(order), "rounds": prepared.asked.rounds})
    terms = hashlib.sha256(fixed.encode()).hexdigest()
    if journal.fix(federation, order.run, terms) != terms:
        raise PolicyError(
            f"the plan of the run '{order.run}' differs from the one that its first attempt fixed; "
            "start a run with another name"
        )
    most = prepared.asked.rounds + policy.retries
    if journal.attempts(federation, order.run) >= most:
        raise PolicyError(
            f"the run '{order.run}' has used the {prepared.asked.rounds} planned rounds and the "
            f"{policy.retries} 'retries' that this site allows; start a new run, or raise 'retries'"
        )
