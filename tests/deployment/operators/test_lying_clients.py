"""Malformed, replayed and reordered messages of clients to a relay's process, at every step.

Each is refused, and the honest clients' sum or list is exact.
"""

import contextlib
import dataclasses
import hashlib
import random
import secrets
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from lying_collector import wait_until
from two_operators import Operators, create_operators, running_relay

from sottovoce.core.errors import AbandonedError
from sottovoce.deployment.operators.admission_file import AdmissionFile
from sottovoce.deployment.operators.calls import RefusedError, RelayCalls, pinned_context
from sottovoce.deployment.operators.collecting import CollectorLink, ReportWindow, open_collector
from sottovoce.deployment.operators.device import DeviceFolder
from sottovoce.deployment.operators.routes import Route
from sottovoce.protocol.secure import hpke, shuffle_messages, two_server_messages
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.merkle import leaf_digest
from sottovoce.protocol.secure.operators import Admission
from sottovoce.protocol.secure.roster import TrustKey
from sottovoce.protocol.secure.shuffle_messages import Confirmation, Root, ShuffleReport
from sottovoce.protocol.secure.two_server_client import mask_key
from sottovoce.protocol.secure.two_server_messages import SumReport

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow
SUM, SHUFFLER = Protocol.TWO_SERVER_SUM, Protocol.SHUFFLER
CONTENT = b"a model"
SECONDS = 6
FOREVER = 2**40
BAD, UNKNOWN, EARLY, LARGE, FORBIDDEN = 400, 401, 425, 413, 403


@dataclasses.dataclass
class Relayed:
    """An honest relay's process, and a test that speaks for clients and collector."""

    operators: Operators
    collector: CollectorLink
    calls: RelayCalls
    devices: list[DeviceFolder]  # three honest ones and a liar
    saboteurs: list[DeviceFolder]  # whose lies only the collector can see

    def refuses(self, status: int, route: Route, body: bytes = b"", of: str = "") -> None:
        with pytest.raises(RefusedError) as refused:
            self.calls.ask(route, body, of=of)
        assert refused.value.status == status, (route, refused.value)

    def takes(self, route: Route, body: bytes = b"") -> None:
        assert self.calls.ask(route, body) == b""

    def admission(self, device: DeviceFolder) -> Admission:
        return AdmissionFile.read(device.admission_path).certificate(device.operators.keys)

    def issue(self, name: str, key: TrustKey, until: int = FOREVER) -> Admission:
        relay, collector = self.operators.relay, self.operators.collector
        keys = relay.admission_key, collector.admission_key
        pinned = self.operators.pinned.keys
        return Admission.issue(pinned, *keys, name=name, key=key.public, valid_until=until)

    def raw(self, request: bytes) -> bytes:
        """Send any bytes over TLS, and return the beginning of the answer."""
        card = self.operators.pinned.relay
        address = card.address.host, card.address.port
        context = pinned_context(card.certificate)
        with (
            socket.create_connection(address, timeout=30.0) as plain,
            context.wrap_socket(plain) as connection,
        ):
            connection.sendall(request)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                return connection.recv(64)
            return b""


@contextlib.contextmanager
def relayed(folder: Path) -> Iterator[Relayed]:
    operators = create_operators(folder)
    devices = operators.devices(7)
    card = operators.pinned.relay
    with (
        running_relay(operators.relay),
        open_collector(operators.collector) as collector,
        RelayCalls(card.address, card.certificate) as calls,
    ):
        yield Relayed(operators, collector, calls, devices[:4], devices[4:])


def sum_report(
    ann: Announcement,
    device: DeviceFolder,
    codes: Sequence[int],
    *,
    seed: bytes | None = None,
    sealed_as: str | None = None,
) -> SumReport:
    """Return what an honest client sends; a lying one may seal another seed, or as another."""
    name, seed = device.name, seed or secrets.token_bytes(32)
    masked = MaskedSum(ann.attempt.dimension, ann.attempt.bits)
    masked.add_codes(np.asarray(codes, dtype=np.uint8))
    masked.add_mask(mask_key(seed, ann.ann, name, 0))
    info = two_server_messages.seed_info(ann.ann, sealed_as or name)
    ciphertext = hpke.seal(ann.hpke_key, seed, info)
    return signed(device.key, ann, name, ciphertext, masked.packed())


