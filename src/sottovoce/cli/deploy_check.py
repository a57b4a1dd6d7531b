"""`sottovoce deploy check`: is a site's folder, or an operator's, ready?"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.output import Json, print_json, print_table, say

_FAILS = 1


def check(
    folder: Annotated[
        Path, typer.Argument(metavar="SITE_DIR", help="A site's folder, or a federation's.")
    ],
    as_json: Json = False,
) -> None:
    """Look at clock, disk, ledger, policy, key, certificates, data and the way to the link.

    Changes nothing. Exits with 1 if anything fails; each line that does comes with a remedy.
    """
    from sottovoce.deployment.machines.federation import FILE_NAME as FEDERATION_FILE
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.deployment.machines.site_folder import SiteFolder
    from sottovoce.flower.checks import check_federation, check_site

    if (folder / FEDERATION_FILE).is_file():
        checks = check_federation(Federation.read(folder))
    else:
        checks = check_site(SiteFolder.read(folder))
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
