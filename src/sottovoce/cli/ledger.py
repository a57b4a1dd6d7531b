"""`sottovoce ledger`: who has spent what, and a site's ledger as files (create, backup, move)."""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import ledger_log
from sottovoce.cli.ledger_total import check_one_ledger, total
from sottovoce.cli.output import Json, print_json, print_table, print_warning, say, show

if TYPE_CHECKING:
    from sottovoce.ledger.reader import LedgerReader
    from sottovoce.privacy.events import PrivacyEvent


def create(
    site: Annotated[Path, typer.Argument(metavar="SITE_DIR", help="A folder with a site.toml.")],
    as_json: Json = False,
) -> None:
    """Make the ledger of a site whose site.toml was written by hand, once.

    'deploy join' and 'deploy init' make it with the folder. A site that has answered before
    restores its ledger, or moves it: a new one would forget what was spent.
    """
    from sottovoce.core.errors import ConfigError
    from sottovoce.deployment.site import SITE_FILE
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
    from sottovoce.deployment.machines.site_folder import move_ledger

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
    from sottovoce.deployment.site import SITE_FILE

    with contextlib.suppress(ConfigError):
        name = read_table(folder / SITE_FILE).get("name")
        return name if isinstance(name, str) else None
    return None


app = typer.Typer(help="Read, check and copy a privacy ledger.", no_args_is_help=True)
app.command()(create)
app.command()(backup)
app.command()(move)

Where = Annotated[Path, typer.Argument(help="A run's folder, a site's folder, or a ledger file.")]
Client = Annotated[str | None, typer.Option(help="Only this client.")]


def _open(path: Path) -> "LedgerReader":
    from sottovoce.ledger import seal
    from sottovoce.ledger.ledger import LEDGER_NAME
    from sottovoce.ledger.reader import LedgerReader

    check_one_ledger(path / LEDGER_NAME, path)
    if path.is_dir():
        seal.check_there(path / LEDGER_NAME, seal.read(path / seal.SEAL_NAME))
    return LedgerReader(path / LEDGER_NAME if path.is_dir() else path)


def _check_seal(path: Path, ledger: "LedgerReader") -> None:
    """Refuse a site's ledger that is not the one that was charged, by its seal and its receipt."""
    from sottovoce.deployment.site import SITE_FILE
    from sottovoce.deployment.witness import check_kept
    from sottovoce.ledger import seal
    from sottovoce.ledger.ledger import LEDGER_NAME

    if any((path / name).is_file() for name in (SITE_FILE, seal.SEAL_NAME)):
        seal.check(ledger, seal.read(path / seal.SEAL_NAME), path / LEDGER_NAME)
        check_kept(ledger, path)


def open_whole(path: Path) -> "LedgerReader":
    """Open a ledger whose figures hold: one that was altered, or is not the site's, is refused."""
    ledger = _open(path)
    try:
        ledger.check_unaltered()
        _check_seal(path, ledger)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _clients(ledger: "LedgerReader", client: str | None) -> list[str]:
    from sottovoce.core.errors import UnknownNameError

    known = ledger.clients()
    if client is not None and client not in known:
        raise UnknownNameError.among("client", client, known)
    return known if client is None else [client]


def _run_spec(path: Path) -> dict[str, Any] | None:
    """The spec of the run whose folder this is, as plain data; None for other ledgers."""
    from sottovoce.runs.folder import RunFolder

    folder = RunFolder(path)
    return dict(folder.header()["spec"]) if folder.exists else None


def _site_rows(path: Path, delta: float | None) -> list[dict[str, Any]] | None:
    """A site's one account, which goes on under whatever name it has; None for other folders."""
    from sottovoce.deployment.policy import Policy
    from sottovoce.deployment.site import SITE_FILE, read_site, warnings_of
    from sottovoce.ledger.records import FIRST_EVENT

    if not (path / SITE_FILE).is_file():
        return None
    site = read_site(path / SITE_FILE)
    policy = site.policy
    assert isinstance(policy, Policy)  # a file holds no other
    with open_whole(path) as ledger:
        history = ledger.everything(policy.level)
        counted = policy.filter(ledger.budget(FIRST_EVENT)).spent(history)
    limit = (policy.epsilon_total, policy.delta)
    row = _row(site.name, history, asked=delta, default=policy.delta, limit=limit)
    # What the charges come to may be less than what the total counts, for the server chose them.
    left = None if delta not in (None, policy.delta) else max(0.0, policy.epsilon_total - counted)
    warnings = warnings_of(path / SITE_FILE)
    return [{**row, "left": left, "counted": counted, "warnings": warnings}]


app.command("log")(ledger_log.log)


