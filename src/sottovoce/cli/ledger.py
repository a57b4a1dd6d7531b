"""The commands `sottovoce ledger`, which read, verify, copy and move privacy ledgers."""

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
    """Create the ledger of a site whose site.toml was written by hand.

    'deploy join' and 'deploy init' create it with the folder. For a site that has answered before,
    restore its ledger or move it: a new one would forget what was spent.
    """
    from sottovoce.core.errors import ConfigError
    from sottovoce.deployment.site import SITE_FILE
    from sottovoce.ledger import seal
    from sottovoce.ledger.ledger import LEDGER_NAME

    if not (site / SITE_FILE).is_file():
        raise ConfigError(
            f"{site} is not a site's folder: it has no {SITE_FILE}; create one with 'sottovoce "
            "deploy join'"
        )
    seal.create(site)
    if as_json:
        print_json({"ledger": str(site / LEDGER_NAME)})
    else:
        say(f"{site / LEDGER_NAME} was created, without charges; keep it with {seal.SEAL_NAME}")


def backup(
    path: Annotated[
        Path, typer.Argument(help="A run's folder, a site's folder, or a ledger file.")
    ],
    out: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    as_json: Json = False,
) -> None:
    """Verify a ledger and copy it into one file; it may be in use.

    Going back to a copy forgets what was charged after it; a site refuses an older ledger.
    """
    from sottovoce.ledger.copies import back_up

    with open_verified(path) as ledger:
        standing = back_up(ledger, out)
    if as_json:
        print_json({"backup": str(out), **asdict(standing)})
    else:
        say(
            f"{out} has all {standing.charges} charges up to now; going back to it would forget "
            "later charges"
        )


def move(
    old: Annotated[Path, typer.Argument(metavar="OLD_DIR", help="The folder with the ledger.")],
    new: Annotated[Path, typer.Argument(metavar="NEW_DIR", help="A folder made by 'deploy join'.")],
    as_json: Json = False,
) -> None:
    """Move a site's ledger to a new folder, such as one with a new key; stop both nodes first.

    The node of the old folder does not answer any more. After an interruption, run it again.
    """
    from sottovoce.deployment.machines.site_folder import move_ledger

    standing = move_ledger(old, new)
    before, after = _name_in(old), _name_in(new)
    if before is not None and after is not None and before != after:
        print_warning(f"the account of '{before}' continues as '{after}'")
    if as_json:
        print_json({"from": str(old), "to": str(new), **asdict(standing)})
    else:
        say(
            f"{new} continues the account of {old} ({standing.charges} charges), whose node does "
            "not answer any more; copy [policy], [data], [columns], factories, app and "
            "longest_seconds from the old site.toml into the new one"
        )


def _name_in(folder: Path) -> str | None:
    """Return the name in a site's file; None if there is none."""
    from sottovoce.core.errors import ConfigError
    from sottovoce.deployment.machines.federation import read_table
    from sottovoce.deployment.site import SITE_FILE

    with contextlib.suppress(ConfigError):
        name = read_table(folder / SITE_FILE).get("name")
        return name if isinstance(name, str) else None
    return None


app = typer.Typer(help="Read, verify, copy and move privacy ledgers.", no_args_is_help=True)
app.command()(create)
app.command()(backup)
app.command()(move)

Where = Annotated[Path, typer.Argument(help="A run's folder, a site's folder, or a ledger file.")]
Client = Annotated[str | None, typer.Option(help="Show only this client.")]


def _open(path: Path) -> "LedgerReader":
    from sottovoce.ledger import seal
    from sottovoce.ledger.ledger import LEDGER_NAME
    from sottovoce.ledger.reader import LedgerReader

    check_one_ledger(path / LEDGER_NAME, path)
    if path.is_dir():
        seal.check_present(path / LEDGER_NAME, seal.read(path / seal.SEAL_NAME))
    return LedgerReader(path / LEDGER_NAME if path.is_dir() else path)


def _check_seal(path: Path, ledger: "LedgerReader") -> None:
    """Raise LedgerError if a site's ledger is not the one that its seal and receipt record."""
    from sottovoce.deployment.site import SITE_FILE
    from sottovoce.deployment.witness import check_receipt
    from sottovoce.ledger import seal
    from sottovoce.ledger.ledger import LEDGER_NAME

    if any((path / name).is_file() for name in (SITE_FILE, seal.SEAL_NAME)):
        seal.check(ledger, seal.read(path / seal.SEAL_NAME), path / LEDGER_NAME)
        check_receipt(ledger, path)


def open_verified(path: Path) -> "LedgerReader":
    """Open a ledger for reading after checking that it was not altered.

    In a site's folder, check also that it is the ledger that the site's seal records.

    Args:
        path: The folder of a run or a site, or a ledger file.

    Returns:
        The open ledger; the caller closes it.

    Raises:
        LedgerError: If there is no ledger, or it was altered or is not the one that the site's
            seal records.
    """
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
    """Return the spec of the run in this folder as plain data; None for other ledgers."""
    from sottovoce.runs.folder import RunFolder

    folder = RunFolder(path)
    return dict(folder.header()["spec"]) if folder.exists else None


