"""A client's folder for two operators, and its way to the relay.

device.toml       the client's name, the digest of the pinned operators, its policy
trust.key         its Ed25519 private key, as hexadecimal digits
admission.toml    its request for admission, with the signatures of both operators
operators.toml    the public keys of both operators; its digest is pinned in device.toml

The client needs no Flower: `Client.send_through` takes a `RelayLink`. The folder relay/ in a site's
folder, for sites of Flower's link, is one, too; policy, ledger and data are then the site's.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sottovoce.core.errors import ConfigError, DeploymentError, WireError
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.federation import check_name, make_folder, read_section
from sottovoce.deployment.machines.site_folder import OPEN_POLICY, SiteFolder
from sottovoce.deployment.operators.admission_file import AdmissionFile
from sottovoce.deployment.operators.application import unpack_announcement
from sottovoce.deployment.operators.calls import RefusedError, RelayCalls
from sottovoce.deployment.operators.cards import PinnedOperators
from sottovoce.deployment.operators.folders import OPERATORS_FILE, read_secret, write_secret
from sottovoce.deployment.operators.routes import Route
from sottovoce.deployment.site import SITE_FILE
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.relayed import Party
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.merkle import leaf_digest
from sottovoce.protocol.secure.operators import Admission
from sottovoce.protocol.secure.roster import TrustKey
from sottovoce.protocol.secure.shuffle_client import ShuffleClient
from sottovoce.protocol.secure.shuffle_messages import ShuffleReport, split_proof
from sottovoce.protocol.secure.two_server_client import TwoServerClient
from sottovoce.runs.sections import Section

FILE_NAME = "device.toml"
_KEY, _ADMISSION = "trust.key", "admission.toml"
_POLL_SECONDS = 1.0


class _Table(Section):
    name: str
    operators_digest: str
    honest_clients: int = 2
    colluders: int = 1
    trusts_relay: bool = False
    site: str = SITE_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFolder:
    """A client's folder.

    Attributes:
        folder: The folder.
        name: The client's name.
        operators: The pinned operators.
        honest_clients: The least number of honest clients, this one included, in a round.
        colluders: How many other clients may collude with an operator.
        trusts_relay: Whether the client also takes part in shuffles without confirmation.
        site_file: The file site.toml with policy and data, for clients that answer whole runs; it
            need not exist.
    """

    folder: Path
    name: str
    operators: PinnedOperators
    honest_clients: int
    colluders: int
    trusts_relay: bool
    site_file: Path

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """Return the client of a folder.

        Args:
            folder: The folder that 'sottovoce deploy enroll' made.

        Returns:
            The client.

        Raises:
            ConfigError: A file is missing or not valid, or operators.toml is not the pinned one.
        """
        folder = Path(folder).absolute()
        path = folder / FILE_NAME
        if not path.is_file():
            raise ConfigError(
                f"{folder} is not a client's folder: it has no {FILE_NAME}; make one with "
                "'sottovoce deploy enroll'"
            )
        table = read_section(path, _Table)
        operators = PinnedOperators.read(folder / OPERATORS_FILE)
        check_digest(operators, table.operators_digest, folder / OPERATORS_FILE)
        return cls(
            folder=folder,
            name=check_name(table.name, what=f"{path}: 'name'"),
            operators=operators,
            honest_clients=table.honest_clients,
            colluders=table.colluders,
            trusts_relay=table.trusts_relay,
            site_file=(folder / table.site).resolve(),
        )

    @property
    def node_folder(self) -> Path:
        """The folder node/ with the lock and the log of the client's program."""
        return self.site_file.parent / "node"

    @property
    def admission_path(self) -> Path:
        """The request for admission, to be signed by both operators."""
        return self.folder / _ADMISSION

    @property
    def key(self) -> TrustKey:
        """The client's signing key."""
        return TrustKey(read_secret(self.folder / _KEY))


