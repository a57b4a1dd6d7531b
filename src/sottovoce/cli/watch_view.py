"""How a run that works looks in a terminal, and in a line."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sottovoce.core.printable_text import printable_data

if TYPE_CHECKING:
    from rich.console import RenderableType

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 40
_BAR_WIDTH = 20
_SITES_SHOWN = 12
_STATE_COLOURS = {"finished": "green", "running": "cyan", "waiting": "yellow", "silent": "yellow"}


def sparkline(values: Sequence[float | None], width: int = _SPARK_WIDTH) -> str:
    """The values as blocks from lowest to highest, in at most `width` of them: each the last of
    its share.
    """
    known = [value for value in values if value is not None]
    if len(known) > width:
        known = [known[(n + 1) * len(known) // width - 1] for n in range(width)]
    if not known:
        return ""
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in known)


def show_bytes(count: float) -> str:
    """A number of bytes in steps of a thousand."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000.0
    return f"{count:.3g} TB"


def show_seconds(seconds: float) -> str:
    """A time to wait, in two units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def epsilon_note(state: Mapping[str, Any]) -> str:
    from sottovoce.core.display import show_epsilon, show_left
    from sottovoce.runs.site_counts import BY_SERVER

    if not state["private"]:
        return "no privacy"
    spent = f"epsilon {show_epsilon(state['epsilon'], 2)}"
    if state["has_sites"]:
        spent += f" {BY_SERVER}"
    if state["epsilon_budget"] is None:
        return spent
    of = ", budget" if state["has_sites"] else " of"
    left = show_left(state["epsilon_left"], 2)
    return f"{spent}{of} {state['epsilon_budget']:.15g}, {left} left"


def replies_note(state: Mapping[str, Any]) -> str:
    last = state["last_round"]
    return f"{last['clients_received']} of {last['clients_asked']} answered" if last else ""


def line(state: Mapping[str, Any]) -> str:
    """The state in a line: for logs, and wherever there is no terminal."""
    of = f" of {state['rounds']}" if state["rounds"] else ""
    parts = [f"round {state['rounds_done']}{of}"]
    if state["accuracy"] is not None:
        parts.append(f"{state['score']} {state['accuracy']:.3f}")
    if state["loss"] is not None:
        parts.append(f"loss {state['loss']:.4g}")
    if state["last_round"]:
        parts.append(epsilon_note(state))
        parts.append(f"{show_bytes(state['bytes_up'])} up, {show_bytes(state['bytes_down'])} down")
        parts.append(replies_note(state))
    if state["seconds_left"] is not None:
        parts.append(f"{show_seconds(state['seconds_left'])} left")
    return "  ".join(parts)


def ending(state: Mapping[str, Any]) -> str:
    """How a run ended, in a line."""
    if state["state"] == "halted":
        return f"halted after {state['rounds_done']} of {state['rounds']} rounds: {state['halted']}"
    detail = f": {state['detail']}" if state.get("detail") else ""
    return f"{state['state']} after {state['rounds_done']} of {state['rounds']} rounds{detail}"


def panel(state: Mapping[str, Any], accuracies: Sequence[float | None]) -> "RenderableType":
    """The whole view."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    state = printable_data(state)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in _fields(state, accuracies):
        grid.add_row(Text(name), Text(value) if isinstance(value, str) else value)
    notes = [Text(f"! {warning}", style="yellow") for warning in state["warnings"]]
    colour = _STATE_COLOURS.get(state["state"], "red")
    return Panel(
        Group(grid, *notes),
        title=Text.assemble((state["name"], "bold"), "  ", (state["state"], colour)),
        title_align="left",
        subtitle=Text(state["folder"], style="dim"),
        subtitle_align="right",
        border_style=colour,
    )


