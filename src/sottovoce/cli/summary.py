"""What a run prints at its end: a summary of six lines and the next commands, or JSON."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.cli.output import print_json, print_table, print_warning, print_wrapped, say, show

_SITES_SHOWN = 20
_INDENT = 11
_GROUP_HEADINGS = {"bits_per_coordinate": "bits", "ran_out": "ran out"}


Profile = Mapping[str, Mapping[str, float]]


def print_result(
    result: dict[str, Any], folder: Path, *, as_json: bool, profile: Profile | None = None
) -> None:
    """Print the result of a run that has ended or was halted.

    Args:
        result: What the run's result.json has.
        folder: The run's folder.
        as_json: Whether to print every figure as JSON instead of a summary.
        profile: The seconds and the share of each stage, if they were measured.
    """
    for warning in result["warnings"]:
        print_warning(warning)
    if as_json:
        print_json({**result, "folder": str(folder), **({"profile": profile} if profile else {})})
        return
    for name, text in _summary(result, folder):
        print_wrapped(name, text, indent=_INDENT)
    if len(result["groups"]) > 1:
        _print_groups(result["groups"])
    if any("answered" in row for row in result["clients"]):
        _print_sites(result["clients"])
    if profile:
        _print_profile(profile)
    from sottovoce.runs.diagnosis import AccuracyDiagnosis

    say(f"\n{AccuracyDiagnosis.read(result['diagnosis'])}")
    say(f"\nEvery figure is in {folder / 'result.json'}. Next:")
    for command in _next_commands(folder):
        say(f"  {command}")


def _print_profile(profile: Profile) -> None:
    total = sum(row["seconds"] for row in profile.values())
    say(f"\nThe run took {total:.3g} s:")
    print_table(
        ["stage", "seconds", "share"],
        [
            [name, f"{row['seconds']:.3f}", f"{100.0 * row['share']:.1f}%"]
            for name, row in profile.items()
        ],
    )


def _summary(result: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Return the names and texts of the six lines."""
    from sottovoce.reporting.statement import statement_of
    from sottovoce.runs.record import read_record
    from sottovoce.runs.site_counts import figures_note
    from sottovoce.runs.statistics import evaluation_text

    record = read_record(folder)  # The run has just written it.
    epsilon = result["epsilon"] if result["private"] else None
    statement = statement_of(record, epsilon, result["clients"])
    ended = f"halted after {result['rounds']}" if result["halted"] else f"{result['rounds']}"
    why = f"; halted because {result['halted']}" if result["halted"] else ""
    if result["mechanism_choice"]:
        why += f"; chosen by 'auto': {result['mechanism_choice']}"
    bits = result["bits_per_coordinate"]
    size = "1 bit" if bits == 1 else f"{bits:.3g} bits"
    averaged = result.get("accuracy_averaged")
    average = "" if averaged is None else f" (averaged model: {averaged:.4f})"
    guarded = "private" if result["private"] else "not private"
    measured = f"{found} ({guarded}); " if (found := evaluation_text(result)) else ""
    return [
        (
            "run",
            f"{result['name']}: {ended} of {record.spec.rounds} rounds, {len(result['clients'])} "
            f"clients, {result['mechanism']['kind']} ({size} per coordinate){why}",
        ),
        (
            "model",
            f"{figures_note(result, 4)}{average}, loss {result['loss']:.4g} on test data; "
            f"{measured}{result['dimension']:,} parameters",
        ),
        ("protected", statement.protected),
        ("spent", statement.spent),
        ("assumes", statement.assumes),
        ("sent", _sent(result)),
    ]


def _sent(result: dict[str, Any]) -> str:
    """Return the bytes of messages, and of a client in all rounds."""

    def size(name: str) -> str:
        value = result[name]
        return "none" if value is None else f"{value:,.0f} bytes"

    return (
        f"up {size('total_bytes_up_per_message')} per message (payload "
        f"{size('payload_bytes_up_per_message')}), {size('total_bytes_up_per_client')} per client "
        f"in all; down {size('total_bytes_down_per_message')} per message"
    )


def _next_commands(folder: Path) -> list[str]:
    from sottovoce.runs.folder import RunFolder

    named = shlex.quote(str(folder))
    commands = [f"sottovoce report {named}"]
    if RunFolder(folder).has_ledger:
        commands.append(f"sottovoce ledger show {named}")
    return [*commands, f"sottovoce export {named} model.safetensors"]


def _print_sites(clients: list[dict[str, Any]]) -> None:
    """Print what the server counted, what sites answered and what they say they charged."""
    from sottovoce.runs.site_counts import HEADINGS, site_table_rows

    rows, more = site_table_rows({row["client"]: row for row in clients}, _SITES_SHOWN)
    print_table(["site", *HEADINGS.values()], rows)
    if more:
        say(f"{more}: see result.json, or result-clients.json.gz in the same folder")


def _mechanism(group: dict[str, Any]) -> str:
    """Return a group's mechanism with its parameters in a few digits."""
    from sottovoce.core.display import show_rounded

    mechanism = group["mechanism"]
    if not isinstance(mechanism, dict):
        return show(mechanism)
    parameters = {name: value for name, value in mechanism.items() if name != "kind"}
    return f"{mechanism['kind']} {show_rounded(parameters)}".strip()


def _print_groups(groups: list[dict[str, Any]]) -> None:
    columns = list(groups[0])
    rows = [
        [
            _mechanism(row) if column == "mechanism" else show(row[column], column)
            for column in columns
        ]
        for row in groups
    ]
    print_table([_GROUP_HEADINGS.get(column, column) for column in columns], rows)