@dataclass(slots=True, eq=False)
class AdmittedClient:
    """A client that both operators have admitted, without any way to the relay.

    Args:
        device: The client's folder.

    Raises:
        DeploymentError: An operator has not admitted the client, or not for today.
    """

    device: DeviceFolder
    certificate: Admission = field(init=False, repr=False)
    _party: Party | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        request = AdmissionFile.read(self.device.admission_path)
        self.certificate = request.certificate(self.device.operators.keys)

    @property
    def name(self) -> str:
        """The client's name."""
        return self.device.name

    def party(
        self, protocol: Protocol, ledger: Ledger, *, most_attempts: int | None = None
    ) -> Party:
        """Return the client's side of a sum or a shuffle.

        Args:
            protocol: The announced protocol.
            ledger: The client's ledger, in whose file the journal lies.
            most_attempts: How many attempts of a run the client takes part in; None for any number.

        Returns:
            The party, which answers announcements.

        Raises:
            WireError: It is no protocol with a relay.
        """
        device = self.device
        keys = device.operators.keys
        given = (device.name, device.key, self.certificate, keys, ledger.journal())
        policy = device.honest_clients, device.colluders
        most = most_attempts
        match protocol:
            case Protocol.TWO_SERVER_SUM:
                self._party = TwoServerClient(*given, *policy, most_attempts=most)
            case Protocol.SHUFFLER:
                self._party = ShuffleClient(
                    *given, *policy, most_attempts=most, trusts_relay=device.trusts_relay
                )
            case Protocol.PAIRWISE:
                raise WireError("pairwise masks have no relay; expected a sum or a shuffle")
        return self._party


@dataclass(slots=True, eq=False)
class RelayLink(AdmittedClient):
    """A client's way to its relay: one connection that is kept, over which reports are sent.

    Args:
        device: The client's folder.

    Examples:
        Send an update:

            with RelayLink(DeviceFolder.read("phone-1")) as relay:
                client = Client(relay.name, mechanism, ledger=ledger, budget=budget)
                client.send_through(relay, update)
    """

    _calls: RelayCalls = field(init=False, repr=False)
    _leaf: str = field(init=False, default="", repr=False)

    def __post_init__(self) -> None:
        AdmittedClient.__post_init__(self)
        relay = self.device.operators.relay
        self._calls = RelayCalls(relay.address, relay.certificate)

    def announced(self) -> bytes:
        """Ask for the digest of the current announcement, which is short.

        Returns:
            The digest.

        Raises:
            RefusedError: There is none yet.
            DeploymentError: The relay does not answer.
        """
        return self._calls.ask(Route.ANNOUNCED)

    def announcement(self) -> tuple[bytes, bytes]:
        """Read the current announcement at the relay.

        Returns:
            The announcement and its content, such as a model.

        Raises:
            RefusedError: There is none yet.
            DeploymentError: The relay does not answer.
        """
        return unpack_announcement(self._calls.ask(Route.ANNOUNCEMENT))

    def send(self, report: bytes) -> None:
        """Send a report, and the client's certificate before it if the relay does not know it.

        Args:
            report: What the client's party returned.

        Raises:
            RefusedError: The relay does not take it.
            DeploymentError: The relay does not answer.
        """
        if isinstance(self._party, ShuffleClient):
            self._leaf = leaf_digest(ShuffleReport.read(report).ciphertext).hex()
        try:
            self._calls.ask(Route.REPORT, report)
        except RefusedError as refused:
            if not refused.is_unregistered:
                raise
            self._calls.ask(Route.REGISTER, self.certificate.to_bytes())
            self._calls.ask(Route.REPORT, report)

    def confirm(self, *, timeout_seconds: float = 0.0, ledger: Ledger | None = None) -> None:
        """Send a statement that the client's message is in the list that the collector received.

        Args:
            timeout_seconds: How long to wait for the list.
            ledger: The client's ledger, if the one of the report was closed since.

        Raises:
            RefusedError: There is no list yet, or the client's message is not in it: the relay has
                not forwarded it.
            WireError: The relay's proof is wrong.
            DeploymentError: The relay does not answer, or nothing was reported before.
        """
        party = self._party
        if not isinstance(party, ShuffleClient) or not self._leaf:
            raise DeploymentError("nothing was sent to a shuffle; call send_through before confirm")
        if ledger is not None:
            party.continue_in(ledger.journal())
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                proof = self._calls.ask(Route.ROOT_OF, of=self._leaf)
                break
            except RefusedError as refused:
                if not refused.is_too_early or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)
        root, path = split_proof(proof)
        self._calls.ask(Route.CONFIRM, party.confirm(root, path, int(time.time())))

    def close(self) -> None:
        """Close the connection."""
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create_device(
    folder: Path, *, name: str, operators: Path, digest: str, with_site: bool = False
) -> DeviceFolder:
    """Create a client's folder with a new key and a request for admission.

    Args:
        folder: The folder, which must be empty or not exist.
        name: The client's name.
        operators: The file operators.toml.
        digest: Its digest, as an operator has told it by another way; spaces do not matter.
        with_site: Whether to make a ledger and a site.toml with a policy to fill in, too, by which
            the client answers whole runs.

    Raises:
        ConfigError: The file has another digest, or the name is not valid.
        DeploymentError: The folder has any content.
    """
    pinned = _pinned(name, operators, digest)
    make_folder(folder)
    if with_site:
        seals.create(folder)
        site = f'name = "{name}"\n\n# What this client allows.\n[policy]\n{OPEN_POLICY}'
        certificates.write_secret(folder / SITE_FILE, site.encode())
    return _create(
        folder,
        name,
        pinned,
        "# This client takes part only where so many clients are honest, itself included.\n"
        "honest_clients = 2\n"
        "colluders = 1         # clients that may collude with an operator; counted on top\n",
    )