def _site_rows(path: Path, delta: float | None) -> list[dict[str, Any]] | None:
    """Return the row of a site's account, which has all of its charges; None for other folders."""
    from sottovoce.deployment.policy import Policy
    from sottovoce.deployment.site import SITE_FILE, read_site, warnings_of
    from sottovoce.ledger.records import FIRST_EVENT_ACCOUNT

    if not (path / SITE_FILE).is_file():
        return None
    site = read_site(path / SITE_FILE)
    policy = site.policy
    assert isinstance(policy, Policy)  # a file holds no other
    with open_verified(path) as ledger:
        history = ledger.history_of_all(policy.level)
        counted = policy.filter(ledger.budget(FIRST_EVENT_ACCOUNT)).spent(history)
    limit = (policy.epsilon_total, policy.delta)
    row = _row(site.name, history, asked=delta, default=policy.delta, limit=limit)
    # The privacy filter may count more than the charges spend, because the server chose them
    # adaptively; so what is left is computed from the filter's count.
    left = None if delta not in (None, policy.delta) else max(0.0, policy.epsilon_total - counted)
    warnings = warnings_of(path / SITE_FILE)
    return [{**row, "left": left, "counted": counted, "warnings": warnings}]


app.command("log")(ledger_log.log)


@app.command("show")
def show_(
    path: Where,
    client: Client = None,
    delta: Annotated[
        float | None, typer.Option(help="Compute epsilon at this delta instead of the budget's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what every client has spent and what is left; an altered ledger is refused.

    An account with only pure charges is shown at delta 0, as the sum of their epsilons.
    """
    from sottovoce.analytics.charging import is_pure_account
    from sottovoce.core import parameter_rules
    from sottovoce.core.display import show_remaining
    from sottovoce.runs.site_counts import BY_SERVER, has_sites

    asked = None if delta is None else parameter_rules.delta(delta)
    rows, is_servers = None if client else _site_rows(path, asked), False
    if rows is None:
        rows, spec = [], _run_spec(path)
        is_servers = spec is not None and has_sites(spec)
        # The delta for clients that have no budget.
        run_delta = None if spec is None else float(spec["privacy"]["delta"])
        with open_verified(path) as ledger:
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
        row["left"] = None if row["left"] is None else show_remaining(row["left"])
        row["delta"] = row["delta"] or "0"
    print_table(columns, [[show(row[column], column) for column in columns] for row in rows])
    for assumption in sorted({row["assumes"] for row in rows if row["assumes"]}):
        say(f"assuming that {assumption}")
    if is_servers:
        say(f"all figures are {BY_SERVER}; what a site has spent is in its own ledger")
    if any("counted" in row for row in rows):
        say(
            "epsilon assumes that all requests were fixed in advance; 'left' is computed by the "
            "site's privacy filter, which does not assume that and may count more, and which "
            "counts everything again at the first event of another kind"
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
    """Return one client's account at the delta that was asked for, or else at `default`.

    For an account that `is_pure`, epsilon is the sum of its epsilons at delta 0, unless a delta
    was asked for.
    """
    from sottovoce.analytics.charging import pure_spent, remaining_pure_epsilon
    from sottovoce.core.errors import ParameterError
    from sottovoce.planning.spending import spending_of_charges

    at = asked or default
    pure = pure_spent(history) if asked is None else math.inf
    # Without any delta, the sum of pure charges is the only epsilon.
    is_pure = (is_pure or at is None) and math.isfinite(pure)
    if at is None and not is_pure:
        raise ParameterError(
            f"client '{client}' has no budget whose delta could be used; give --delta"
        )
    spent = spending_of_charges(history, None if is_pure else at, pure) if history else None
    epsilon = spent.epsilon if spent else 0.0
    private = math.isfinite(epsilon)
    left = None
    if limit is not None and at == limit[1]:
        left = remaining_pure_epsilon(limit[0], epsilon) if is_pure else _left(limit[0], epsilon)
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
    """Return what is left of a budget, rounded down.

    The next charge may fit even if its own epsilon is larger, because composition is sublinear.
    """
    return max(0.0, math.nextafter(budget - epsilon, -math.inf)) if epsilon else budget


@app.command()
def export(
    path: Where,
    client: Client = None,
    out: Annotated[Path | None, typer.Option(help="The file to write instead of stdout.")] = None,
    as_json: Json = False,
) -> None:
    """Print every charge with its event as JSON lines (with --json, as one array).

    An altered ledger is refused.
    """
    from sottovoce.core.files import PRIVATE, write_atomic

    with open_verified(path) as ledger:
        _clients(ledger, client)
        rows = list(ledger.rows(client))
    text = json.dumps(rows, indent=2) if as_json else "\n".join(json.dumps(row) for row in rows)
    if out is None:
        say(text)
    else:
        write_atomic(out, f"{text}\n".encode(), mode=PRIVATE)


@app.command()
def verify(path: Where, client: Client = None, as_json: Json = False) -> None:
    """Check a ledger's integrity, its chain of rows and all budgets; exit with 1 if it fails.

    For a site's folder, also check that it is the ledger that the site's seal records.
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
        except LedgerError as error:  # names and charges cannot be read either
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
    """Compare two copies of a ledger; exit with 1 unless both have the same rows.

    A ledger only grows. So an older copy has the first rows of a newer one, and lacks the others.
    If each copy has rows that the other lacks, the copies were changed separately.
    """
    from sottovoce.ledger.copies import compare

    with open_verified(first) as one, open_verified(second) as other:
        found = compare(one, other)
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
