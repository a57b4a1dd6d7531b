"""Training rounds whose collector learns only a sum, or messages without senders, by a relay.

Each round is one attempt. The collector charges all clients of the run in its own ledger, attempt
by attempt, since any of them may answer; each client charges its own before it draws codes. An
attempt that brings too few clients, or implausible sums, is over: nothing of it is opened, and the
model stays as it is. While the relay does not answer, no client is charged.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sottovoce.core import printable_text
from sottovoce.core.errors import AbandonedError, DeploymentError, WireError
from sottovoce.deployment.masked_rounds import BEGUN, DONE, attempt_place, charge_attempt
from sottovoce.deployment.operators.calls import RefusedError
from sottovoce.deployment.operators.collecting import CollectorLink, ReportWindow
from sottovoce.deployment.operators.relay_orders import EVERYONE, pack_order
from sottovoce.deployment.orders import Order
from sottovoce.federated.rounds import ChargedRounds, ServedRound
from sottovoce.federated.training import pack_shared
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import SummableCodes
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.broadcast import DownlinkFormat, Start
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.charging import Refused
from sottovoce.protocol.message import seal_packed
from sottovoce.protocol.plan import RoundPlan
from sottovoce.protocol.relayed import canonical_parameters, level_codes
from sottovoce.protocol.secure import energy
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.collector import Check
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.server import AnonymousServer, SummedUplink

_LOG = printable_text.logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRounds(ChargedRounds):
    """Rounds with the clients of a relay.

    Attributes:
        spec: The resolved spec as JSON data.
        classes: Number of classes, if the run predicts classes.
        frozen: Digest of the model's frozen parameters and buffers; empty if it has none.
        downlink: Format of the vectors that are sent to clients.
        link: The collector.
        window: When clients may answer.
        minimum_replies: A round with fewer replies does not change the model.
        idle_rounds: Number of rounds in a row that release nothing after which the run stops.
        threshold: The smallest number of clients in a sum or a shuffle.
    """

    spec: dict[str, Any]
    classes: int | None
    frozen: str = ""
    downlink: DownlinkFormat
    link: CollectorLink
    window: ReportWindow
    minimum_replies: int
    idle_rounds: int
    threshold: int
    _reasons: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _away: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def _reachable(self, cohort: Sequence[int]) -> Sequence[int]:
        try:
            self.link.reach()
        except AbandonedError as error:
            self._away.append(str(error))
            return []
        # Clients may have been removed since; the others would be charged for nothing.
        self.link.check_enough({part.client for part in self.parts}, self.threshold)
        return cohort

    def _charge(self, plan: RoundPlan) -> Sequence[Refused]:
        federation = self.link.keys.federation
        return charge_attempt(plan, self.ledger, federation, self.algorithm.uplinks)

    def _serve(self, plan: RoundPlan, asked: Sequence[int], start: Start) -> ServedRound:
        if not asked:
            if self._away:
                self._count_idle(plan.round, self._away.pop())
            return ServedRound(servers=())
        journal, federation = self.ledger.journal(), self.link.keys.federation
        number = journal.newest_attempt(federation, plan.run, plan.round)
        vectors = pack_shared(self.algorithm, start, self.downlink)
        content = pack_order(self._order(plan, len(asked), number, vectors))
        attempt = self._attempt(plan, number, content)
        found: Sequence[SummedUplink | AnonymousServer] = []
        reason = f"fewer than {self.minimum_replies} clients answered"
        try:
            found = self._collect(plan, attempt, content)
        except (AbandonedError, RefusedError, WireError) as error:
            reason = str(error)
        journal.advance(attempt_place(plan, federation, number), BEGUN, DONE)
        enough = bool(found) and found[0].received >= self.minimum_replies
        self._count_idle(plan.round, None if enough else reason)
        return ServedRound(servers=found, enough=enough, total_bytes_down=len(content) * len(asked))

    def _count_idle(self, number: int, reason: str | None) -> None:
        """Raise DeploymentError after too many rounds in a row that changed nothing.

        `reason` says why this round did not; None if it did.
        """
        if reason is None:
            self._reasons.clear()
            return
        _LOG.warning("round %d is abandoned: %s", number, reason)
        self._reasons.append(reason)
        if len(self._reasons) >= self.idle_rounds:
            raise DeploymentError(
                f"{len(self._reasons)} rounds in a row, up to round {number}, released nothing; "
                f"the last reason: {self._reasons[-1]}; check that the clients run and that their "
                "policies allow the run, then resume it"
            )

    def _collect(
        self, plan: RoundPlan, attempt: Attempt, content: bytes
    ) -> Sequence[SummedUplink | AnonymousServer]:
        if attempt.protocol is Protocol.SHUFFLER:
            return [self._shuffled(plan, attempt, content)]
        self.link.announce(attempt, content, self.window, clients=_names(plan))
        sums, clients = self.link.sums(_plausible(plan))
        payload = clients * (attempt.dimension * attempt.bits + 7) // 8
        return [
            SummedUplink(
                plan=plan,
                sums=_clamped(plan, total, clients),
                received=clients,
                payload_bytes=payload,
                total_bytes=payload,
            )
            for total in sums
        ]

    def _shuffled(self, plan: RoundPlan, attempt: Attempt, content: bytes) -> AnonymousServer:
        envelope = plan.envelope(plan.clients[0], 0)
        size = envelope.payload_bytes
        self.link.announce(attempt, content, self.window, payload_bytes=size, clients=_names(plan))
        server = AnonymousServer(plan, dimension=self.dimension)
        for payload in self.link.payloads():
            server.receive(seal_packed(payload, envelope))
        return server

    def _order(
        self, plan: RoundPlan, cohort: int, number: int, vectors: tuple[bytes, ...]
    ) -> Order:
        mechanism = plan.clients[0].mechanism
        return Order(
            spec=self.spec,
            run=plan.run,
            round=plan.round,
            client=EVERYONE,
            cohort=cohort,
            mechanism={
                "kind": registry.kind_of(mechanism),
                **registry.parameters_of(mechanism),
            },
            keep_from=plan.round,
            classes=self.classes,
            frozen=self.frozen,
            attempt=number,
            vectors=vectors,
        )

    def _attempt(self, plan: RoundPlan, number: int, content: bytes) -> Attempt:
        mechanism, most = plan.clients[0].mechanism, len(plan.clients)
        is_sum = isinstance(self.channel, SecureSum)
        protocol = Protocol.TWO_SERVER_SUM if is_sum else Protocol.SHUFFLER
        return Attempt(
            protocol=protocol,
            parties=self.link.keys.digest,
            federation=self.link.keys.federation,
            run=plan.run,
            round=plan.round,
            attempt=number,
            dimension=mechanism.input_domain.dimension,
            uplinks=self.algorithm.uplinks,
            levels=level_codes(mechanism, protocol).levels,
            bits=_bits(mechanism, most) if is_sum else 1,
            most_clients=most,
            threshold=self.threshold,
            mechanism=canonical_parameters(mechanism),
            rotation_seed=b"" if plan.rotation is None else plan.rotation.seed,
            adjacency=str(plan.adjacency),
            unit=str(plan.unit),
            model_digest=hashlib.sha256(content).digest(),
        )


def _names(plan: RoundPlan) -> set[str]:
    return {part.client for part in plan.clients}


def _bits(mechanism: object, most: int) -> int:
    """Return the bits of a coordinate of a sum over at most so many clients."""
    assert isinstance(mechanism, SummableCodes), "the accounting refuses any other"
    return mechanism.sum_bits(most)


def _plausible(plan: RoundPlan) -> Check | None:
    """Return the energy test of the mechanism's sums; None if it has none."""
    norm = getattr(plan.clients[0].mechanism, "logit_norm", None)
    if norm is None:
        return None

    def check(sums: list[UnsignedCodes], clients: int) -> None:
        for total in sums:
            energy.check_energy(total, clients, norm)

    return check


def _clamped(plan: RoundPlan, total: UnsignedCodes, clients: int) -> Any:
    bound = getattr(plan.clients[0].mechanism, "logit_bound", None)
    return total if bound is None else energy.clamp_sums(total, clients, bound)
