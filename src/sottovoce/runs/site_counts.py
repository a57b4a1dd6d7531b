"""Three counts of a federation's rounds that need not agree: the server's, the replies, the sites'.

The server charges every site that it asks, in its own ledger. A site may refuse, and then has
charged nothing. What a site has charged is in its own ledger, and the server knows of it only what
the site says.

Also: rounds in which nobody was asked, and why, and runs in which nothing ever counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import DeploymentError
from sottovoce.core.printable_text import reasons_told


def why_nobody_was_asked(row: Mapping[str, Any]) -> str:
    """The cause, by what a round's row of metrics counts; who is offline comes before money."""
    if row.get("clients_unreachable"):
        return "too few of the clients in the sample could be reached"
    if row.get("clients_out_of_budget"):
        return "too few of the clients in the sample had budget left"
    return "the sample had too few clients"


def idle_warnings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each cause."""
    causes = Counter(why_nobody_was_asked(row) for row in rows if not row["clients_asked"])
    return [
        f"in {count} of {len(rows)} rounds {cause}: nobody was asked or charged, and the model "
        "stayed as it was"
        for cause, count in causes.items()
    ]


def check_any_counted(rows: Sequence[Mapping[str, Any]], *, minimum_replies: int) -> None:
    """Refuse to call a run finished that no round of sites' replies has moved.

    Rounds for which nobody was drawn say nothing about the sites.
    """
    drawn = [row for row in rows if row["clients_asked"] or row["clients_unreachable"]]
    if not drawn or any(row["clients_received"] >= minimum_replies for row in drawn):
        return
    reasons: dict[str, str] = {}
    for row in drawn:
        reasons |= row.get("unanswered", {})
    raise DeploymentError(
        f"none of {len(rows)} rounds brought the {minimum_replies} replies that it needs, so the "
        f"model is as it was at the start; {reasons_told(reasons)}if sites refused, ask for less "
        "(a lower privacy.epsilon), or let the sites allow more; if they were silent, look at "
        "their logs. Then resume the run, or begin another with a new --out"
    )


BY_SERVER = "by the server's count"
NOT_REPORTED = "not reported"
HEADINGS = {
    "rounds": "server counted",
    "answered": "answered",
    "refused": "refused",
    "site_charged": "site says it charged",
}
_NOTHING = {"rounds": 0, "answered": 0, "refused": 0, "site_charged": None}


def are_noted(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every row tells what came of each site; those of earlier versions do not."""
    return all("sites" in row for row in rows if row["clients_asked"])


def has_sites(spec: Mapping[str, Any]) -> bool:
    """Whether a spec, as plain data, is of a run whose clients keep ledgers of their own."""
    runtime = spec.get("runtime")
    return isinstance(runtime, dict) and runtime.get("backend", "fast") != "fast"


def site_counts(
    rows: Iterable[Mapping[str, Any]], clients: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """For each client, from the rows of all rounds.

    rounds        in which the server asked it
    answered      replies of it that counted
    refused       replies without a message: it refused, or could not answer
    site_charged  rounds of the run in which its own ledger was charged, as its last reply says;
                  None if it says nothing
    """
    found: dict[str, dict[str, Any]] = {name: dict(_NOTHING) for name in clients}
    for row in rows:
        for name, reply in (row.get("sites") or {}).items():
            counts = found.setdefault(name, dict(_NOTHING))
            counts["rounds"] += 1
            counts["answered"] += reply["outcome"] == "counted"
            counts["refused"] += reply["outcome"] == "refused"
            if reply["rounds_charged"] is not None:
                counts["site_charged"] = reply["rounds_charged"]
    return found


def totals(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The same over all clients; `sites_reporting` of them say what they charged."""
    counts = list(counts)
    told = [one["site_charged"] for one in counts if one["site_charged"] is not None]
    sums = {name: sum(one[name] for one in counts) for name in ("rounds", "answered", "refused")}
    return {
        **sums,
        "site_charged": sum(told) if told else None,
        "sites_reporting": len(told),
        "sites": len(counts),
    }


def counted_rows(
    counts: Mapping[str, Mapping[str, Any]], most: int
) -> tuple[list[list[str]], str | None]:
    """Cells under 'site' and HEADINGS for some sites, and how many more there are.

    Sites whose three counts differ come first.
    """
    ranked = sorted(
        counts.items(),
        key=lambda one: one[1]["rounds"] == one[1]["answered"] == one[1]["site_charged"],
    )
    shown = [[name, *cells(one)] for name, one in ranked[:most]]
    more = f"and {len(ranked) - most} more sites" if len(ranked) > most else None
    return shown, more


def cells(counts: Mapping[str, Any]) -> list[str]:
    """Counts under HEADINGS."""
    figures = [str(counts[name]) for name in HEADINGS if name != "site_charged"]
    return [*figures, show_charged(counts)]


def show_charged(counts: Mapping[str, Any]) -> str:
    """What a site, or all sites together, say that they charged."""
    if counts["site_charged"] is None:
        return NOT_REPORTED
    partly = counts.get("sites_reporting", 1) < counts.get("sites", 1)
    of = f" ({counts['sites_reporting']} of {counts['sites']} sites)" if partly else ""
    return f"{counts['site_charged']}{of}"


def round_note(row: Mapping[str, Any]) -> str:
    """What a line of progress says after a round."""
    spent = row["epsilon"]
    epsilon = "no privacy" if spent is None else f"epsilon {show_epsilon(spent, 2)}"
    if row.get("sites") and spent is not None:
        epsilon += f" {BY_SERVER}"
    asked, received = row["clients_asked"], row["clients_received"]
    missing = f"  {received} of {asked} answered" if received < asked else ""
    return f"{row.get('score', 'accuracy')} {row['accuracy']:.3f}  {epsilon}{missing}"
