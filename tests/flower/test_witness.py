"""What a site signs of its ledger, what the server makes of it, and which ledgers are refused."""

import asyncio
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import call

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Message, RecordDict
from starlette.applications import Starlette

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import DeploymentError, LedgerError, RolledBackError, WireError
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import Federation, create_federation
from sottovoce.deployment.machines.site_folder import create_rehearsal_sites
from sottovoce.deployment.machines.witness_store import WitnessStore
from sottovoce.deployment.orders import STATEMENT, Order, QuestionRequest, read_refusal
from sottovoce.deployment.post import Reply, WitnessedTransport
from sottovoce.deployment.site import Site, read_site
from sottovoce.deployment.site_witness import check_witnessed, key_name, statement_part
from sottovoce.deployment.witness import WITNESS_NAME, Receipt
from sottovoce.flower.client import make_order_handler, make_question_handler
from sottovoce.flower.records import from_records, to_records
from sottovoce.flower.runs import status_of
from sottovoce.flower.witness_endpoint import witness_route
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.mechanisms.gauss_hermite import GaussHermite

EVENT = GaussHermite(
    input_domain=L2Ball(dimension=8, radius=1.0), levels=2, noise_multiplier=5.0
).privacy(Adjacency.ZERO_OUT)
ORDER = Order(
    spec={},
    run="run",
    round=1,
    client="a",
    cohort=2,
    mechanism={"kind": "gauss_hermite"},
    classes=None,
    keep_from=1,
    vectors=(),
)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return a_federation(tmp_path / "federation")


@pytest.fixture
def site(federation: Federation) -> Site:
    return site_in(federation, "a")


@pytest.fixture
def store(federation: Federation) -> WitnessStore:
    return WitnessStore(federation)


def a_federation(folder: Path) -> Federation:
    address = Address(host="127.0.0.1", port=9443)
    federation = create_federation(folder, address=address, sites=["a", "b"])
    create_rehearsal_sites(federation)
    return federation


def site_in(federation: Federation, name: str) -> Site:
    return read_site(federation.folder / "sites" / name / "site.toml")


def charge(site: Site, *rounds: int, run: str = "run", stored: bool = True) -> None:
    assert site.seal is not None
    with site.open_ledger() as ledger:
        for number in rounds:
            release = Release(unit=Unit.SAMPLE, run=run, client=site.name, round=number, uplink=0)
            made = ledger.charge(release, 0, EVENT)
            if stored:
                ledger.store_message(made, b"bits")
        seals.settle(ledger, site.seal)


def make_new(site: Site, *rounds: int) -> None:
    """Another ledger, with its own seal and charges."""
    assert site.seal is not None
    site.ledger.unlink()
    site.seal.unlink()
    seals.create(site.ledger.parent)
    charge(site, *rounds)


def state(site: Site, store: WitnessStore, answered: Receipt | None = None) -> Receipt:
    """Hand a site's statement to the server; what it keeps then."""
    store.take(site.name, statement_part(site)[STATEMENT], answered=answered)
    receipt = store.receipt(site.name)
    assert receipt is not None
    return receipt