def _fields(
    state: Mapping[str, Any], accuracies: Sequence[float | None]
) -> "list[tuple[str, RenderableType]]":
    from rich.text import Text

    found: list[tuple[str, RenderableType]] = []
    if state["rounds"]:
        found.append(("rounds", _bar(state["rounds_done"], state["rounds"], "cyan")))
    if state["rounds_per_second"] is not None:
        found.append(("speed", _speed(state)))
    if state["accuracy"] is not None:
        curve = Text(sparkline(accuracies), style="cyan")
        found.append((state["score"], Text.assemble(f"{state['accuracy']:.3f}  ", curve)))
    if state["loss"] is not None:
        found.append(("loss", f"{state['loss']:.4g}"))
    if state["last_round"]:
        found.append(("privacy", _privacy(state)))
        found += [(direction, _traffic(state, direction)) for direction in ("up", "down")]
        found.append(("replies", _replies(state)))
        if state["sites"]:
            found.append(("counts", _counts(state["sites"])))
    if state["halted"] or state.get("detail"):
        found.append((state["state"], Text(state["halted"] or state["detail"], style="red")))
    federation = state.get("federation")
    if federation:
        found.append(("link", f"{federation['link']} at {federation['address']}"))
        found.append(("sites", _sites(federation["sites"])))
    return found


def _bar(done: float, of: float, colour: str) -> "RenderableType":
    from rich.text import Text

    filled = int(_BAR_WIDTH * min(1.0, done / of))
    bar = ("━" * filled, colour), ("━" * (_BAR_WIDTH - filled), "bright_black")
    return Text.assemble(*bar, f"  {done:g} of {of:g}")


def _speed(state: Mapping[str, Any]) -> str:
    speed = state["rounds_per_second"]
    rate = f"{speed:.3g} rounds/s" if speed >= 0.2 else f"{1.0 / speed:.3g} s a round"
    left = state["seconds_left"]
    return rate if left is None else f"{rate}, {show_seconds(left)} left"


def _privacy(state: Mapping[str, Any]) -> "RenderableType":
    from rich.text import Text

    note = epsilon_note(state) + (f" (delta {state['delta']:g})" if state["delta"] else "")
    if not state["private"]:
        return Text(note, style="red")
    if state["epsilon_budget"] is None:
        return note
    filled = min(_BAR_WIDTH, -int(-_BAR_WIDTH * state["epsilon"] // state["epsilon_budget"]))
    bar = ("━" * filled, "magenta"), ("━" * (_BAR_WIDTH - filled), "bright_black")
    return Text.assemble(*bar, f"  {note}")


def _traffic(state: Mapping[str, Any], direction: str) -> str:
    each = state[f"bytes_{direction}_per_client"]
    share = "" if each is None else f", {show_bytes(each)} a client"
    return f"{show_bytes(state[f'bytes_{direction}'])}{share}"


def _replies(state: Mapping[str, Any]) -> str:
    missing = state["replies_asked"] - state["replies_received"]
    note = f"{replies_note(state)} in the last round"
    if missing:
        rounds = state["rounds_with_missing_replies"]
        note += f"; {missing} missing so far, in {rounds} rounds"
    return note


def _counts(sites: Mapping[str, Mapping[str, Any]]) -> "RenderableType":
    """What the server counted, what sites answered and what they say."""
    from rich.table import Table
    from rich.text import Text

    from sottovoce.runs.site_counts import HEADINGS, counted_rows

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("site", *HEADINGS.values()):
        table.add_column(heading)
    rows, more = counted_rows(sites, _SITES_SHOWN)
    for row in rows:
        table.add_row(*map(Text, row))
    if more:
        table.add_row(Text(more))
    return table


def _sites(sites: Mapping[str, str]) -> "RenderableType":
    from rich.text import Text

    here = [site for site, state in sites.items() if state == "online"]
    away = [f"{site} ({state})" for site, state in sites.items() if state != "online"]
    there = f"{len(here)} of {len(sites)} connected"
    return Text.assemble(there, ("; missing: " + ", ".join(away) if away else "", "yellow"))
