"""Rounds in which nobody was asked, and why; runs in which nothing ever counted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.core.errors import DeploymentError
from sottovoce.core.printable_text import reasons_told


def why_nobody_was_asked(row: Mapping[str, Any]) -> str:
    """The cause, by what a round's row of metrics counts; who is offline comes before money."""
    if row.get("clients_unreachable"):
        return "too few of the clients in the sample could be reached"
    if row.get("clients_out_of_budget"):
        return "too few of the clients in the sample had budget left"
    return "the sample had too few clients"


def warnings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
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
