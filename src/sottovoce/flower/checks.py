"""Readiness checks of a site's folder and of an operator's folder, each with a remedy."""

import contextlib
import os
import socket
import ssl
from pathlib import Path

import httpx

from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import LedgerError, SottovoceError
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.certificates import read_node_key
from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.guard import find_recorded
from sottovoce.deployment.machines.processes import describe_process, records_in, state_of
from sottovoce.deployment.machines.readiness import (
    CheckError,
    Look,
    ReadinessCheck,
    demand,
    free_disk,
    look_at,
    look_in_turn,
)
from sottovoce.deployment.machines.site_folder import SiteFolder
from sottovoce.deployment.machines.trust_files import PUBLIC_NAME, load_trust
from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site import OwnRecords, Site, account_problem, read_site
from sottovoce.deployment.witness import check_receipt
from sottovoce.flower import control
from sottovoce.flower.control import LinkVerdict
from sottovoce.learning import datasets
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.ledger.records import FIRST_EVENT_ACCOUNT

_TIMEOUT_SECONDS = 10.0


def check_site(site: SiteFolder) -> list[ReadinessCheck]:
    """Check a site's files and its connection to the link; change nothing.

    Returns:
        One result per check, in the order in which they were made. Checks of the connection that
        follow a failed one are "not checked".
    """
    alone: list[Look] = [
        ("policy", lambda: _policy(site)),
        ("ledger", lambda: _ledger(site)),
        ("secure sums", lambda: _secure_sums(site)),
        ("data", lambda: _data(site)),
        ("free disk", lambda: free_disk(site.folder)),
    ]
    if site.root_certificate is None or site.private_key is None:
        link: list[Look] = [
            ("host name", lambda: _resolve(site.address)),
            ("port", lambda: _dial(site.address)),
        ]
        return [*map(look_at, alone), *look_in_turn(link)]
    authority, key = site.root_certificate, site.private_key
    alone += [
        ("key", lambda: _key(site, key)),
        ("ca.crt", lambda: _dates(authority)),
    ]
    link = [
        ("host name", lambda: _resolve(site.address)),
        ("port", lambda: _dial(site.address)),
        ("link's certificate", lambda: _handshake(site.address, authority)),
        ("gate", lambda: _gate(site.address, authority)),
        ("clock", lambda: _clock(site.address, authority)),
        ("key at the link", lambda: _known(site, authority, key)),
    ]
    return [*map(look_at, alone), *look_in_turn(link)]


def check_federation(federation: Federation) -> list[ReadinessCheck]:
    """Check an operator's folder, and its link if it runs; change nothing.

    Returns:
        One result per check, in the order in which they were made. Checks of a running link that
        follow a failed one are "not checked".
    """
    alone: list[Look] = [
        ("certificates", lambda: _certificates(federation)),
        ("private keys", lambda: _private(federation)),
        ("sites' keys", lambda: _site_keys(federation)),
        ("free disk", lambda: free_disk(federation.folder)),
        ("processes", lambda: _leftovers(federation)),
    ]
    gate = Address(host="localhost", port=federation.address.port)
    if state_of(federation.link_folder) is None:
        return [*map(look_at, alone), look_at(("port", lambda: _free(federation)))]
    link: list[Look] = [
        ("port", lambda: _dial(gate)),
        ("link's certificate", lambda: _handshake(gate, federation.authority)),
        ("gate", lambda: _gate(gate, federation.authority)),
    ]
    return [*map(look_at, alone), *look_in_turn(link)]


# -- the site's folder ----------------------------------------------------------------------------


def _policy(site: SiteFolder) -> str:
    fill = f"fill in [policy] in {site.file}; see docs/how-to/site-policy.md for its keys"
    demand(site.policy_problem(), fill)
    try:
        policy = _limits(read_site(site.file))
    except SottovoceError as error:
        raise CheckError(str(error), f"correct {site.file}") from None
    return f"epsilon {policy.epsilon_total:g} in all at delta {policy.delta:g}"


def _limits(site: Site) -> Policy:
    assert isinstance(site.policy, Policy), "read from a file"
    return site.policy


