"""A client that answers runs and questions of a collector through the relay, by its own policy.

The client's folder has a site.toml next to its device.toml: policy, ledger and data are those of a
site of Flower's link. The order, or the question, is the announcement's content. As for a site,
limits are checked before anything is read, before training, and in the transaction that charges.
"""

import dataclasses
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from sottovoce.core import printable_text
from sottovoce.core.errors import DeploymentError, PolicyError, SottovoceError, WireError
from sottovoce.deployment.machines.processes import hold_supervisor_lock
from sottovoce.deployment.operators.calls import RefusedError
from sottovoce.deployment.operators.device import DeviceFolder, RelayLink
from sottovoce.deployment.operators.relay_answers import QUESTION_ROUNDS, report_answer
from sottovoce.deployment.operators.relay_orders import unpack_order
from sottovoce.deployment.operators.relayed_questions import is_question
from sottovoce.deployment.policy import Policy, Terms
from sottovoce.deployment.site import Site, check_uplinks, finite_or_zeros, order_name, read_site
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

POLL_SECONDS = 2.0
START_SECONDS = 60.0
_LOG = printable_text.logger()


@dataclass(slots=True)
class Participant:
    """A client with its connection to the relay and what it has answered in this process.

    Args:
        link: The way to the relay.
        site: Policy, ledger and data.
    """

    link: RelayLink
    site: Site
    _seen: bytes = field(init=False, default=b"", repr=False)
    _unconfirmed: Announcement | None = field(init=False, default=None, repr=False)

    def look(self) -> str | None:
        """Look for an announcement or a list to confirm, and answer it.

        Returns:
            What was done, as a sentence; None if there was nothing to do.

        Raises:
            SottovoceError: The client refuses or fails; nothing more of this announcement is sent.
        """
        try:
            asked, content = self.link.announcement()
        except RefusedError as refused:
            if refused.is_too_early:
                return None
            raise
        found = Announcement.read(asked)
        if found.ann == self._seen:
            return self._confirm()
        self._seen, self._unconfirmed = found.ann, None
        try:
            self._answer(asked, found, content)
        except DeploymentError as error:
            if not isinstance(error, RefusedError) or error.is_busy:
                self._seen = b""  # The relay is away: the report is sent later.
            raise
        if found.is_confirmed:
            self._unconfirmed = found
        return f"answered {found.place}"

    def _confirm(self) -> str | None:
        """Send the confirmation of the own message once there is a list."""
        found = self._unconfirmed
        if found is None or time.time() < found.closes:
            return None
        try:
            with self.site.open_ledger() as ledger:
                self.link.confirm(ledger=ledger)
        except RefusedError as refused:
            if refused.is_too_early:
                return None
            if not refused.is_busy:
                self._unconfirmed = None
            raise
        self._unconfirmed = None
        return f"confirmed {found.place}"

    def _answer(self, asked: bytes, found: Announcement, content: bytes) -> None:
        site, policy = self.site, self.site.policy
        if not isinstance(policy, Policy) or policy.honest is None or policy.colluders is None:
            raise PolicyError("set 'honest' and 'colluders' in [policy] to allow secure sums")
        found.check(self.link.device.operators.keys)
        found.check_content(content)
        prepared = None
        if not is_question(content):
            prepared = prepare_order(unpack_order(content, site.name), site)
        with site.open_ledger() as ledger:
            self.link.device = dataclasses.replace(
                self.link.device, honest_clients=policy.honest, colluders=policy.colluders
            )
            rounds = QUESTION_ROUNDS if prepared is None else prepared.asked.rounds
            most = rounds + policy.retries
            party = self.link.party(found.attempt.protocol, ledger, most_attempts=most)
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
        try:
            self.link.send(message)
        except RefusedError as refused:
            # The relay may have had it before this client was stopped, and wait for a confirmation.
            if is_new or refused.is_busy or not found.closes <= time.time() < found.confirm_by:
                raise

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


def keep_participant(
    device: DeviceFolder,
    *,
    on_ready: Callable[[], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Answer announcements until a signal ends this process.

    A refusal or a failure is told and logged at the client only, and the next announcement is
    looked for.

    Args:
        device: The client's folder, which has a site.toml.
        on_ready: Called once, before the first announcement is looked for.
        pause: Sleeps for a number of seconds.

    Raises:
        SottovoceError: The folder is not complete, or another process runs this client.
    """
    site = read_site(device.site_file)
    if site.name != device.name:
        raise DeploymentError(
            f"{device.site_file} is the file of '{site.name}', and this client is '{device.name}'; "
            "correct its name"
        )
    with (
        RelayLink(device) as link,
        hold_supervisor_lock(device.node_folder, what=f"the client '{device.name}'") as announce,
    ):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
        announce({"connected": True})
        on_ready()
        participant, last = Participant(link, site), ""
        while True:
            try:
                told = participant.look()
            except SottovoceError as error:
                told = str(error)
                _LOG.warning("%s", error)
            if told and told != last:
                print(printable_text.printable_lines(told), file=sys.stderr, flush=True)
                last = told
            pause(POLL_SECONDS)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)
