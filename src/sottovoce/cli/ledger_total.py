"""The command `sottovoce ledger total`, which adds up one client over several ledgers.

The account of a client in a ledger is the set of its charges there. A site's folder is one account.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.output import Json, print_json, print_table, say, show

if TYPE_CHECKING:
    from sottovoce.deployment.totals import LedgerTotal


def check_one_ledger(expected: Path, path: Path) -> None:
    """Raise LedgerError for a folder that has no ledger while folders in it have.

    Nothing is raised for other paths, even if there is no ledger.

    Args:
        expected: Where the ledger would be.
        path: The path that was named.

    Raises:
        LedgerError: The message names the folders that have a ledger.
    """
    from sottovoce.core.errors import LedgerError

    if not path.is_dir() or expected.exists():
        return
    inside = sorted(str(one.parent) for one in path.glob(f"*/*/{expected.name}"))
    inside += sorted(str(one.parent) for one in path.glob(f"*/{expected.name}"))
    if inside:
        raise LedgerError(
            f"{path} has no ledger, but folders in it have; name one of {', '.join(inside)}"
        )


def total(
    paths: Annotated[
        list[Path], typer.Argument(help="Folders of runs, sites and questions, and ledger files.")
    ],
    client: Annotated[
        list[str] | None,
        typer.Option(
            help="The client to add up: NAME, or PATH=NAME where the ledger PATH has another name "
            "for the same client (repeatable). A site's folder is one account and needs no name."
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--every", help="Add up each client over all ledgers that have its name."),
    ] = False,
    delta: Annotated[
        float | None, typer.Option(help="Compute epsilon at this delta; pure charges need none.")
    ] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="zero-out or replace-one; replace-one also counts charges under zero-out."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add up what one client (a person or a site) has spent over several ledgers.

    Every charge is counted, except those of a copy whose rows are all in another of the ledgers.
    Copies of a ledger created by an earlier version are counted in full: leave out those that were
    not charged since they were copied. Nothing is written, and an altered ledger is refused.
    """
    from sottovoce.core.errors import ParameterError
    from sottovoce.deployment.totals import ledger_total, ledger_totals
    from sottovoce.ledger.ledger import LEDGER_NAME

    for path in paths:
        check_one_ledger(path / LEDGER_NAME, path)
    ledgers = [str(path) for path in paths]
    if every:
        if client:
            raise ParameterError("--every adds up every client; leave out --client")
        totals = ledger_totals(ledgers, delta=delta, adjacency=adjacency)
        if as_json:
            print_json([{"client": name, **one.to_dict()} for name, one in totals.items()])
        else:
            _print_totals(totals)
            if delta is None:
                say("these are sums at delta 0; --delta 1e-5 gives smaller totals for most charges")
        return
    name, names = _names(client or [], ledgers)
    found = ledger_total(ledgers, delta=delta, client=name, names=names, adjacency=adjacency)
    if as_json:
        print_json(found.to_dict())
        return
    _print_total(found)
    if delta is None and found.epsilon:  # for many pure charges a positive delta gives less
        lower = ledger_total(ledgers, delta=1e-5, client=name, names=names, adjacency=adjacency)
        if lower.epsilon < found.epsilon:
            smaller = show(lower.epsilon, "epsilon")
            say(f"with --delta the total is smaller: epsilon {smaller} with --delta 1e-5")


def _names(given: Sequence[str], ledgers: Sequence[str]) -> tuple[str | None, dict[str, list[str]]]:
    """Return the name for all ledgers and the names for single ones, by path."""
    from sottovoce.core.errors import ParameterError

    anywhere: list[str] = []
    names: dict[str, list[str]] = {}
    for text in given:
        if "=" not in text:
            anywhere.append(text)
            continue
        parts = text.split("=")  # both the path and the name may contain the sign
        cuts = [("=".join(parts[:at]), "=".join(parts[at:])) for at in range(1, len(parts))]
        found = [(str(Path(path)), name) for path, name in cuts if str(Path(path)) in ledgers]
        if not found:
            raise ParameterError(
                f"--client {text}: '{cuts[0][0]}' is not one of the ledgers "
                f"({', '.join(ledgers)}); write PATH=NAME with one of them"
            )
        names.setdefault(found[0][0], []).append(found[0][1])
    if len(set(anywhere)) > 1:
        raise ParameterError(
            f"--client must name one client, got {', '.join(sorted(set(anywhere)))}; if ledgers "
            "have different names for the same client, give --client PATH=NAME for each of them, "
            "where PATH is one of the ledgers in this command"
        )
    return (anywhere[0] if anywhere else None), names


def _print_total(found: "LedgerTotal") -> None:
    from sottovoce.privacy.accounting import show_delta

    columns = ["ledger", "account", "charges", "counted", "epsilon"]
    rows = [
        [one.path, one.account, show(one.charges), show(one.counted), show(one.epsilon, "epsilon")]
        for one in found.ledgers
    ]
    rows.append(["total", "", "", show(found.charges), show(found.epsilon, "epsilon")])
    print_table(columns, rows)
    for note in found.notes:
        say(note)
    if len(found.ledgers) > 1:
        say("the total is for one person or site whose data is behind all of these ledgers")
    at = f"delta {show_delta(found.delta)}, {found.adjacency} per {found.unit}"
    by = f", by the {found.accountant} accountant" if found.accountant else ""
    say(f"epsilon {show(found.epsilon, 'epsilon')} at {at}{by}")
    _say_what_holds(found)


def _say_what_holds(found: "LedgerTotal") -> None:
    """Print what a total assumes, and what holds without these assumptions."""
    from sottovoce.privacy.accounting import show_delta

    _say_assumptions(found.assumptions)
    if found.local_epsilon is not None:
        local = show(found.local_epsilon, "epsilon")
        say(f"against an observer of every message, sender and sample: epsilon {local}")
    adaptive = []
    if found.limits is not None:
        epsilon, delta = found.limits
        adaptive.append(
            f"the sites' limits, if they were fixed in advance, keep all answers within epsilon "
            f"{show(epsilon, 'epsilon')} at delta {show_delta(delta)}"
        )
    if math.isfinite(found.pure_epsilon):
        adaptive.append(
            "these answers change the odds between neighboring data by at most a factor e^"
            f"{show(found.pure_epsilon, 'epsilon')}"
        )
    say(
        "if requests were chosen after seeing earlier answers: "
        + ("; ".join(adaptive) or "no bound is proved, because no limit covers these ledgers")
    )


def _say_assumptions(assumptions: Iterable[str]) -> None:
    from sottovoce.deployment.totals import FIXED

    for assumption in (FIXED, *assumptions):
        say(f"assuming that {assumption}")


def _print_totals(totals: Mapping[str, "LedgerTotal"]) -> None:
    from sottovoce.privacy.accounting import show_delta

    columns = ["client", "ledgers", "counted", "epsilon", "if all is seen", "delta"]
    columns += ["adjacency", "unit"]
    rows = [
        [
            name,
            show(len(one.ledgers)),
            show(one.charges),
            show(one.epsilon, "epsilon"),
            show(one.epsilon if one.local_epsilon is None else one.local_epsilon, "epsilon"),
            show_delta(one.delta),
            show(one.adjacency),
            show(one.unit),
        ]
        for name, one in totals.items()
    ]
    print_table(columns, rows)
    for note in dict.fromkeys(note for one in totals.values() for note in one.notes):
        say(note)
    _say_assumptions(dict.fromkeys(said for one in totals.values() for said in one.assumptions))
    say("one name is taken to be one person or site in all ledgers; details: --client NAME")
