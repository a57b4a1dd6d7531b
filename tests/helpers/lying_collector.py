"""A collector that signs whatever a test wants, and what an honest relay and clients do of it."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from party_process import Party, answered_rounds, party, sent_by
from relayed_mechanisms import CONTENT, PAYLOAD_BYTES, SHUFFLER, SUM, attempt_of
from two_operators import Operators, create_operators, running_relay

from sottovoce.core.errors import SottovoceError
from sottovoce.deployment.operators.application import pack_request
from sottovoce.deployment.operators.calls import RelayCalls
from sottovoce.deployment.operators.device import DeviceFolder
from sottovoce.deployment.operators.routes import Route, sign_request
from sottovoce.protocol.secure import two_server_messages
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.hpke import HpkeKey
from sottovoce.protocol.secure.merkle import Tree
from sottovoce.protocol.secure.roster import SIGNATURE_BYTES, TrustKey
from sottovoce.protocol.secure.shuffle_messages import Root
from sottovoce.protocol.secure.two_server_messages import Accepted

SECONDS = 3


@dataclasses.dataclass
class LyingCollector:
    """The collector's key and its connection to an honest relay, in the hands of a test."""

    operators: Operators
    calls: RelayCalls
    devices: list[DeviceFolder]
    clients: list[Party]

    def __post_init__(self) -> None:
        self.key = self.operators.collector.signing_key
        self.keys = self.operators.pinned.keys

    def ask(
        self,
        route: Route,
        body: bytes = b"",
        *,
        key: TrustKey | None = None,
        seconds_ago: float = 0.0,
        signed: tuple[Route, bytes] | None = None,
    ) -> str | bytes:
        """Return what the relay answers; a refusal is the text 'refused: ...'."""
        now = time.time() - seconds_ago
        asked, content = signed or (route, body)
        header = sign_request(key or self.key, self.keys.federation, asked, content, now)
        return self._answer(route, body, header)

    def unsigned(self, route: Route, body: bytes = b"") -> str | bytes:
        return self._answer(route, body, "")

    def _answer(self, route: Route, body: bytes, header: str) -> str | bytes:
        try:
            return self.calls.ask(route, body, authorization=header)
        except SottovoceError as error:
            return f"refused: {error}"

    def announcement(
        self, protocol: Protocol, *, attempt: dict[str, Any] | None = None, **changed: Any
    ) -> Announcement:
        """Return an announcement that the collector signs, whatever it says."""
        now = int(time.time())
        asked = attempt_of(self.keys, protocol, **attempt or {})
        closes = now + SECONDS
        is_shuffle = protocol is SHUFFLER
        fields = {
            "opens": now - 60,
            "closes": closes,
            "confirm_by": closes + SECONDS if is_shuffle else 0,
            "slack": 0,
            "payload_bytes": PAYLOAD_BYTES if is_shuffle else 0,
            "hpke_key": HpkeKey.generate().public,
            **changed,
        }
        made = Announcement(attempt=asked, signature=bytes(SIGNATURE_BYTES), **fields)
        return made.signed(self.key)

    def announce(self, made: Announcement | bytes, content: bytes = CONTENT) -> str | bytes:
        message = made if isinstance(made, bytes) else made.to_bytes()
        names = [device.name for device in self.devices]
        return self.ask(Route.ANNOUNCE, pack_request(message, content, names))

    def all_send(self) -> list[str]:
        return self._all("send")

    def all_confirm(self) -> list[str]:
        return self._all("confirm", seconds=2 * SECONDS)

    def _all(self, do: str, **values: Any) -> list[str]:
        for client in self.clients:
            client.tell(do, **values)
        return [client.answer() for client in self.clients]

    def spent(self) -> list[int]:
        """Return each client's number of charges, after a look at its ledger and what it sent."""
        found = []
        for device, client in zip(self.devices, self.clients, strict=True):
            spent, sent = client.ask("spent"), sent_by(device.folder)
            assert spent["problems"] == 0
            assert all(len(digests) == 1 for digests in sent.values())
            assert sum(answered_rounds(device.folder).values()) <= spent["charges"]
            found.append(spent["charges"])
        return found

    def accepted(self, ann: bytes, frozen: bytes, names: tuple[str, ...]) -> Accepted:
        digest = two_server_messages.frozen_digest(ann, frozen)
        message = Accepted(ann=ann, frozen=digest, names=names, signature=b"")
        return self.signed_acceptance(message, self.key)

    def signed_acceptance(self, message: Accepted, key: TrustKey) -> Accepted:
        signature = key.sign(SUM, "accepted", *message.statement)
        return dataclasses.replace(message, signature=signature)

    def root(self, ann: bytes, tree: Tree, *, count: int = 0, key: TrustKey | None = None) -> Root:
        made = Root(ann=ann, count=count or tree.count, top=tree.top, signature=b"")
        signature = (key or self.key).sign(SHUFFLER, "root", *made.statement)
        return dataclasses.replace(made, signature=signature)


@contextlib.contextmanager
def lying_collector(folder: Path, protocol: Protocol, clients: int = 4) -> Iterator[LyingCollector]:
    """Run a relay as its operator does, and clients in processes of their own."""
    operators = create_operators(folder)
    devices = operators.devices(clients)
    card = operators.pinned.relay
    with contextlib.ExitStack() as stack:
        stack.enter_context(running_relay(operators.relay))
        calls = stack.enter_context(RelayCalls(card.address, card.certificate))
        parties = [
            stack.enter_context(party("sending_device", str(each.folder), str(protocol)))
            for each in devices
        ]
        made = LyingCollector(operators, calls, devices, parties)
        made.spent()  # From now on all clients have started.
        yield made


def wait_until(seconds: int) -> None:
    """Sleep until a time of day at which the relay's clock has passed it, too."""
    time.sleep(max(0.0, seconds - time.time()) + 0.05)
