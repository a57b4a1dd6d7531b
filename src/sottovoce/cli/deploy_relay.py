"""The commands of `sottovoce deploy` for relay, collector and their clients."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.output import Json, print_json, say

if TYPE_CHECKING:
    from sottovoce.deployment.machines.readiness import ReadinessCheck
    from sottovoce.deployment.operators.cards import PinnedOperators
    from sottovoce.deployment.operators.folders import CollectorFolder, RelayFolder

_CERTIFICATE_DAYS = 3650
_ADMISSION_DAYS = 365
RelayPath = Annotated[Path, typer.Argument(metavar="RELAY_DIR", help="The relay's folder.")]
CollectorPath = Annotated[
    Path, typer.Argument(metavar="COLLECTOR_DIR", help="The collector's folder.")
]
NewFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")]


def init_relay(
    folder: NewFolder,
    address: Annotated[
        str, typer.Option(help="HOST:PORT at which devices and the collector reach the relay.")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A further name or IP address for the certificate; repeatable."),
    ] = None,
    days: Annotated[
        int,
        typer.Option(min=1, max=36500, help="How long the certificate is valid; clients pin it."),
    ] = _CERTIFICATE_DAYS,
    as_json: Json = False,
) -> None:
    """Create a relay's folder, with keys and a certificate.

    The relay receives encrypted reports. The collector, an operator who does not collude with it,
    decrypts what belongs to all of them together.
    """
    from sottovoce.deployment.machines.address import Address
    from sottovoce.deployment.operators.folders import RELAY_CARD, create_relay

    relay = create_relay(folder, address=Address.parse(address), hosts=host or [], days=days)
    card = relay.folder / RELAY_CARD
    if as_json:
        print_json({"folder": str(relay.folder), "card": str(card)})
        return
    say(f"next: give {card} to the collector's operator, and ask for collector.pub")


def init_collector(
    folder: NewFolder,
    relay: Annotated[Path, typer.Option(help="The relay's card, the file relay.pub.")],
    as_json: Json = False,
) -> None:
    """Create a collector's folder, with keys of its own, for a relay."""
    from sottovoce.deployment.operators.folders import COLLECTOR_CARD, create_collector

    collector = create_collector(folder, relay=relay)
    card, digest = collector.folder / COLLECTOR_CARD, collector.operators.digest
    if as_json:
        print_json({"folder": str(collector.folder), "card": str(card), "digest": digest})
        return
    _say_digest(collector.operators)
    say(f"next: give {card} to the relay's operator, for 'sottovoce deploy pin'")


def pin(
    folder: RelayPath,
    collector: Annotated[
        Path, typer.Argument(metavar="CARD", help="The collector's card, the file collector.pub.")
    ],
    as_json: Json = False,
) -> None:
    """Add the collector's public keys to the relay's folder, and write operators.toml."""
    from sottovoce.deployment.operators.folders import OPERATORS_FILE, RelayFolder

    pinned = RelayFolder.read(folder).pin(collector)
    path = folder / OPERATORS_FILE
    if as_json:
        print_json({"operators": str(path), "digest": pinned.digest})
        return
    _say_digest(pinned)
    say(f"next: sottovoce deploy relay {folder}; give {path} and the digest to the clients")


