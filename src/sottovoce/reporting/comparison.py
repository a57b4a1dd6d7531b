"""Several runs side by side: are they comparable, and which does no other beat?"""

from collections.abc import Mapping, Sequence
from typing import Any

# Without these in common, a smaller epsilon or a higher accuracy says nothing.
_MUST_AGREE = {
    "dataset": "data set",
    "level": "unit that is protected",
    "adjacency": "adjacency",
    "delta": "delta",
}


def compared(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What keeps runs from being compared, what to beware of, and the frontier's runs."""
    figures = [run["figures"] for run in runs]
    obstacles = [
        f"the {what} differs ({', '.join(sorted({str(one[key]) for one in figures}))})"
        for key, what in _MUST_AGREE.items()
        if len({one[key] for one in figures}) > 1
    ]
    notes = [
        "If the same people's data went into several of these runs, what they gave away adds up."
    ]
    if len({one["channel"] for one in figures}) > 1:
        notes.append("The runs trust different parties: see who sees what.")
    if any(run["state"] == "unfinished" for run in runs):
        notes.append("Unfinished runs are shown as far as they have come.")
    points = [
        (one["accuracy"], one["epsilon"], one["total_bytes_up_per_client"]) for one in figures
    ]
    on = [] if obstacles else frontier(points)
    return {
        "obstacles": obstacles,
        "notes": notes,
        "frontier": [runs[number]["label"] for number in on],
    }


def frontier(points: Sequence[tuple[float | None, float | None, float | None]]) -> list[int]:
    """Which (accuracy, epsilon, bytes) no other beats: more accurate, more private and smaller.

    i is beaten if some j is at least as good in all three and better in one. An epsilon of None is
    infinite; a point without accuracy or bytes has no place.
    """
    placed = {
        number: (-accuracy, float("inf") if epsilon is None else epsilon, size)
        for number, (accuracy, epsilon, size) in enumerate(points)
        if accuracy is not None and size is not None
    }
    return [
        number
        for number, one in placed.items()
        if not any(
            other != one and all(a <= b for a, b in zip(other, one, strict=True))
            for other in placed.values()
        )
    ]
