"""Three counts of a federation's rounds, which may differ: the server's, the replies, the sites'.

The server charges every site that it asks, in its own ledger. A site may refuse, and then it has
charged nothing. What a site has charged is in its own ledger; the server only knows what the site
reports.

Also: rounds in which no client was asked, with the reason, and runs in which no reply counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import DeploymentError
from sottovoce.core.printable_text import format_reasons
from sottovoce.learning.objectives import ACCURACY


def idle_reason(row: Mapping[str, Any]) -> str:
    """Return why a round asked no client, from the row of metrics of such a round.

    Unreachable clients are named as the reason before missing budgets.
    """
    if row.get("clients_unreachable"):
        return "too few of the clients in the sample could be reached"
    if row.get("clients_out_of_budget"):
        return "too few of the clients in the sample had budget left"
    return "the sample had too few clients"


def idle_warnings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning for each reason why rounds asked no client; empty if all asked some.

    Args:
        rows: The metrics of the rounds.
    """
    causes = Counter(idle_reason(row) for row in rows if not row["clients_asked"])
    return [
        f"in {count} of {len(rows)} rounds {cause}: no client was asked or charged, and the model "
        "did not change"
        for cause, count in causes.items()
    ]


def check_any_round_counted(rows: Sequence[Mapping[str, Any]], *, minimum_replies: int) -> None:
    """Refuse to finish a run in which no round had enough replies to change the model.

    Rounds for which no client was sampled say nothing about the sites, and are ignored.

    Args:
        rows: The metrics of all rounds.
        minimum_replies: The fewest replies with which a round changes the model.

    Raises:
        DeploymentError: No round had `minimum_replies` replies.
    """
    drawn = [row for row in rows if row["clients_asked"] or row["clients_unreachable"]]
    if not drawn or any(row["clients_received"] >= minimum_replies for row in drawn):
        return
    reasons: dict[str, str] = {}
    for row in drawn:
        reasons |= row.get("unanswered", {})
    raise DeploymentError(
        f"none of {len(rows)} rounds had the {minimum_replies} replies that a round needs, so the "
        f"model has not changed since the start; {format_reasons(reasons)}if sites refused, lower "
        "privacy.epsilon or ask the sites to allow more; if they did not answer, check their logs. "
        "Then resume the run, or start another with a new --out"
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


def have_site_replies(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every row records the reply of each site; older versions did not."""
    return all("sites" in row for row in rows if row["clients_asked"])


def has_sites(spec: Mapping[str, Any]) -> bool:
    """Return whether a spec, as plain data, is of a run whose clients keep their own ledgers."""
    runtime = spec.get("runtime")
    return isinstance(runtime, dict) and runtime.get("backend", "fast") != "fast"


def site_counts(
    rows: Iterable[Mapping[str, Any]], clients: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return counts for each client, from the rows of all rounds.

    Args:
        rows: The metrics of the rounds.
        clients: The names of the clients.

    Returns:
        For each client a dictionary with

        rounds        the rounds in which the server asked it
        answered      its replies that counted
        refused       its replies without a message: it refused, or could not answer
        site_charged  the rounds of the run that its own ledger was charged, as its last reply says;
                      None if it does not report them
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
    """Return the sums of counts over all sites.

    Args:
        counts: The counts of each site, as `site_counts` returns them.

    Returns:
        The sums of `rounds`, `answered`, `refused` and `site_charged`, the number of `sites`, and
        how many of them report what they charged (`sites_reporting`); `site_charged` is None if
        none does.
    """
    counts = list(counts)
    told = [one["site_charged"] for one in counts if one["site_charged"] is not None]
    sums = {name: sum(one[name] for one in counts) for name in ("rounds", "answered", "refused")}
    return {
        **sums,
        "site_charged": sum(told) if told else None,
        "sites_reporting": len(told),
        "sites": len(counts),
    }


def site_table_rows(
    counts: Mapping[str, Mapping[str, Any]], most: int
) -> tuple[list[list[str]], str | None]:
    """Return the rows of a table of sites, and a text that says how many are left out.

    Sites for which the server's count, the replies and the site's own count differ come first.

    Args:
        counts: The counts of each site by name, as `site_counts` returns them.
        most: The largest number of rows.

    Returns:
        Rows of cells, the site's name and then those of HEADINGS; and a text such as "and 3 more
        sites", None if no site is left out.
    """
    ranked = sorted(
        counts.items(),
        key=lambda one: one[1]["rounds"] == one[1]["answered"] == one[1]["site_charged"],
    )
    shown = [[name, *cells(one)] for name, one in ranked[:most]]
    more = f"and {len(ranked) - most} more sites" if len(ranked) > most else None
    return shown, more


def cells(counts: Mapping[str, Any]) -> list[str]:
    """Return the counts of one site, or of `totals`, as texts in the order of HEADINGS."""
    figures = [str(counts[name]) for name in HEADINGS if name != "site_charged"]
    return [*figures, show_charged(counts)]


def show_charged(counts: Mapping[str, Any]) -> str:
    """Return as a text how many rounds a site, or all sites together, report as charged.

    It is "not reported" if none reports; if only some do, it says how many.
    """
    if counts["site_charged"] is None:
        return NOT_REPORTED
    partly = counts.get("sites_reporting", 1) < counts.get("sites", 1)
    of = f" ({counts['sites_reporting']} of {counts['sites']} sites)" if partly else ""
    return f"{counts['site_charged']}{of}"


def round_note(row: Mapping[str, Any]) -> str:
    """Return a line of progress after a round: accuracy, epsilon, and replies if some are missing.

    Args:
        row: The metrics of the round, in which the model was tested.
    """
    spent = row["epsilon"]
    epsilon = "no privacy" if spent is None else f"epsilon {show_epsilon(spent, 2)}"
    if row.get("sites") and spent is not None:
        epsilon += f" {BY_SERVER}"
    asked, received = row["clients_asked"], row["clients_received"]
    missing = f"  {received} of {asked} answered" if received < asked else ""
    return f"{figures_note(row, 3)}  {epsilon}{missing}"


def figures_of(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures of a model on the test data by name, the most important one first.

    Args:
        row: The metrics of a round in which the model was tested, or a result; also one of an
            earlier version, which has one figure.
    """
    return row.get("metrics") or {row.get("score", ACCURACY): row["accuracy"]}


def figures_note(row: Mapping[str, Any], digits: int) -> str:
    """Return the figures of a model on the test data as text, such as "accuracy 0.913"."""
    return ", ".join(
        f"{name} {'none' if value is None else format(value, f'.{digits}f')}"
        for name, value in figures_of(row).items()
    )
