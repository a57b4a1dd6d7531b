"""The commands `sottovoce deploy`, which set up and run a federation on several machines."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import deploy_ask, deploy_relay, deploy_run, deploy_status
from sottovoce.cli.options import FederationFolder
from sottovoce.cli.output import Json, print_fields, print_json, print_table, print_warning, say

if TYPE_CHECKING:
    from sottovoce.deployment.machines.federation import Federation

_FAILS = 1


def check(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of a site, federation, relay, collector or client."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Check clock, disk, ledger, policy, keys, certificates, data and the connection to the server.

    The server is the link, to which sites connect, or the relay. Nothing is changed. Exit with
    1 if a check fails; its remedy is printed.
    """
    from sottovoce.deployment.machines.federation import FILE_NAME as FEDERATION_FILE
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.deployment.machines.site_folder import SiteFolder

    if deploy_relay.is_operator(folder) or deploy_relay.is_device(folder):
        checks = deploy_relay.check_party(folder)
    elif (folder / FEDERATION_FILE).is_file():
        from sottovoce.flower.checks import check_federation

        checks = check_federation(Federation.read(folder))
    else:
        from sottovoce.flower.checks import check_site

        checks = check_site(SiteFolder.read(folder)) + deploy_relay.check_enrollment(folder)
    failed = [one for one in checks if one.state == "FAILS"]
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(one) for one in checks]})
    else:
        print_table(
            ["check", "state", "found"], [[one.name, one.state, one.detail] for one in checks]
        )
        for one in failed:
            say(f"{one.name} fails: {one.detail}\n  remedy: {one.remedy}")
    raise typer.Exit(_FAILS if failed else 0)


app = typer.Typer(
    help="Train on several machines, over Flower or through a relay.", no_args_is_help=True
)

