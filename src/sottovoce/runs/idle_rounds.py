"""Rounds in which nobody was asked, and why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


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
