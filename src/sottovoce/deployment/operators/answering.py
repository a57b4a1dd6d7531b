"""What a client answers to runs and questions of a relay's collector, by its own policy.

The client has a site.toml: policy, ledger and data are those of a site of Flower's link. The order,
or the question, is the announcement's content. As for a site, limits are checked before anything is
read, before training, and in the transaction that charges. How announcements and answers travel is
not known here: over HTTPS (`participant`), or over a link (`sottovoce.flower.node_client`).
"""

import dataclasses
import time
from dataclasses import dataclass

from sottovoce.core.errors import PolicyError, WireError
from sottovoce.deployment.operators.device import AdmittedClient
from sottovoce.deployment.operators.relay_answers import QUESTION_ROUNDS, report_answer
from sottovoce.deployment.operators.relay_orders import unpack_order
from sottovoce.deployment.operators.relayed_questions import is_question
from sottovoce.deployment.policy import Policy, Terms
from sottovoce.deployment.site import Site, check_uplinks, finite_or_zeros, order_name
from sottovoce.deployment.site_training import PreparedOrder, prepare_order
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.relayed import (
    Party,
    RelayedRequest,
    canonical_parameters,
    channel_of,
    report,
)
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.contribution import masked_charges
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.shuffle_client import ShuffleClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """A client's report, its answer to an announcement.

    Attributes:
        report: The report for the relay, which is stored and may be sent again.
        is_new: Whether it was made now; if not, the client was stopped after it had made it.
    """

    report: bytes
    is_new: bool


@dataclass(slots=True)
class AnsweringClient:
    """A client that answers announcements by the policy of its site.

    Args:
        client: The admitted client.
        site: Policy, ledger and data.
    """

    client: AdmittedClient
    site: Site

    def report(self, asked: bytes, content: bytes) -> ClientReport:
        """Charge and answer an announcement, or return the stored report of an earlier answer.

        Args:
            asked: The announcement.
            content: What it is about: an order or a question.

        Raises:
            SottovoceError: The announcement is not the pinned collector's, the policy refuses it,
                or the client fails. Nothing may be sent.
        """
        site, policy, client = self.site, self.site.policy, self.client
        if not isinstance(policy, Policy) or policy.honest is None or policy.colluders is None:
            raise PolicyError("set 'honest' and 'colluders' in [policy] to allow secure sums")
        found = Announcement.read(asked)
        found.check(client.device.operators.keys)
        found.check_content(content)
        prepared = None
        if not is_question(content):
            prepared = prepare_order(unpack_order(content, site.name), site)
        with site.open_ledger() as ledger:
            client.device = dataclasses.replace(
                client.device, honest_clients=policy.honest, colluders=policy.colluders
            )
            rounds = QUESTION_ROUNDS if prepared is None else prepared.asked.rounds
            most = rounds + policy.retries
            party = client.party(found.attempt.protocol, ledger, most_attempts=most)
            is_new = ledger.journal().state(found.place) is None
            if prepared is None:
                message = report_answer(asked, content, site=site, party=party, ledger=ledger)
            elif is_new:
                message = self._contribute(asked, found, prepared, party, ledger)
            else:  # This client was stopped after it had answered.
                request = _request(asked, found, prepared, party)
                message = report(request, party, ledger, prepared.randomness)
            standing = ledger.position()
        site.settle(standing)
        return ClientReport(report=message, is_new=is_new)

    def confirmation(self, asked: bytes, leaves: bytes) -> bytes:
        """Return the confirmation that the own message is in the list; also after a restart.

        Args:
            asked: The announcement.
            leaves: Root and digests of the whole list, from the relay.

        Raises:
            SottovoceError: This client has not answered, its message is not in the list, or the
                root is not the pinned collector's.
        """
        with self.site.open_ledger() as ledger:
            party = self.client.party(Protocol.SHUFFLER, ledger)
            assert isinstance(party, ShuffleClient)
            return party.confirm_among(asked, leaves, int(time.time()))

    def _contribute(
        self,
        asked: bytes,
        found: Announcement,
        prepared: PreparedOrder,
        party: Party,
        ledger: Ledger,
    ) -> bytes:
        """Train, charge and encode, or raise and release nothing."""
        site, part, uplinks = self.site, prepared.asked.part, prepared.asked.uplinks
        request = _request(asked, found, prepared, party)
        plan, grade = request.plan, prepared.randomness.grade
        site.check_terms(
            part.client, Terms.of(plan, part, cohort=prepared.asked.cohort, grade=grade)
        )
        planned = prepared.asked.rounds * uplinks
        due = masked_charges(plan, part, uplinks, found.attempt.attempt)
        site.check_charges(ledger, due, planned=planned, retries=True)
        vectors = [finite_or_zeros(values) for values in prepared.train()]
        check_uplinks(len(vectors), uplinks)
        message = report(
            dataclasses.replace(request, vectors=vectors),
            party,
            ledger,
            prepared.randomness,
            permit=lambda pending: site.check_charges(
                ledger, pending, planned=planned, charging=True, retries=True
            ),
        )
        if site.audit_log is not None:
            name, records = order_name(prepared.asked), prepared.asked.records
            site.audit_log.answered(ledger, name, charged=True, records=records)
        return message


def _request(
    asked: bytes,
    found: Announcement,
    prepared: PreparedOrder,
    party: Party,
) -> RelayedRequest:
    """Return the client's part of an announced attempt.

    Raises:
        WireError: The order and the announcement do not belong together.
    """
    plan, part = prepared.asked.plan, prepared.asked.part
    expected: dict[str, object] = {
        "run": plan.run,
        "round": plan.round,
        "mechanism": canonical_parameters(part.mechanism),
        "uplinks": prepared.asked.uplinks,
        "rotation_seed": b"" if plan.rotation is None else plan.rotation.seed,
        "adjacency": str(plan.adjacency),
        "unit": str(plan.unit),
    }
    for name, value in expected.items():
        if getattr(found.attempt, name) != value:
            raise WireError(f"the order has another '{name}' than its announcement; refuse both")
    # The charge counts on the honest clients that this client's own policy believes in.
    plan = dataclasses.replace(plan, channel=channel_of(party, found))
    return RelayedRequest(announcement=asked, plan=plan, part=part, vectors=[])