def _secure_sums(site: SiteFolder) -> str:
    described = read_site(site.file)
    policy = _limits(described)
    if policy.honest is None:
        return "not allowed by [policy], which has no 'honest'"
    try:
        key, roster = load_trust(described.trust)
    except SottovoceError as error:
        raise CheckError(str(error), "pin a roster with 'sottovoce deploy trust'") from None
    demand(
        None if roster.keys.get(site.name) == key.public else "the roster has another key for it",
        f"give {site.folder / PUBLIC_NAME} to the operator and pin the next roster",
    )
    return (
        f"{len(roster.keys)} sites in version {roster.version} of the roster; "
        f"{policy.honest} honest, {policy.colluders} that may collude"
    )


def _ledger(site: SiteFolder) -> str:
    path = site.folder / LEDGER_NAME
    restore = f"restore {path} from the newest backup; a new one would forget what was spent"
    seal = site.folder / seals.SEAL_NAME
    try:
        with seals.open_read_only(path, seal) as ledger:
            check_receipt(ledger, site.folder)
            damages = ledger.verify()
            demand("; ".join(damages[:3]), restore)
            described = read_site(site.file)
            demand(account_problem(described, ledger), "follow the instruction in the text")
            charges, limits = ledger.num_charges, _limits(described)
            # All charges under any name, composed as the site's total budget composes them.
            history = ledger.history_of_all(limits.level)
            spent = limits.filter(ledger.budget(FIRST_EVENT_ACCOUNT)).spent(history)
    except LedgerError as error:
        raise CheckError(str(error), _remedy_if_moved(seal) or restore) from None
    counted = f"epsilon {show_epsilon(spent)} of {limits.epsilon_total:g}"
    new = "" if seal.exists() else "; from an earlier version, sealed at the node's next start"
    return f"{charges} charges, counted as {counted}{new}"


def _remedy_if_moved(path: Path) -> str | None:
    """Return what to do if the ledger's seal names another folder; None if it does not."""
    with contextlib.suppress(LedgerError):
        seal = seals.read(path)
        if seal is not None and seal.moved_to is not None:
            return f"use {seal.moved_to}; sottovoce deploy check {seal.moved_to}"
        if seal is not None and seal.arriving_from is not None:
            return f"finish it: sottovoce ledger move {seal.arriving_from} {path.parent}"
    return None


def _data(site: SiteFolder) -> str:
    described = read_site(site.file)
    found = [] if described.records is None else _record_files(described.records)
    found += [column.csv for column in described.columns.values()]
    for path in found:
        if not path.is_file() or not os.access(path, os.R_OK):
            raise CheckError(
                f"{path} cannot be read",
                f"put the file there, let this user read it, or change {site.file}",
            )
    return f"{len(set(found))} file(s) can be read" if found else "no data of the site's own"


def _record_files(records: OwnRecords) -> list[Path]:
    kind, colon, path = records.dataset.partition(":")
    if colon and kind in ("csv", "npz"):
        return [Path(path)]
    found = datasets.where_found(records.dataset)
    if found is None:
        raise CheckError(
            f"the data set '{records.dataset}' is not on this machine",
            f"run: sottovoce data fetch {records.dataset}",
        )
    return found


def _key(site: SiteFolder, key: Path) -> str:
    again = "make a new folder with 'sottovoce deploy join', and then 'sottovoce ledger move'"
    if not key.is_file():
        raise CheckError(f"{key} does not exist", f"restore it; if it is lost, {again}")
    demand(
        certificates.key_problem(key),
        f"follow the instruction in the text; if the key is damaged, {again}",
    )
    public = site.folder / "node.pub"
    if not public.exists():
        return "private; node.pub is not here"
    if read_node_key(key).public_key() != certificates.read_public_key(public):
        raise CheckError(
            f"{public} is not the public key of {key}",
            f"ssh-keygen -y -f {key} > {public}, and give it to the operator",
        )
    return "private, and node.pub is its public key"


def _dates(path: Path) -> str:
    demand(certificates.date_problem(path), "ask the operator for the federation's ca.crt")
    return f"until {certificates.expires_at(path):%Y-%m-%d}"