def signed(
    key: TrustKey,
    ann: Announcement,
    name: str,
    ciphertext: bytes,
    vectors: bytes,
    protocol: Protocol = SUM,
) -> SumReport:
    for_collector = two_server_messages.collector_statement(ann.ann, name, ciphertext)
    for_relay = two_server_messages.relay_statement(ann.ann, name, vectors, ciphertext)
    return SumReport(
        name=name,
        ciphertext=ciphertext,
        for_collector=key.sign(protocol, "for the collector", *for_collector),
        for_relay=key.sign(protocol, "for the relay", *for_relay),
        vectors=vectors,
    )


def check_registrations(made: Relayed) -> None:
    """Raise unless only certificates that both operators signed are taken."""
    device = made.devices[0]
    true = made.admission(device)
    stranger = TrustKey.generate()
    whole = true.to_bytes()
    for lie in (
        b"",
        whole[:-1],
        whole + b"x",
        b"\x03" + whole[1:],
        whole[:1] + b"\x00" + whole[2:],
        whole[:1] + b"\xff" + whole[2:],
        dataclasses.replace(true, by_collector=bytes(64)).to_bytes(),
        dataclasses.replace(true, by_relay=true.by_collector).to_bytes(),
        dataclasses.replace(true, name="zoe").to_bytes(),
        dataclasses.replace(true, key=stranger.public).to_bytes(),
        dataclasses.replace(true, valid_until=FOREVER).to_bytes(),
        made.issue("zoe", stranger, until=int(time.time()) - 10).to_bytes(),
        made.issue(device.name, device.key, until=int(time.time()) + 10).to_bytes(),
        made.issue("zoe", device.key).to_bytes(),
    ):
        made.refuses(BAD, Route.REGISTER, lie)
    made.refuses(LARGE, Route.REGISTER, bytes(2**13 + 1))