def copy_of(site: Site, folder: Path) -> Path:
    """A backup of what a site's folder says about its account: ledger, seal and receipt."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    for path in _account(site):
        shutil.copy(path, copy)
    return copy


def restore(site: Site, copy: Path) -> None:
    for path in _account(site):
        path.unlink()
    for path in copy.iterdir():
        shutil.copy(path, site.ledger.parent)


def _account(site: Site) -> list[Path]:
    folder = site.ledger.parent
    return [*folder.glob("ledger.*"), *folder.glob(WITNESS_NAME)]


# -- a site and its receipts -------------------------------------------------------------------


def test_a_ledger_that_goes_on_from_a_receipt_is_fine(site: Site, store: WitnessStore) -> None:
    check_witnessed(site, None)
    charge(site, 1, 2)
    receipt = state(site, store)
    assert receipt.statement.state.counts == (2, 2)
    for number in (3, 4):  # at the receipt, and beyond it
        check_witnessed(site, receipt.to_plain())
        charge(site, number)
    newer = state(site, store, receipt)
    check_witnessed(site, newer.to_plain())
    check_witnessed(site, receipt.to_plain())  # an old one proves nothing against it
    kept = json.loads((site.ledger.parent / WITNESS_NAME).read_text())
    assert kept == newer.to_plain()


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        (lambda site: None, "fewer charges than the 3 that were witnessed"),
        (lambda site: charge(site, 3, 4, run="another"), "first 3 charges are not those"),
        # The very charges, made again: a commit has a random number of its own.
        (lambda site: charge(site, 2, 3), "first 3 charges are not those"),
        (lambda site: make_new(site, 1, 2, 3), "it is another ledger"),
    ],
)
def test_a_ledger_that_went_back_is_refused_and_stays_refused(
    then: Callable[[Site], None], reason: str, site: Site, store: WitnessStore, tmp_path: Path
) -> None:
    charge(site, 1)
    older = copy_of(site, tmp_path)
    charge(site, 2, 3)
    receipt = state(site, store)
    newest = copy_of(site, tmp_path)
    restore(site, older)
    then(site)
    check_witnessed(site, None)  # nothing in the folder tells
    with pytest.raises(RolledBackError, match=reason):
        check_witnessed(site, receipt.to_plain())
    with pytest.raises(RolledBackError, match=reason):
        check_witnessed(site, None)  # now the folder knows, whether a link is there or not
    folder = str(site.ledger.parent)
    for command in ("show", "export", "total"):  # nor does any command tell what it says
        assert reason in call("ledger", command, folder).text
    assert call("ledger", "verify", folder).code == 1
    restore(site, newest)
    check_witnessed(site, receipt.to_plain())


def test_a_copy_from_before_a_message_was_stored_is_refused(
    site: Site, store: WitnessStore, tmp_path: Path
) -> None:
    charge(site, 1, stored=False)
    older = copy_of(site, tmp_path)
    with site.open_ledger() as ledger:
        made = ledger.latest(
            Release(unit=Unit.SAMPLE, run="run", client=site.name, round=1, uplink=0)
        )
        assert made is not None
        ledger.store_message(made, b"bits")
        assert site.seal is not None
        seals.settle(ledger, site.seal)
    receipt = state(site, store)
    restore(site, older)
    with pytest.raises(RolledBackError, match="fewer messages than the 1"):
        check_witnessed(site, receipt.to_plain())


def changed(receipt: Receipt, **state: Any) -> Receipt:
    statement = receipt.statement
    return dataclasses.replace(
        receipt,
        statement=dataclasses.replace(
            statement, state=dataclasses.replace(statement.state, **state)
        ),
    )


def _more_charges(receipt: Receipt, _: Federation, __: Path) -> Receipt:
    return changed(receipt, charges=99)


def _of_another_site(_: Receipt, federation: Federation, __: Path) -> Receipt:
    other = site_in(federation, "b")
    charge(other, 1, 2, 3)
    return state(other, WitnessStore(federation))


def _of_another_federation(_: Receipt, __: Federation, folder: Path) -> Receipt:
    elsewhere = a_federation(folder / "elsewhere")
    other = site_in(elsewhere, "a")
    charge(other, 1, 2, 3)
    return state(other, WitnessStore(elsewhere))


def _countersigned_by_nobody(receipt: Receipt, federation: Federation, _: Path) -> Receipt:
    return Receipt.countersigned(
        receipt.statement,
        receipt.signature,
        key=ec.generate_private_key(ec.SECP384R1()),
        certificate=certificates.read_certificate(federation.certificate),
    )


def _by_another_authority(receipt: Receipt, _: Federation, folder: Path) -> Receipt:
    elsewhere = a_federation(folder / "elsewhere")
    return Receipt.countersigned(
        receipt.statement,
        receipt.signature,
        key=certificates.read_private_key(elsewhere.certificate_key),
        certificate=certificates.read_certificate(elsewhere.certificate),
    )


def _signed_by_the_link_alone(receipt: Receipt, federation: Federation, _: Path) -> Receipt:
    """What a server could make up to stop a site, were it not for the site's own signature."""
    statement = changed(receipt, charges=99).statement
    key = certificates.read_private_key(federation.certificate_key)
    certificate = certificates.read_certificate(federation.certificate)
    signature = statement.sign(key)
    return Receipt.countersigned(statement, signature, key=key, certificate=certificate)


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (_more_charges, "does not have this site's signature"),
        (_of_another_site, "it is for 'b'"),
        (_of_another_federation, "of another federation"),
        (_countersigned_by_nobody, "does not have the link's signature"),
        (_by_another_authority, "not issued by this federation's authority"),
        (_signed_by_the_link_alone, "does not have this site's signature"),
    ],
)
def test_no_one_stops_a_site_with_a_receipt_that_is_not_its_own(
    forge: Callable[[Receipt, Federation, Path], Receipt],
    reason: str,
    federation: Federation,
    site: Site,
    store: WitnessStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    charge(site, 1)
    older = copy_of(site, tmp_path)
    charge(site, 2)
    forged = forge(state(site, store), federation, tmp_path)
    restore(site, older)  # against which the true receipt would count
    check_witnessed(site, forged.to_plain())
    assert reason in caplog.text
    assert not (site.ledger.parent / WITNESS_NAME).exists()


def test_what_a_site_said_under_an_earlier_key_does_not_count_against_it(
    federation: Federation, site: Site, store: WitnessStore, tmp_path: Path
) -> None:
    charge(site, 1, 2)
    earlier = state(site, store)
    newcomer = rejoined(federation, tmp_path)
    check_witnessed(newcomer, earlier.to_plain())
    assert WitnessStore(federation).receipt("a") is None
    charge(newcomer, 1)
    assert state(newcomer, WitnessStore(federation)).statement.state.charges == 1
    assert status_of(federation)["ledger_warnings"] == {}  # a new ledger is another account


def rejoined(federation: Federation, folder: Path) -> Site:
    """The site 'a' in a new folder, with a new key."""
    other = a_federation(folder / "made-elsewhere")
    new = folder / "rejoined"
    shutil.copytree(other.folder / "sites" / "a", new)
    shutil.copyfile(federation.authority, new / "ca.crt")
    federation.public_key_path("a").unlink()
    federation.add_site("a", new / "node.pub")
    return read_site(new / "site.toml")


@pytest.mark.parametrize("plain", [{}, {"charges": 1}, {"site": "a"}])
def test_what_is_no_receipt_at_all_is_ignored(plain: dict[str, Any], site: Site) -> None:
    charge(site, 1)
    check_witnessed(site, plain)


def test_receipts_outlive_the_certificate_under_which_they_were_signed(
    federation: Federation, site: Site, store: WitnessStore, tmp_path: Path
) -> None:
    older = copy_of(site, tmp_path)
    charge(site, 1)
    before = state(site, store)
    federation.renew_certificate(days=30)
    charge(site, 2)
    after = state(site, store, before)
    assert after.link_certificate != before.link_certificate
    restore(site, older)
    for receipt in (before, after):
        with pytest.raises(RolledBackError):
            check_witnessed(site, receipt.to_plain())


def test_a_damaged_receipt_in_the_folder_is_said_with_what_to_do(site: Site) -> None:
    (site.ledger.parent / WITNESS_NAME).write_text('{"charges": 1')
    with pytest.raises(LedgerError, match="is damaged; restore it, or remove it and start"):
        check_witnessed(site, None)


def test_a_site_without_keys_states_nothing(site: Site) -> None:
    assert statement_part(site)
    assert statement_part(dataclasses.replace(site, keys=None)) == {}


# -- the server's store ------------------------------------------------------------------------


def test_a_statement_that_goes_back_is_told_and_not_kept_until_the_ledger_is_back(
    federation: Federation, site: Site, store: WitnessStore, tmp_path: Path
) -> None:
    charge(site, 1)
    older = copy_of(site, tmp_path)
    charge(site, 2, 3)
    newest = state(site, store)
    whole = copy_of(site, tmp_path)
    restore(site, older)
    assert state(site, store, newest) == newest
    (warning,) = status_of(federation)["ledger_warnings"].values()
    assert warning.startswith("it states 1 charges and 1 messages, but stated 3 and 3 before")
    charge(site, 2, 3, run="another")
    assert state(site, store, newest) == newest
    assert "as before, but different ones" in status_of(federation)["ledger_warnings"]["a"]
    restore(site, whole)
    assert state(site, store, newest) == newest
    assert status_of(federation)["ledger_warnings"] == {}


def test_replies_of_two_runs_may_come_out_of_order(
    federation: Federation, site: Site, store: WitnessStore
) -> None:
    charge(site, 1)
    sent = state(site, store)
    charge(site, 2)
    late = statement_part(site)[STATEMENT]
    charge(site, 3)
    newest = state(site, store, sent)
    store.take("a", late, answered=sent)
    assert store.receipt("a") == newest
    assert status_of(federation)["ledger_warnings"] == {}


def test_another_ledger_under_the_same_key_is_told(
    federation: Federation, site: Site, store: WitnessStore
) -> None:
    charge(site, 1)
    newest = state(site, store)
    make_new(site, 1, 2, 3)
    assert state(site, store, newest) == newest
    assert "it is another ledger" in status_of(federation)["ledger_warnings"]["a"]


def test_an_older_copy_of_a_ledger_under_a_new_key_is_told_for_good(
    federation: Federation, site: Site, store: WitnessStore, tmp_path: Path
) -> None:
    charge(site, 1)
    older = copy_of(site, tmp_path)
    charge(site, 2, 3)
    state(site, store)
    newcomer = rejoined(federation, tmp_path)
    restore(newcomer, older)
    receipt = state(newcomer, WitnessStore(federation))
    charge(newcomer, 2)
    state(newcomer, WitnessStore(federation), receipt)
    assert "(under another key, as 'a')" in status_of(federation)["ledger_warnings"]["a"]


@pytest.mark.parametrize(
    "changes",
    [
        {"charges": 4},
        {"charges_head": "0" * 32},
        {"messages": 7},
        {"identity": "0" * 32},
        {"signature": ""},
        {"signature": 3},
        {"charges": True},
        {"charges": -1},
        {"charges_head": "x"},
        {"more": 1},
    ],
)
def test_a_statement_that_the_site_did_not_sign_is_not_kept(
    changes: dict[str, Any], site: Site, store: WitnessStore
) -> None:
    charge(site, 1)
    before = state(site, store)
    charge(site, 2)
    plain = json.loads(statement_part(site)[STATEMENT])
    with pytest.raises(WireError):
        store.take("a", json.dumps(plain | changes).encode(), answered=before)
    with pytest.raises(WireError):
        store.take("b", json.dumps(plain).encode(), answered=None)  # nor another site's
    assert store.receipt("a") == before


def test_a_damaged_store_is_told_and_neither_believed_nor_overwritten(
    federation: Federation, site: Site, store: WitnessStore
) -> None:
    charge(site, 1)
    state(site, store)
    (path,) = store.folder.glob("*.json")
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("{")
    with pytest.raises(DeploymentError, match=r"is damaged; restore it from a backup, or remove"):
        state(site, store)
    assert path.read_text() == "{"
    assert "is damaged" in status_of(federation)["ledger_warnings"]["a"]


# -- between them ------------------------------------------------------------------------------


class _Post:
    """Sites in this process, which answer with a statement and one more part."""

    def __init__(self, *sites: Site) -> None:
        self.sites = {site.name: site for site in sites}
        self.orders: dict[str, Order] = {}
        self._replies: list[Reply] = []

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        return frozenset(clients)

    def traffic(self) -> None:
        return None

    def send(self, orders: Mapping[str, Order], *, expires_seconds: float) -> int:
        self.orders = dict(orders)
        for name, order in orders.items():
            charge(self.sites[name], order.round)
            blobs = {"uplink0": b"bits", **statement_part(self.sites[name])}
            self._replies.append(Reply(client=name, blobs=blobs))
        return 0

    def collect(self) -> Iterator[Reply]:
        yield from self._replies
        self._replies = []


def test_each_order_brings_the_receipt_for_the_reply_before_it(
    federation: Federation, store: WitnessStore
) -> None:
    sites = [site_in(federation, name) for name in "ab"]
    inner = _Post(*sites)
    post = WitnessedTransport(inner, store)
    for number in (1, 2):
        post.send(
            {name: dataclasses.replace(ORDER, round=number) for name in "ab"}, expires_seconds=1.0
        )
        assert [reply.blobs for reply in post.collect()] == [{"uplink0": b"bits"}] * 2
        for site in sites:
            receipt = inner.orders[site.name].receipt
            assert (receipt and receipt["charges"]) == (1 if number == 2 else None)
            check_witnessed(site, receipt)
    for path in store.folder.glob("*.json"):
        path.write_text("{")
    post.send({name: dataclasses.replace(ORDER, round=3) for name in "ab"}, expires_seconds=1.0)
    assert [inner.orders[name].receipt for name in "ab"] == [None, None]
    assert len(list(post.collect())) == 2  # no run stops because the witness fails


@pytest.mark.usefixtures("flower_task")
def test_an_order_with_a_newer_receipt_is_refused_before_anything_is_computed(
    federation: Federation, site: Site, store: WitnessStore, tmp_path: Path
) -> None:
    computed: list[int] = []

    def compute(order: Order, site: Site) -> list[bytes]:
        computed.append(order.round)
        charge(site, order.round)
        return [b"bits"]

    def ask(number: int) -> dict[str, bytes]:
        sent = store.receipt("a")
        order = dataclasses.replace(ORDER, round=number)
        order = order.with_receipt(sent.to_plain() if sent else None)
        message = Message(content=to_records(order.blobs()), dst_node_id=1, message_type="train")
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        reply = make_order_handler(compute, lambda _: site)(message, context)
        blobs = from_records(reply.content)
        store.take("a", blobs[STATEMENT], answered=sent)
        return blobs

    older = copy_of(site, tmp_path)
    for number in (1, 2):
        assert read_refusal(ask(number)) is None
    restore(site, older)
    said = read_refusal(ask(3)) or ""
    assert "fewer charges than the 2 that were witnessed" in said
    assert str(tmp_path) not in said
    assert computed == [1, 2]
    with Ledger(site.ledger) as ledger:
        assert ledger.num_charges == 0
    assert "it states 0 charges" in status_of(federation)["ledger_warnings"]["a"]


@pytest.mark.usefixtures("flower_task")
def test_a_question_with_a_newer_receipt_is_refused_before_anything_is_read(
    site: Site, store: WitnessStore, tmp_path: Path
) -> None:
    def columns_of(_: Site) -> Any:
        raise AssertionError("read")

    older = copy_of(site, tmp_path)
    charge(site, 1)
    sent = state(site, store)
    restore(site, older)
    inquiry = QuestionRequest(run="r", client="a", cohort=1, first=0, about="age", question={})
    blobs = inquiry.with_receipt(sent.to_plain()).blobs()
    message = Message(content=to_records(blobs), dst_node_id=1, message_type="query")
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    reply = make_question_handler(columns_of, lambda _: site)(message, context)
    said = from_records(reply.content)
    assert "fewer charges than the 1 that were witnessed" in (read_refusal(said) or "")
    store.take("a", said[STATEMENT], answered=sent)
    assert store.receipt("a") == sent


def test_the_gate_serves_a_receipt_by_the_digest_of_its_key(
    federation: Federation, site: Site, store: WitnessStore
) -> None:
    app = Starlette(routes=[witness_route(federation.authority)])

    def get(key: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gate") as client:
                return await client.get(f"/v1/witness/{key}")

        return asyncio.run(ask())

    assert site.keys is not None
    key = key_name(site.keys)
    assert get(key).status_code == 404
    charge(site, 1)
    receipt = state(site, store)
    assert Receipt.from_plain(get(key).json()) == receipt
    for other in ("a", "..%2fnodes", f"{key}.json", "0" * 64):
        assert get(other).status_code == 404
    (kept,) = store.folder.glob("*.json")
    kept.write_text("{")
    assert get(key).status_code == 500