def enroll_site(site: SiteFolder, *, name: str, operators: Path, digest: str) -> DeviceFolder:
    """Create the folder relay/ in the folder of a site, by which it answers a relay's collector.

    Args:
        site: The site's folder.
        name: The site's name.
        operators: The file operators.toml.
        digest: Its digest, as an operator has told it by another way; spaces do not matter.

    Raises:
        ConfigError: The file has another digest, or the site has another name.
        DeploymentError: The site is enrolled already.
    """
    if name != site.name:
        raise ConfigError(
            f"{site.folder} is the folder of the site '{site.name}', which has the same name for "
            f"the relay; give --as {site.name}, or another folder for a client '{name}'"
        )
    pinned, folder = _pinned(name, operators, digest), enrollment_folder(site.folder)
    if folder.exists() and any(folder.iterdir()):
        raise DeploymentError(
            f"the site '{name}' is enrolled already, in {folder}; to enroll it with other "
            "operators, move that folder away"
        )
    make_folder(folder)
    return _create(folder, name, pinned, f'site = "../{SITE_FILE}"  # policy, ledger and data\n')


def enrollment_folder(site_folder: Path) -> Path:
    """Return the folder in a site's folder by which it answers a relay's collector."""
    return site_folder / "relay"


def _pinned(name: str, operators: Path, digest: str) -> PinnedOperators:
    check_name(name, what="a client's name")
    pinned = PinnedOperators.read(operators)
    check_digest(pinned, digest, operators)
    return pinned


def _create(folder: Path, name: str, pinned: PinnedOperators, counts: str) -> DeviceFolder:
    key = TrustKey.generate()
    write_secret(folder / _KEY, key.secret)
    pinned.write(folder / OPERATORS_FILE)
    AdmissionFile(name=name, key=key.public).write(folder / _ADMISSION)
    text = (
        f'name = "{name}"\noperators_digest = "{pinned.digest}"\n\n{counts}'
        "trusts_relay = false  # true: also take part in shuffles without confirmation\n"
    )
    certificates.write_new(folder / FILE_NAME, text.encode())
    return DeviceFolder.read(folder)


def check_digest(operators: PinnedOperators, digest: str, path: Path) -> None:
    """Raise ConfigError unless operators have the digest that was told by another way."""
    if operators.digest.split() != digest.split() and "".join(operators.digest.split()) != digest:
        raise ConfigError(
            f"{path} has the digest {operators.digest}, not the expected one; ask both operators "
            "by telephone, and use no file whose digest they do not confirm"
        )