SitePath = Annotated[Path, typer.Argument(metavar="SITE_DIR", help="A site's folder.")]
Background = Annotated[
    bool, typer.Option("--background", help="Return when it is running; 'deploy stop' ends it.")
]
Days = Annotated[int, typer.Option(min=1, max=3650, help="How long the certificate is valid.")]
_LINK_DAYS = 365
_REHEARSAL_ADDRESS = "127.0.0.1:9443"


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")],
    site: Annotated[list[str], typer.Option(help="A site's name; repeatable.")],
    address: Annotated[
        str | None,
        typer.Option(help="HOST:PORT at which sites reach the link, the operator's server."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A further name or IP address for the link's certificate; repeatable."),
    ] = None,
    days: Days = _LINK_DAYS,
    rehearsal: Annotated[
        bool,
        typer.Option(
            "--rehearsal",
            help="Also create the sites, on this machine; --address is then optional "
            f"[{_REHEARSAL_ADDRESS}].",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Create the operator's folder, with certificates and a list of sites."""
    from sottovoce.core.errors import ParameterError
    from sottovoce.deployment.machines.address import Address
    from sottovoce.deployment.machines.federation import create_federation
    from sottovoce.deployment.machines.site_folder import create_rehearsal_sites

    if address is None and not rehearsal:
        raise ParameterError(
            "--address is missing; give the HOST:PORT at which sites reach the link, the "
            "operator's server"
        )
    federation = create_federation(
        folder,
        address=Address.parse(address or _REHEARSAL_ADDRESS),
        sites=site,
        hosts=host or [],
        days=days,
    )
    if rehearsal:
        create_rehearsal_sites(federation)
    _print_certificates(federation, as_json)
    if not as_json:
        say(
            f"next: sottovoce deploy link {folder}"
            if rehearsal
            else f"next: give {federation.authority} to the sites, and add their public keys: "
            f"sottovoce deploy certificates {folder} --add NAME node.pub"
        )


@app.command()
def join(
    folder: Annotated[Path, typer.Argument(metavar="SITE_DIR", help="The folder to create.")],
    link_: Annotated[
        str, typer.Option("--link", help="HOST:PORT of the link, the operator's server.")
    ],
    name: Annotated[str, typer.Option("--as", help="This site's name in the federation.")],
    root_certificate: Annotated[Path, typer.Option(help="The operator's ca.crt.")],
    as_json: Json = False,
) -> None:
    """Create a site's folder, with a key and a policy to fill in."""
    from sottovoce.deployment.machines.address import Address
    from sottovoce.deployment.machines.site_folder import create_site

    site = create_site(
        folder, name=name, address=Address.parse(link_), root_certificate=root_certificate
    )
    public_key = site.folder / "node.pub"
    if as_json:
        print_json({"site": site.name, "folder": str(site.folder), "public_key": str(public_key)})
        return
    say(f"next: fill in [policy] in {site.file}, and give {public_key} to the operator")


@app.command()
def certificates(
    folder: FederationFolder,
    add: Annotated[
        tuple[str, Path] | None,
        typer.Option(metavar="NAME KEY.pub", help="Add a site's public key."),
    ] = None,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew", help="Issue a new certificate for the link; restart the link then."
        ),
    ] = False,
    days: Days = _LINK_DAYS,
    as_json: Json = False,
) -> None:
    """Show certificates and keys; add a site's public key; renew the link's certificate.

    The link is the operator's server process, to which sites connect. Of certificates the names and
    expiry dates are shown, of keys only which sites have one. A running link uses an added key at
    once; a site's existing key is not replaced. --days is for --renew only.
    """
    from sottovoce.core.errors import DeploymentError
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.deployment.machines.processes import state_of

    federation = Federation.read(folder)
    if add is not None:
        federation = federation.add_site(*add)
        told = "the link will use the key when it starts"
        if state_of(federation.link_folder):
            from sottovoce.flower.link import register_sites, running_link

            with running_link(federation) as control:
                refused = register_sites(federation, control)
            if refused:
                raise DeploymentError(refused[0])
            told = "the running link uses the key; it need not be restarted"
        say(told, err=True)
    if renew:
        federation.renew_certificate(days=days)
    _print_certificates(federation, as_json)


@app.command()
def roster(
    folder: FederationFolder,
    add: Annotated[
        list[Path] | None,
        typer.Option("--key", metavar="trust.pub", help="A site's key to add; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the roster of keys for secure sums, and print its digest.

    Give roster.toml to the sites. Their owners compare the digest with each other, by telephone or
    in person, and pin it with 'sottovoce deploy trust'. A changed roster has a new digest.
    """
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.deployment.machines.trust_files import ROSTER_NAME, update_roster

    found = update_roster(Federation.read(folder), add or [])
    shown = {
        "roster": str(folder / ROSTER_NAME),
        "federation": found.federation.hex(),
        "version": found.version,
        "sites": list(found.keys),
        "digest": found.digest.hex(),
    }
    if as_json:
        print_json(shown)
    else:
        print_fields({**shown, "sites": ", ".join(found.keys)})


@app.command()
def trust(
    folder: SitePath,
    roster: Annotated[
        Path | None, typer.Option(help="The operator's roster.toml; it is copied.")
    ] = None,
    digest: Annotated[
        str | None, typer.Option(help="The digest that you have compared with other sites.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set the roster with which a site takes part in secure sums; make its key if there is none.

    Without --roster only the key is made, whose public part is for the operator. Never take the
    digest from the operator alone: the author of the roster can hold the keys of all other sites.
    """
    from sottovoce.core.errors import ParameterError
    from sottovoce.deployment.machines import trust_files
    from sottovoce.deployment.machines.site_folder import SiteFolder

    site = SiteFolder.read(folder)
    if (roster is None) is not (digest is None):
        raise ParameterError(
            "--roster and --digest go together; give the digest that other sites have confirmed"
        )
    if not (site.folder / trust_files.KEY_NAME).exists():
        trust_files.create_trust_key(site.folder, name=site.name)
    public_key = site.folder / trust_files.PUBLIC_NAME
    if roster is None or digest is None:
        if as_json:
            print_json({"public_key": str(public_key), "pinned": None})
        else:
            say(f"next: give {public_key} to the operator, and pin the roster with --roster")
        return
    found = trust_files.pin_roster(site.folder, site.name, roster, digest)
    if as_json:
        print_json({"public_key": str(public_key), "pinned": found.digest.hex()})
    else:
        say(f"pinned version {found.version} of the roster, with {len(found.keys)} sites")


def _print_certificates(federation: "Federation", as_json: bool) -> None:
    from sottovoce.deployment.machines import certificates as files

    keys = federation.public_keys()
    shown: dict[str, Any] = {
        "federation": federation.name,
        "address": str(federation.address),
        "names": files.hosts_in(federation.certificate),
        "expires": f"{files.expires_at(federation.certificate):%Y-%m-%d}",
        "authority_expires": f"{files.expires_at(federation.authority):%Y-%m-%d}",
        "sites": {site: "key" if site in keys else "no key yet" for site in federation.sites},
    }
    if as_json:
        print_json(shown)
    else:
        print_fields({**shown, "names": ", ".join(shown["names"])})


@app.command()
def link(folder: FederationFolder, background: Background = False) -> None:
    """Run the link, the server process to which sites connect."""
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.flower.link import START_SECONDS, keep_link

    federation = Federation.read(folder)

    def tell(warnings: Sequence[str], end: str = "") -> None:
        say(f"the link is running at {federation.address}{end}")
        for text in warnings:
            print_warning(text)

    if background:
        keeper = federation.link_folder
        state = _start_in_background("link", federation.folder, keeper, START_SECONDS)
        tell(state["warnings"])
    else:
        keep_link(federation, on_ready=lambda warnings: tell(warnings, "; Ctrl-C ends it"))


@app.command()
def node(folder: SitePath, background: Background = False) -> None:
    """Run a site's node, which answers requests that the site's policy allows.

    The folder is one of 'deploy join', or of 'deploy enroll --with-site' for a client of a relay.
    """
    if deploy_relay.is_device(folder):
        _run_participant(folder, background)
        return
    from sottovoce.deployment.machines.site_folder import SiteFolder
    from sottovoce.deployment.site import warnings_of
    from sottovoce.flower.node import START_SECONDS, keep_node

    site = SiteFolder.read(folder)

    def tell(connected: bool, end: str = "") -> None:
        state = "connected to" if connected else "running and waits for"
        say(f"the node of '{site.name}' is {state} {site.address}{end}")
        for text in warnings_of(site.file):
            print_warning(text)

    if background:
        state = _start_in_background("node", site.folder, site.node_folder, START_SECONDS)
        tell(state["connected"])
    else:
        keep_node(site, on_ready=lambda connected: tell(connected, "; Ctrl-C ends it"))


def _run_participant(folder: Path, background: bool) -> None:
    """Run a client of a relay."""
    from sottovoce.deployment.operators.device import DeviceFolder
    from sottovoce.deployment.operators.participant import START_SECONDS, keep_participant

    device = DeviceFolder.read(folder)
    running = f"the client '{device.name}' is running, for {device.operators.relay.address}"
    if background:
        _start_in_background("node", device.folder, device.node_folder, START_SECONDS)
        say(running)
    else:
        keep_participant(device, on_ready=lambda: say(f"{running}; Ctrl-C ends it"))


@app.command()
def relay(folder: deploy_relay.RelayPath, background: Background = False) -> None:
    """Run a relay, to which devices send encrypted reports.

    With 'link' in relay.toml the sites of that federation answer, too, over their link.
    """
    from sottovoce.deployment.operators.folders import RelayFolder
    from sottovoce.deployment.operators.relay_program import START_SECONDS, keep_relay

    found = RelayFolder.read(folder)

    def tell(end: str = "") -> None:
        say(f"the relay is running at {found.address}{end}")

    if background:
        _start_in_background("relay", found.folder, found.state_folder, START_SECONDS)
        tell()
    else:
        keep_relay(found, on_ready=lambda: tell("; Ctrl-C ends it"))


@app.command()
def collector(folder: deploy_relay.CollectorPath, background: Background = False) -> None:
    """Run a collector, which trains and asks questions through its relay.

    'deploy run' and 'deploy ask' hand runs and questions to it. One that was interrupted, since the
    program or its machine had ended, continues at the next start; a question fails then.
    """
    from sottovoce.deployment.operators.collector_program import START_SECONDS, keep_collector
    from sottovoce.deployment.operators.folders import CollectorFolder

    found = CollectorFolder.read(folder)
    running = f"the collector is running, for the relay at {found.operators.relay.address}"
    if background:
        _start_in_background("collector", found.folder, found.state_folder, START_SECONDS)
        say(running)
    else:
        keep_collector(found, on_ready=lambda: say(f"{running}; Ctrl-C ends it"))


def _start_in_background(
    what: str, folder: Path, keeper_folder: Path, seconds: float
) -> dict[str, Any]:
    from sottovoce.core.errors import DeploymentError
    from sottovoce.deployment.machines.processes import start_in_background, state_of

    if state_of(keeper_folder):
        raise DeploymentError(
            f"the {what} of {folder} is already running; to end it run: sottovoce deploy stop "
            f"{folder}"
        )
    command = [sys.executable, "-m", "sottovoce", "deploy", what, str(folder)]
    return start_in_background(command, keeper_folder, timeout_seconds=seconds)


app.command()(deploy_run.run)
app.command("init-relay")(deploy_relay.init_relay)
app.command("init-collector")(deploy_relay.init_collector)
app.command()(deploy_relay.pin)
app.command()(deploy_relay.enroll)
app.command()(deploy_relay.admit)
app.command()(deploy_relay.revoke)
app.command()(deploy_ask.ask)
app.command()(check)
app.command()(deploy_status.status)
app.command()(deploy_status.stop)
