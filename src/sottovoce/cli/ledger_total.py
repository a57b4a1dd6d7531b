"""`sottovoce ledger total`: what one account has spent over several ledgers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.output import Json, print_json, print_table, say, show

if TYPE_CHECKING:
    from sottovoce.deployment.totals import LedgerTotal


def check_one_ledger(expected: Path, path: Path) -> None:
    """A folder of folders with ledgers, such as a federation's, is answered with their names."""
    from sottovoce.core.errors import LedgerError

    if not path.is_dir() or expected.exists():
        return
    inside = sorted(str(one.parent) for one in path.glob(f"*/*/{expected.name}"))
    inside += sorted(str(one.parent) for one in path.glob(f"*/{expected.name}"))
    if inside:
        raise LedgerError(
            f"{path} has no ledger of its own, but folders in it have: name one of "
            f"{', '.join(inside)}"
        )


def total(
    paths: Annotated[
        list[Path], typer.Argument(help="Folders of runs, sites and questions, and ledger files.")
    ],
    client: Annotated[
        list[str] | None,
        typer.Option(
            help="Whose charges: NAME, or PATH=NAME where the name in one ledger is another "
            "(repeatable). A site's folder is one account and takes none."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Each name over all ledgers in which it occurs.")
    ] = False,
    delta: Annotated[
        float | None, typer.Option(help="Account at this delta; pure charges need none.")
    ] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(help="replace-one also counts charges under zero-out, by way of zero."),
    ] = None,
    as_json: Json = False,
) -> None:
    """What one person or site has spent over several ledgers; a copy of a ledger counts once.

    Every charge is counted, but for those of a copy whose rows are all in another of the ledgers.
    Copies of a ledger that an earlier version began count in full: leave out those that were not
    charged since they were copied.
    Nothing is written, and a ledger that was altered is refused.
    """
    from sottovoce.core.errors import ParameterError
    from sottovoce.deployment.totals import ledger_total, ledger_totals
    from sottovoce.ledger.ledger import LEDGER_NAME

    for path in paths:
        check_one_ledger(path / LEDGER_NAME, path)
    ledgers = [str(path) for path in paths]
    if every:
        if client:
            raise ParameterError("--every counts each name; leave --client away")
        totals = ledger_totals(ledgers, delta=delta, adjacency=adjacency)
        if as_json:
            print_json([{"client": name, **one.to_dict()} for name, one in totals.items()])
        else:
            _print_totals(totals)
        return
    name, names = _names(client or [], ledgers)
    found = ledger_total(ledgers, delta=delta, client=name, names=names, adjacency=adjacency)
    if as_json:
        print_json(found.to_dict())
        return
    _print_total(found)
    if delta is None and found.epsilon:  # the sum of pure charges: few are best told at delta 0
        lower = ledger_total(ledgers, delta=1e-5, client=name, names=names, adjacency=adjacency)
        if lower.epsilon < found.epsilon:
            smaller = show(lower.epsilon, "epsilon")
            say(f"with --delta the total is smaller: epsilon {smaller} with --delta 1e-5")


def _names(given: Sequence[str], ledgers: Sequence[str]) -> tuple[str | None, dict[str, list[str]]]:
    """(the name in all ledgers, the names in some); PATH= is one of the ledgers."""
    from sottovoce.core.errors import ParameterError

    anywhere: list[str] = []
    names: dict[str, list[str]] = {}
    for text in given:
        if "=" not in text:
            anywhere.append(text)
            continue
        parts = text.split("=")  # a path may have the sign, and so may a name
        cuts = [("=".join(parts[:at]), "=".join(parts[at:])) for at in range(1, len(parts))]
        found = [(str(Path(path)), name) for path, name in cuts if str(Path(path)) in ledgers]
        if not found:
            raise ParameterError(
                f"--client {text}: '{cuts[0][0]}' is none of the ledgers that are counted "
                f"({', '.join(ledgers)}); write PATH=NAME with one of them"
            )
        names.setdefault(found[0][0], []).append(found[0][1])
    if len(set(anywhere)) > 1:
        raise ParameterError(
            f"one account is counted, and --client names {', '.join(sorted(set(anywhere)))}; for "
            "names in one ledger write --client PATH=NAME, with the path as it is given"
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
        say("the ledgers are added up as those of one person or site")
    at = f"delta {show_delta(found.delta)}, {found.adjacency} per {found.unit}"
    by = f", by the {found.accountant} accountant" if found.accountant else ""
    say(f"epsilon {show(found.epsilon, 'epsilon')} at {at}{by}")
    _say_what_holds(found)


def _say_what_holds(found: "LedgerTotal") -> None:
    """What a total assumes, and what holds without that."""
    from sottovoce.privacy.accounting import show_delta

    _say_assumptions(found.assumptions)
    if found.local_epsilon is not None:
        local = show(found.local_epsilon, "epsilon")
        say(f"if every message and every sample is seen: epsilon {local}")
    adaptive = []
    if found.limits is not None:
        epsilon, delta = found.limits
        adaptive.append(
            f"the sites' limits, if they were fixed beforehand, keep everything that is ever "
            f"answered within epsilon {show(epsilon, 'epsilon')} at delta {show_delta(delta)}"
        )
    if math.isfinite(found.pure_epsilon):
        adaptive.append(
            "these answers change nobody's odds by more than a factor e^"
            f"{show(found.pure_epsilon, 'epsilon')}"
        )
    say(
        "if something was asked in the light of earlier answers: "
        + ("; ".join(adaptive) or "nothing is proved, for no limit was kept over these ledgers")
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
    say("a name is taken for one person or site in all ledgers; name one with --client for more")
