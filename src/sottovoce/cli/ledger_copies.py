"""`sottovoce ledger create|backup|move`: a site's ledger as files."""

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.output import Json, print_json, print_warning, say


def create(
    site: Annotated[Path, typer.Argument(metavar="SITE_DIR", help="A folder with a site.toml.")],
    as_json: Json = False,
) -> None:
    """Make the ledger of a site whose site.toml was written by hand, once.

    'deploy join' and 'deploy init' make it with the folder. A site that has answered before
    restores its ledger, or moves it: a new one would forget what was spent.
    """
    from sottovoce.core.errors import ConfigError
    from sottovoce.deployment.site_file import SITE_FILE
    from sottovoce.ledger import seal
    from sottovoce.ledger.ledger import LEDGER_NAME

    if not (site / SITE_FILE).is_file():
        raise ConfigError(
            f"{site} is not a site's folder: it has no {SITE_FILE}; make one with 'sottovoce "
            "deploy join'"
        )
    seal.create(site)
    if as_json:
        print_json({"ledger": str(site / LEDGER_NAME)})
    else:
        say(f"{site / LEDGER_NAME} is new, without charges; keep it with {seal.SEAL_NAME}")


def backup(
    path: Annotated[
        Path, typer.Argument(help="A run's folder, a site's folder, or a ledger file.")
    ],
    out: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    as_json: Json = False,
) -> None:
    """Copy a ledger, verified, into one file; also while it is in use.

    Going back to a copy forgets what was charged after it: a site refuses one that is older.
    """
    from sottovoce.cli.ledger import open_whole
    from sottovoce.ledger.copies import back_up

    with open_whole(path) as ledger:
        standing = back_up(ledger, out)
    if as_json:
        print_json({"backup": str(out), **asdict(standing)})
    else:
        say(
            f"{out} holds every charge up to now ({standing.charges}); going back to it forgets "
            "what is charged later"
        )


def move(
    old: Annotated[Path, typer.Argument(metavar="OLD_DIR", help="The folder that has the ledger.")],
    new: Annotated[Path, typer.Argument(metavar="NEW_DIR", help="A folder by 'deploy join'.")],
    as_json: Json = False,
) -> None:
    """Move a site's ledger to a new folder, such as one with a new key; both nodes are stopped.

    The old folder does not answer any more. If it is interrupted, run it again.
    """
    from sottovoce.deployment.machines.ledger_move import move_ledger

    standing = move_ledger(old, new)
    before, after = _name_in(old), _name_in(new)
    if before is not None and after is not None and before != after:
        print_warning(f"the account of '{before}' goes on as '{after}'")
    if as_json:
        print_json({"from": str(old), "to": str(new), **asdict(standing)})
    else:
        say(
            f"{new} goes on with the account of {old} ({standing.charges} charges), which does not "
            "answer any more; copy into the new site.toml what the old one has of [policy], "
            "[data], [columns], factories, app and longest_seconds"
        )


def _name_in(folder: Path) -> str | None:
    """The name of the site whose folder it is, as far as its file says."""
    from sottovoce.core.errors import ConfigError
    from sottovoce.deployment.machines.federation import read_table
    from sottovoce.deployment.site_file import SITE_FILE

    with contextlib.suppress(ConfigError):
        name = read_table(folder / SITE_FILE).get("name")
        return name if isinstance(name, str) else None
    return None