# -- the connection to the link -------------------------------------------------------------------


def _resolve(address: Address) -> str:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CheckError(
            f"'{address.host}' has no address: {error}",
            "check the name in [link] address of site.toml, and this machine's DNS",
        ) from None
    return ", ".join(sorted({str(one[4][0]) for one in found}))


def _dial(address: Address) -> str:
    try:
        with socket.create_connection((address.host, address.port), timeout=_TIMEOUT_SECONDS):
            return f"{address} answers"
    except OSError as error:
        raise CheckError(
            f"there is no answer at {address}: {error}",
            "ask the operator whether the link is up; allow this machine to reach that port",
        ) from None


def _handshake(address: Address, authority: Path) -> str:
    demand(
        certificates.handshake_problem(address, authority),
        "ask the operator to renew it with 'sottovoce deploy certificates DIR --renew'; if ca.crt "
        "is of another federation, ask for the right one",
    )
    context = ssl.create_default_context(cafile=str(authority))
    host = (address.host, address.port)
    with (
        socket.create_connection(host, timeout=_TIMEOUT_SECONDS) as connection,
        context.wrap_socket(connection, server_hostname=address.host) as secured,
    ):
        return f"until {(secured.getpeercert() or {}).get('notAfter')}"


def _gate(address: Address, authority: Path) -> str:
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with httpx.Client(verify=context, timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            client.get(f"https://{address}/health").raise_for_status()
    except httpx.HTTPError as error:
        raise CheckError(
            f"the gate at {address} does not answer: {error}",
            "ask the operator to restart the link",
        ) from None
    return "answers"


def _clock(address: Address, authority: Path) -> str:
    ahead = control.clock_offset_seconds(address, authority)
    demand(
        control.clock_problem(ahead, certain=False),
        "correct this machine's clock, for example with NTP (timedatectl set-ntp true)",
    )
    return "the link sends no time" if ahead is None else f"{round(ahead):+d} s from the link's"


def _known(site: SiteFolder, authority: Path, key: Path) -> str:
    found = control.link_verdict(site.address, authority, key)
    if found is not LinkVerdict.KNOWN:
        raise CheckError(
            found.value,
            "ask the operator to add it: sottovoce deploy certificates DIR --add "
            f"{site.name} {site.folder / 'node.pub'}"
            if found is LinkVerdict.UNKNOWN
            else "try again; if that does not help, ask the operator to read the link's logs",
        )
    return str(found.value)


# -- the operator's folder ------------------------------------------------------------------------


def _certificates(federation: Federation) -> str:
    demand(
        federation.certificate_problem(),
        f"sottovoce deploy certificates {federation.folder} --renew, then start the link again",
    )
    return f"until {certificates.expires_at(federation.certificate):%Y-%m-%d}"


def _private(federation: Federation) -> str:
    for path in (federation.authority_key, federation.certificate_key):
        if os.name != "nt" and path.stat().st_mode & 0o077:
            raise CheckError(f"{path} can be read by others", f"chmod 600 {path}")
    return "readable by their owner only"


def _site_keys(federation: Federation) -> str:
    keys = federation.public_keys()
    missing = [site for site in federation.sites if site not in keys]
    if missing:
        raise CheckError(
            f"the keys of {', '.join(missing)} are missing",
            "add the node.pub of each: sottovoce deploy certificates "
            f"{federation.folder} --add {missing[0]} node.pub",
        )
    return f"keys of {len(keys)} site(s)"


def _leftovers(federation: Federation) -> str:
    if state_of(federation.link_folder) is not None:
        return "the link is running"
    left = find_recorded(records_in(federation.link_folder))
    if left:
        raise CheckError(
            "processes of a link that was killed still run: "
            + ", ".join(map(describe_process, left)),
            f"sottovoce deploy stop {federation.folder}",
        )
    return "no process of an earlier link is left"


def _free(federation: Federation) -> str:
    if not federation.address.is_free():
        raise CheckError(
            f"port {federation.address.port} of this machine is in use",
            "stop the program that listens there, or change the address in federation.toml",
        )
    return f"{federation.address.port} is free; the link is not running"