@app.command("show")
def show_(
    path: Where,
    client: Client = None,
    delta: Annotated[
        float | None, typer.Option(help="Account at this delta, not at the budget's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What every client has spent, and what is left; a ledger that was altered is refused.

    Accounts of pure charges are told at delta 0, as the sum of their epsilons.
    """
    from sottovoce.analytics.charging import is_pure_account
    from sottovoce.core import parameter_rules
    from sottovoce.core.display import show_left
    from sottovoce.runs.site_counts import BY_SERVER, has_sites

    asked = None if delta is None else parameter_rules.delta(delta)
    rows, is_servers = None if client else _site_rows(path, asked), False
    if rows is None:
        rows, spec = [], _run_spec(path)
        is_servers = spec is not None and has_sites(spec)
        # For clients without a budget of their own.
        run_delta = None if spec is None else float(spec["privacy"]["delta"])
        with open_whole(path) as ledger:
            for name in _clients(ledger, client):
                budget = ledger.budget(name)
                rows.append(
                    _row(
                        name,
                        ledger.history(name),
                        asked=asked,
                        default=budget.delta if budget else run_delta,
                        limit=(budget.epsilon, budget.delta) if budget else None,
                        is_pure=run_delta is None and is_pure_account(ledger, name),
                    )
                )
    if as_json:
        print_json(rows)
        return
    columns = ["client", "charges", "epsilon", "budget", "left"]
    columns += ["delta", "adjacency", "accountant"]
    for row in rows:
        row["epsilon"] = row["epsilon"] if row["private"] else float("inf")
        row["left"] = None if row["left"] is None else show_left(row["left"])
        row["delta"] = row["delta"] or "0"
    print_table(columns, [[show(row[column], column) for column in columns] for row in rows])
    for assumption in sorted({row["assumes"] for row in rows if row["assumes"]}):
        say(f"assuming that {assumption}")
    if is_servers:
        say(f"all of it {BY_SERVER}; what a site has spent is in its own ledger")
    if any("counted" in row for row in rows):
        say(
            "epsilon assumes that what was asked was fixed beforehand; left is by the site's "
            "privacy filter, which holds without that and may count more, all of it again with the "
            "first event of another kind"
        )
    for warning in [text for row in rows for text in row.get("warnings", [])]:
        print_warning(warning)


def _row(
    client: str,
    history: Sequence[tuple["PrivacyEvent", int]],
    *,
    asked: float | None,
    default: float | None,
    limit: tuple[float, float] | None,
    is_pure: bool = False,
) -> dict[str, Any]:
    """One client's account, at the delta that is asked for, or else at the `default`.

    Of an account that `is_pure` it is the sum of the epsilons, at delta 0, unless a delta is asked
    for.
    """
    from sottovoce.analytics.charging import pure_left, pure_spent
    from sottovoce.core.errors import ParameterError
    from sottovoce.planning.spending import spent_on

    at = asked or default
    pure = pure_spent(history) if asked is None else math.inf
    # Where nothing names a delta, the sum of pure charges needs none.
    is_pure = (is_pure or at is None) and math.isfinite(pure)
    if at is None and not is_pure:
        raise ParameterError(f"client '{client}' has no budget to take delta from; give --delta")
    spent = spent_on(history, None if is_pure else at, pure) if history else None
    epsilon = spent.epsilon if spent else 0.0
    private = math.isfinite(epsilon)
    left = None
    if limit is not None and at == limit[1]:
        left = pure_left(limit[0], epsilon) if is_pure else _left(limit[0], epsilon)
    return {
        "client": client,
        "charges": sum(count for _, count in history),
        "epsilon": epsilon if private else None,
        "private": private,
        "delta": spent.delta if spent else 0.0 if is_pure else at,
        "adjacency": str(spent.adjacency) if spent else None,
        "accountant": spent.accountant if spent else None,
        "assumes": spent.assumes if spent else None,
        "budget": limit[0] if limit else None,
        "budget_delta": limit[1] if limit else None,
        "left": left,
    }


def _left(budget: float, epsilon: float) -> float:
    """What is left of a budget, rounded down.

    It is no promise about the next charge, which may cost less beside the others than by itself.
    """
    return max(0.0, math.nextafter(budget - epsilon, -math.inf)) if epsilon else budget


@app.command()
def export(
    path: Where,
    client: Client = None,
    out: Annotated[Path | None, typer.Option(help="Write here instead of to stdout.")] = None,
    as_json: Json = False,
) -> None:
    """Every charge with its event, as JSON lines (with --json, as one array).

    A ledger that was altered is refused.
    """
    from sottovoce.core.files import PRIVATE, write_atomic

    with open_whole(path) as ledger:
        _clients(ledger, client)
        rows = list(ledger.rows(client))
    text = json.dumps(rows, indent=2) if as_json else "\n".join(json.dumps(row) for row in rows)
    if out is None:
        say(text)
    else:
        write_atomic(out, f"{text}\n".encode(), mode=PRIVATE)


@app.command()
def verify(path: Where, client: Client = None, as_json: Json = False) -> None:
    """Check the ledger's integrity, its chain of rows and everyone's budget; exit 1 if it fails.

    Of a site's folder also whether it is the ledger that was charged.
    """
    from sottovoce.core.errors import LedgerError

    with _open(path) as ledger:
        problems = ledger.verify()
        try:
            _check_seal(path, ledger)
        except LedgerError as error:
            problems.append(str(error))
        try:
            clients = _clients(ledger, client)
            charges = sum(1 for _ in ledger.rows(client))
        except LedgerError as error:  # damage that keeps even names and charges from being read
            clients, charges = [], 0
            problems = problems or [str(error)]
    if client is not None:
        problems = [
            problem for problem in problems if "client '" not in problem or client in problem
        ]
    if as_json:
        print_json(
            {"ok": not problems, "charges": charges, "clients": len(clients), "problems": problems}
        )
    else:
        say("\n".join(problems) or f"ok: {charges} charges of {len(clients)} clients")
    if problems:
        raise typer.Exit(1)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A folder with a ledger, or a ledger file.")],
    second: Annotated[Path, typer.Argument(help="A copy of it, or what it was copied from.")],
    as_json: Json = False,
) -> None:
    """Whether two copies of a ledger agree, and where they part; exit 1 if they do not agree.

    A ledger only grows, so of two honest copies one is the beginning of the other.
    """
    from sottovoce.ledger.copies import comparison

    with open_whole(first) as one, open_whole(second) as other:
        found = comparison(one, other)
    agree = all(part.agree for part in found)
    if as_json:
        print_json(
            {
                "agree": agree,
                "parts_at": next((part.parts_at for part in found if part.parts_at), None),
                "tables": [part.plain() for part in found],
            }
        )
    else:
        say("\n".join(part.sentence() for part in found))
    if not agree:
        raise typer.Exit(1)


app.command()(total)