def enroll(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to create, or that of a site.")
    ],
    name: Annotated[str, typer.Option("--as", help="This client's name.")],
    operators: Annotated[Path, typer.Option(help="The file operators.toml.")],
    digest: Annotated[
        str, typer.Option(help="Its digest, as an operator has told it by another way.")
    ],
    site: Annotated[
        bool,
        typer.Option(
            "--with-site",
            help="Also make a ledger and site.toml, a policy to fill in, for 'deploy node'.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a client's folder, with a key and a request for admission.

    In the folder of a site ('deploy join') this is the folder relay/. The site then answers the
    collector over its link, if the relay's operator runs that link.
    """
    from sottovoce.core.errors import ParameterError
    from sottovoce.deployment.machines.site_folder import FILE_NAME as SITE_FILE
    from sottovoce.deployment.machines.site_folder import SiteFolder
    from sottovoce.deployment.operators.device import create_device, enroll_site

    if (folder / SITE_FILE).is_file() and not is_device(folder):
        if site:
            raise ParameterError(f"{folder} has a {SITE_FILE} already; leave out --with-site")
        device = enroll_site(SiteFolder.read(folder), name=name, operators=operators, digest=digest)
    else:
        device = create_device(
            folder, name=name, operators=operators, digest=digest, with_site=site
        )
    if as_json:
        print_json({"client": device.name, "request": str(device.admission_path)})
        return
    say(
        f"next: both operators sign {device.admission_path} with 'sottovoce deploy admit'; put the "
        "file with both signatures back in its place"
    )


def admit(
    folder: Annotated[
        Path, typer.Argument(metavar="OPERATOR_DIR", help="The folder of relay or collector.")
    ],
    requests: Annotated[
        list[Path], typer.Argument(metavar="REQUEST...", help="Files that 'deploy enroll' made.")
    ],
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="How long the admission holds.")
    ] = _ADMISSION_DAYS,
    as_json: Json = False,
) -> None:
    """Sign clients' requests for admission; a client needs the signatures of both operators."""
    from sottovoce.deployment.operators.admission_file import admit as sign

    signed = sign(operator_of(folder), requests, days=days)
    if as_json:
        print_json({one.name: {"missing": one.missing} for one in signed})
        return
    for one, path in zip(signed, requests, strict=True):
        rest = f"not yet by the {one.missing[0]}" if one.missing else "by both operators"
        say(f"'{one.name}' is signed, {rest}: {path}")


def revoke(
    folder: Annotated[
        Path, typer.Argument(metavar="OPERATOR_DIR", help="The folder of relay or collector.")
    ],
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of clients.")],
    as_json: Json = False,
) -> None:
    """Take back the admission of clients, such as lost phones; one operator is enough.

    They no longer count from the next announcement on. Their names can be admitted again.
    """
    operator_of(folder).remove_clients(names)
    if as_json:
        print_json({"revoked": names})
    else:
        say("removed, from the next announcement on: " + ", ".join(names))


def operator_of(folder: Path) -> "RelayFolder | CollectorFolder":
    """Return the operator whose folder it is."""
    from sottovoce.deployment.operators.folders import COLLECTOR_FILE, CollectorFolder, RelayFolder

    if (folder / COLLECTOR_FILE).is_file():
        return CollectorFolder.read(folder)
    return RelayFolder.read(folder)


def is_operator(folder: Path) -> bool:
    """Return whether a folder is that of a relay or a collector."""
    from sottovoce.deployment.operators.folders import COLLECTOR_FILE, RELAY_FILE

    return any((folder / name).is_file() for name in (RELAY_FILE, COLLECTOR_FILE))


def is_collector(folder: Path) -> bool:
    """Return whether a folder is that of a collector."""
    from sottovoce.deployment.operators.folders import COLLECTOR_FILE

    return (folder / COLLECTOR_FILE).is_file()


def is_device(folder: Path) -> bool:
    """Return whether a folder is that of a client of a relay."""
    from sottovoce.deployment.operators.device import FILE_NAME

    return (folder / FILE_NAME).is_file()


def operator_keeper(folder: Path) -> Path | None:
    """Return the folder in which an operator's supervisor runs; None if it is no operator's."""
    return operator_of(folder).state_folder if is_operator(folder) else None


def check_party(folder: Path) -> "list[ReadinessCheck]":
    """Check the folder of a relay, a collector or one of their clients."""
    from sottovoce.deployment.operators.checks import check_collector, check_device, check_relay
    from sottovoce.deployment.operators.device import DeviceFolder
    from sottovoce.deployment.operators.folders import RelayFolder

    if is_device(folder):
        return check_device(DeviceFolder.read(folder))
    operator = operator_of(folder)
    return check_relay(operator) if isinstance(operator, RelayFolder) else check_collector(operator)


def check_enrollment(folder: Path) -> "list[ReadinessCheck]":
    """Check whether a site may answer a relay's collector; nothing if it is not enrolled."""
    from sottovoce.deployment.operators.checks import check_enrolled
    from sottovoce.deployment.operators.device import DeviceFolder, enrollment_folder

    enrolled = enrollment_folder(folder)
    return check_enrolled(DeviceFolder.read(enrolled)) if is_device(enrolled) else []


def _say_digest(pinned: "PinnedOperators") -> None:
    say(f"compare this digest with the other operator by telephone:\n  {pinned.digest}")