def check_transport(made: Relayed) -> None:
    """Raise unless other versions, methods and lengths than those of the protocol are refused."""
    host = b"Host: relay\r\n"
    for request, status in (
        (b"POST /2/report HTTP/1.1\r\n" + host + b"Content-Length: 0\r\n\r\n", b"404"),
        (b"GET /1/report HTTP/1.1\r\n" + host + b"\r\n", b"404"),
        (b"GET /1/root HTTP/1.1\r\n" + host + b"\r\n", b"404"),
        (b"DELETE /1/announcement HTTP/1.1\r\n" + host + b"\r\n", b"404"),
        (b"POST /1/report HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"POST /1/report HTTP/1.1\r\n" + host + b"Content-Length: 99999999999\r\n\r\n", b"413"),
        (b"POST /1/report HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n", b"400"),
        (b"\x16\x03\x01 nonsense\r\n\r\n", b"400"),
    ):
        assert made.raw(request)[9:12] == status, request
    for route in (Route.FROZEN, Route.LIST, Route.CONFIRMATIONS):
        made.refuses(FORBIDDEN, route)
    for route in (Route.ANNOUNCE, Route.ACCEPTED, Route.ROOT):
        made.refuses(FORBIDDEN, route, b"body")


def test_a_relay_refuses_every_lie_of_a_client_about_a_sum(tmp_path: Path) -> None:
    with relayed(tmp_path) as made:
        *honest, liar = made.devices
        made.refuses(BAD, Route.REPORT, b"before any announcement")
        made.refuses(EARLY, Route.ANNOUNCEMENT)
        earlier: list[SumReport] = []
        for number in (1, 2):
            attempt = made.operators.attempt(CONTENT, round=number)
            ann = made.collector.announce(attempt, CONTENT, ReportWindow(report_seconds=SECONDS))
            codes = [np.arange(16) % 2, np.ones(16), np.zeros(16)]
            reports = [
                sum_report(ann, *pair)  # type: ignore[arg-type]
                for pair in zip(honest, codes, strict=True)
            ]
            if number == 1:
                made.refuses(UNKNOWN, Route.REPORT, reports[0].to_bytes())
            for device in [*made.devices, *made.saboteurs]:
                made.takes(Route.REGISTER, made.admission(device).to_bytes())
            check_registrations(made)
            for report in reports:
                made.takes(Route.REPORT, report.to_bytes())
            check_sum_reports(made, ann, reports, liar, earlier)
            sabotage(made, ann)
            check_transport(made)
            made.refuses(BAD, Route.ROOT_OF, of="00" * 32)
            made.refuses(BAD, Route.CONFIRM)
            wait_until(ann.closes)
            late = sum_report(ann, liar, [0] * 16).to_bytes()
            made.refuses(BAD, Route.REPORT, late)
            (total,), clients = made.collector.sums()
            assert clients == 3
            assert total.tolist() == np.sum(codes, axis=0).tolist()
            made.refuses(BAD, Route.REPORT, reports[0].to_bytes())
            earlier = [*reports, SumReport.read(late)]


def check_sum_reports(
    made: Relayed,
    ann: Announcement,
    reports: Sequence[SumReport],
    liar: DeviceFolder,
    earlier: Sequence[SumReport],
) -> None:
    """Raise unless only a client's own first report of this attempt is taken."""
    own = sum_report(ann, liar, [1] * 16)
    whole, first = own.to_bytes(), reports[0]
    expiring = TrustKey.generate()
    made.takes(Route.REGISTER, made.issue("eve", expiring, until=ann.closes - 1).to_bytes())
    size = len(own.vectors)
    key = liar.key
    for lie in (
        b"",
        whole[:-1],
        whole + b"x",
        b"\x07" + whole[1:],
        bytes([3, 255]) + whole[2:],
        whole[:20],
        secrets.token_bytes(len(whole)),
        dataclasses.replace(own, vectors=first.vectors).to_bytes(),
        dataclasses.replace(own, ciphertext=first.ciphertext).to_bytes(),
        dataclasses.replace(own, for_relay=own.for_collector).to_bytes(),
        dataclasses.replace(own, for_collector=own.for_relay).to_bytes(),
        dataclasses.replace(own, name=honest_name(reports)).to_bytes(),
        dataclasses.replace(first, name=liar.name).to_bytes(),
        signed(key, ann, liar.name, first.ciphertext, own.vectors).to_bytes(),
        signed(key, ann, first.name, own.ciphertext, own.vectors).to_bytes(),
        signed(key, ann, liar.name, own.ciphertext, bytes(size - 1)).to_bytes(),
        signed(key, ann, liar.name, own.ciphertext, bytes(size + 1)).to_bytes(),
        signed(key, ann, liar.name, own.ciphertext, own.vectors, Protocol.PAIRWISE).to_bytes(),
        signed(expiring, ann, "eve", own.ciphertext, own.vectors).to_bytes(),
        sum_report(ann, made.devices[0], [1] * 16).to_bytes(),  # a second one of its client
        *(each.to_bytes() for each in earlier),
    ):
        made.refuses(BAD, Route.REPORT, lie)
    stranger = signed(TrustKey.generate(), ann, "zoe", own.ciphertext, own.vectors)
    made.refuses(UNKNOWN, Route.REPORT, stranger.to_bytes())
    made.refuses(LARGE, Route.REPORT, bytes(2**13 + 1))
    made.takes(Route.REPORT, first.to_bytes())  # the same once more


def sabotage(made: Relayed, ann: Announcement) -> None:
    """Send what the relay cannot tell from honest reports, and the collector must leave out."""
    first, second, third = made.saboteurs
    seed = secrets.token_bytes(32)
    for report in (
        sum_report(ann, first, [1] * 16, seed=seed),
        sum_report(ann, second, [1] * 16, seed=seed),
        sum_report(ann, third, [1] * 16, sealed_as=first.name),
    ):
        made.takes(Route.REPORT, report.to_bytes())


def test_a_client_that_adds_more_than_it_may_spoils_a_sum_and_learns_nothing(
    tmp_path: Path,
) -> None:
    with relayed(tmp_path) as made:
        for device in made.devices:
            made.takes(Route.REGISTER, made.admission(device).to_bytes())
        for number, is_spoiled in ((1, True), (2, False)):
            attempt = made.operators.attempt(CONTENT, round=number)
            ann = made.collector.announce(attempt, CONTENT, ReportWindow(report_seconds=3))
            for device in made.devices[:3]:
                made.takes(Route.REPORT, sum_report(ann, device, [0] * 16).to_bytes())
            own = [90 if is_spoiled else 1] * 16
            made.takes(Route.REPORT, sum_report(ann, made.devices[3], own).to_bytes())
            if is_spoiled:
                with pytest.raises(AbandonedError, match="a sum is above 4"):
                    made.collector.sums()
            else:
                assert made.collector.sums()[0][0].tolist() == own


def honest_name(reports: Sequence[SumReport]) -> str:
    return reports[0].name


def message(ann: Announcement, device: DeviceFolder, payload: bytes) -> ShuffleReport:
    """Return what an honest client of a shuffle sends."""
    ciphertext = hpke.seal(ann.hpke_key, payload, shuffle_messages.payload_info(ann.ann))
    return signed_message(device.key, ann.ann, device.name, ciphertext)


def signed_message(
    key: TrustKey, ann: bytes, name: str, ciphertext: bytes, protocol: Protocol = SHUFFLER
) -> ShuffleReport:
    statement = shuffle_messages.report_statement(ann, ciphertext)
    signature = key.sign(protocol, "for the relay", *statement)
    return ShuffleReport(name=name, signature=signature, ciphertext=ciphertext)


def confirmation(key: TrustKey, root: Root, name: str) -> Confirmation:
    statement = shuffle_messages.confirmation_statement(root, name)
    return Confirmation(name=name, signature=key.sign(SHUFFLER, "confirmation", *statement))


def test_a_relay_refuses_every_lie_of_a_client_about_a_shuffle(tmp_path: Path) -> None:
    with relayed(tmp_path) as made:
        for device in [*made.devices, *made.saboteurs]:
            made.takes(Route.REGISTER, made.admission(device).to_bytes())
        earlier: list[tuple[Route, bytes]] = []
        for number in (1, 2):
            earlier = shuffle_with_lies(made, number, earlier)


def shuffle_with_lies(
    made: Relayed, number: int, earlier: Sequence[tuple[Route, bytes]]
) -> list[tuple[Route, bytes]]:
    """Hold an attempt with lies at each step; return its messages."""
    *honest, liar = made.devices
    attempt = made.operators.attempt(CONTENT, round=number, protocol=SHUFFLER)
    window = ReportWindow(report_seconds=SECONDS, confirm_seconds=SECONDS)
    ann = made.collector.announce(attempt, CONTENT, window, payload_bytes=16)
    payloads = [hashlib.sha256(bytes([each])).digest()[:16] for each in range(3)]
    sent = [message(ann, *pair) for pair in zip(honest, payloads, strict=True)]
    for report in sent:
        made.takes(Route.REPORT, report.to_bytes())
    check_messages(made, ann, sent, liar)
    saboteur = made.saboteurs[0]  # Its message does not open.
    unreadable = signed_message(saboteur.key, ann.ann, saboteur.name, secrets.token_bytes(64))
    made.takes(Route.REPORT, unreadable.to_bytes())
    for route, body in earlier:
        made.refuses(EARLY if route is Route.CONFIRM else BAD, route, body)
    leaf = leaf_digest(sent[0].ciphertext).hex()
    made.refuses(EARLY, Route.ROOT_OF, of=leaf)
    anything = Root(ann=ann.ann, count=3, top=bytes(32), signature=bytes(64))
    made.refuses(EARLY, Route.CONFIRM, confirmation(liar.key, anything, liar.name).to_bytes())
    check_transport(made)
    wait_until(ann.closes)
    made.refuses(BAD, Route.REPORT, message(ann, liar, bytes(16)).to_bytes())
    confirmations = confirm_with_lies(made, ann, sent, earlier)
    batch = made.collector._ask_later(Route.CONFIRMATIONS, ann.confirm_by)
    assert made.collector._collector.open(batch) == sorted(payloads)
    return [
        *((Route.REPORT, each.to_bytes()) for each in sent),
        *((Route.CONFIRM, each.to_bytes()) for each in confirmations),
    ]


def check_messages(
    made: Relayed, ann: Announcement, sent: Sequence[ShuffleReport], liar: DeviceFolder
) -> None:
    """Raise unless only a client's own first message of this attempt is taken."""
    own = message(ann, liar, bytes(16))
    whole, key, name = own.to_bytes(), liar.key, liar.name
    for lie in (
        b"",
        whole[:-1],
        whole + b"x",
        b"\x03" + whole[1:],
        whole[:40],
        secrets.token_bytes(len(whole)),
        dataclasses.replace(own, ciphertext=sent[0].ciphertext).to_bytes(),
        dataclasses.replace(own, name=sent[0].name).to_bytes(),
        dataclasses.replace(sent[0], name=name).to_bytes(),
        signed_message(key, ann.ann, name, sent[0].ciphertext).to_bytes(),
        signed_message(key, bytes(32), name, own.ciphertext).to_bytes(),
        signed_message(key, ann.ann, name, own.ciphertext, SUM).to_bytes(),
        signed_message(key, ann.ann, name, own.ciphertext + b"x").to_bytes(),
        signed_message(key, ann.ann, name, own.ciphertext[:-1]).to_bytes(),
        message(ann, made.devices[0], bytes(16)).to_bytes(),  # a second one of its client
    ):
        made.refuses(BAD, Route.REPORT, lie)
    stranger = signed_message(TrustKey.generate(), ann.ann, "zoe", own.ciphertext)
    made.refuses(UNKNOWN, Route.REPORT, stranger.to_bytes())
    made.refuses(LARGE, Route.REPORT, bytes(2**13 + 1))
    made.takes(Route.REPORT, sent[0].to_bytes())


def confirm_with_lies(
    made: Relayed,
    ann: Announcement,
    sent: Sequence[ShuffleReport],
    earlier: Sequence[tuple[Route, bytes]],
) -> list[Confirmation]:
    """Confirm the list, between lies about confirmations; return the honest ones."""
    collector = made.collector
    root = collector._collector.root(collector._ask_later(Route.LIST, ann.closes))
    collector._ask(Route.ROOT, root)
    found = Root.read(root)
    *honest, liar = made.devices
    for of in ("", "zz", "00" * 31, "00" * 32, "00" * 4000, "../report"):
        with pytest.raises(RefusedError):
            made.calls.ask(Route.ROOT_OF, of=of)
    other = dataclasses.replace(found, count=found.count + 1)
    true = confirmation(honest[0].key, found, honest[0].name)
    whole = true.to_bytes()
    for lie in (
        b"",
        whole[:-1],
        whole + b"x",
        b"\x0a" + whole[1:],
        confirmation(TrustKey.generate(), found, "zoe").to_bytes(),
        *(each.to_bytes() for each in sent),
    ):
        with pytest.raises(RefusedError):
            made.calls.ask(Route.CONFIRM, lie)
    # These may be kept, but an honest client's own takes their place, and the collector, which
    # checks signatures, counts none of them.
    for lie in (
        confirmation(liar.key, other, liar.name).to_bytes(),
        confirmation(liar.key, found, honest[0].name).to_bytes(),
        dataclasses.replace(true, name=liar.name).to_bytes(),
        *(body for route, body in earlier if route is Route.CONFIRM),
    ):
        with contextlib.suppress(RefusedError):
            made.calls.ask(Route.CONFIRM, lie)
    confirming = [*honest, made.saboteurs[0]]
    confirmations = [confirmation(each.key, found, each.name) for each in confirming]
    for each in [*confirmations, confirmations[0]]:
        made.takes(Route.CONFIRM, each.to_bytes())
    return confirmations


def test_no_bytes_of_a_client_make_a_relay_fail(tmp_path: Path) -> None:
    luck = random.Random(1)
    with relayed(tmp_path) as made:
        device = made.devices[0]
        for protocol in (SUM, SHUFFLER):
            attempt = made.operators.attempt(CONTENT, round=1, run=protocol.name, protocol=protocol)
            size = 16 if protocol is SHUFFLER else 0
            ann = made.collector.announce(
                attempt, CONTENT, ReportWindow(report_seconds=600), payload_bytes=size
            )
            report = message(ann, device, bytes(16)) if size else sum_report(ann, device, [1] * 16)
            root = Root(ann=ann.ann, count=3, top=bytes(32), signature=bytes(64))
            whole = {
                Route.REGISTER: made.admission(device).to_bytes(),
                Route.REPORT: report.to_bytes(),
                Route.CONFIRM: confirmation(device.key, root, device.name).to_bytes(),
            }
            for _ in range(400):
                route, body = luck.choice(list(whole.items()))
                answered(made.calls, route, garbled(luck, body))
            for _ in range(100):
                of = luck.randbytes(luck.randrange(40)).decode("latin-1")
                answered(made.calls, Route.ROOT_OF, b"", of=luck.choice([of, of.encode().hex()]))
            made.takes(Route.REGISTER, whole[Route.REGISTER])
            made.takes(Route.REPORT, whole[Route.REPORT])
    log = (made.operators.relay.state_folder / "relay.log").read_text()
    assert "Error" not in log


def answered(calls: RelayCalls, route: Route, body: bytes, of: str = "") -> None:
    """Send a request; raise if the relay fails instead of taking or refusing it."""
    is_broken = False
    try:
        calls.ask(route, body, of=of)
    except RefusedError as refused:
        is_broken = refused.is_busy
    assert not is_broken, (route, body, of)


def garbled(luck: random.Random, body: bytes) -> bytes:
    """Return bytes with changes, cuts and repetitions."""
    found = bytearray(body)
    for _ in range(luck.randrange(1, 4)):
        at = luck.randrange(len(found) + 1)
        match luck.randrange(4):
            case 0:
                found[at : at + 1] = luck.randbytes(1)
            case 1:
                del found[at : at + luck.randrange(80)]
            case 2:
                found[at:at] = luck.randbytes(luck.randrange(80))
            case _:
                found[at:at] = found[:at]
    return bytes(found[:4000])
