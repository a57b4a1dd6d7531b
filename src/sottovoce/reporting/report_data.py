"""Run folders as plain data for a page: every figure that a report shows, and nothing else."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.errors import ParameterError
from sottovoce.reporting.comparison import compared
from sottovoce.reporting.findings import findings
from sottovoce.reporting.words import facts, simulated_because
from sottovoce.runs.accounts import accounts_of
from sottovoce.runs.record import RunRecord, read_record
from sottovoce.runs.writing import toml_text

OnRun = Callable[[int, int, str], None]  # runs read, of how many, and the next one's folder


def report_of(folders: Sequence[Path], on_run: OnRun | None = None) -> dict[str, Any]:
    """All runs and, where there are several, how they compare; the same folders, the same data."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ParameterError("a run folder is named twice; name each once")
    runs = []
    for number, folder in enumerate(folders):
        if on_run:
            on_run(number, len(folders), folder.name)
        runs.append(run_data(folder))
    for run, label in zip(runs, _labels(runs), strict=True):
        run["label"] = label
    return {"runs": runs, "comparison": compared(runs) if len(runs) > 1 else None}


def run_data(folder: Path) -> dict[str, Any]:
    """One run: its state, words for people, figures, rows of rounds, clients, findings, spec."""
    record = read_record(folder)
    accounts = accounts_of(record)
    spec, result = record.spec, record.result
    return {
        "name": spec.name,
        "folder": folder.resolve().name,
        "state": _state(record),
        "halted": (result or {}).get("halted"),
        "rounds_done": record.rounds_done,
        "rounds": spec.rounds,
        "facts": facts(record, accounts),
        "simulated_because": simulated_because(record),
        "regression": record.header.get("objective") == "regression",
        "on_one_machine": spec.runtime.backend != "flower",
        "has_sites": record.has_sites,
        "figures": _figures(record, accounts),
        "rows": record.rows,
        "accounts": accounts,
        "groups": result["groups"] if result else [],
        "findings": findings(folder),
        "warnings": [*map(str, (result or {}).get("warnings", [])), *_doubts(record, accounts)],
        "spec": toml_text(spec.plain()),
        "spec_hash": spec.hash,
        "sottovoce": str(record.header.get("sottovoce", "unknown")),
        "repeat": _repeat(record),
    }


def _labels(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name of each run, with its folder or a number where two have the same."""
    names = Counter(run["name"] for run in runs)
    labels = [
        run["name"] if names[run["name"]] == 1 else f"{run['name']} ({run['folder']})"
        for run in runs
    ]
    again = Counter(labels)
    return [
        label if again[label] == 1 else f"{label}, {number}"
        for number, label in enumerate(labels, start=1)
    ]


def _state(record: RunRecord) -> str:
    if record.result is None:
        return "unfinished"
    return "halted" if record.result.get("halted") else "finished"


def _figures(record: RunRecord, accounts: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that runs are compared by."""
    spec, rows = record.spec, record.rows
    last = record.result or next((row for row in reversed(rows) if row["accuracy"] is not None), {})
    clients = len(record.header.get("clients", [])) or len(accounts["clients"])
    totals = {
        name: sum(row[name] for row in rows)
        for name in ("payload_bytes_up", "total_bytes_up", "payload_bytes_down", "total_bytes_down")
    }
    return {
        "accuracy": last.get("accuracy"),
        "loss": last.get("loss"),
        "epsilon": accounts["epsilon"],
        "budget": accounts["budget"],
        "delta": spec.privacy.delta,
        "adjacency": str(spec.privacy.adjacency),
        "level": spec.privacy.level,
        "channel": spec.channel.kind,
        "mechanism": spec.mechanism.kind,
        "bits_per_coordinate": record.header.get("bits_per_coordinate"),
        "dataset": spec.data.dataset,
        "clients": clients,
        "dimension": record.dimension,
        "ran_out": _ran_out(record, accounts),
        "sites": accounts["sites"],
        **totals,
        **{
            f"{name}_per_client": total / clients if clients else None
            for name, total in totals.items()
        },
    }


def _ran_out(record: RunRecord, accounts: Mapping[str, Any]) -> int:
    """Clients without budget for another round; before the end, those missed in the last one.

    In a federation that is the server's count: a site may refuse on its own account.
    """
    if record.result is None:
        return int(record.rows[-1]["clients_out_of_budget"]) if record.rows else 0
    return sum(bool(row["ran_out"]) for row in accounts["clients"])


def _doubts(record: RunRecord, accounts: Mapping[str, Any]) -> list[str]:
    found = list(accounts["warnings"])
    stated = record.header["spec_hash"]
    if stated != record.spec.hash:
        found.append(
            f"the spec in run.json has hash {record.spec.hash}, not {stated} as stated: it was "
            "edited, or written by another version"
        )
    last = record.rows[-1]["accuracy"] if record.rows else None
    claimed = (record.result or {}).get("accuracy")
    if last is not None and claimed is not None and abs(last - claimed) > 1e-9:
        found.append(
            f"result.json says accuracy {claimed:.4f}, and the last round in metrics.jsonl has "
            f"{last:.4f}: one of them was edited"
        )
    missed = sum(row["clients_asked"] - row["clients_received"] for row in record.rows)
    if missed and record.has_sites:
        found.append(
            f"{missed} replies that were asked for did not count: refused, late, lost or not as "
            "announced; the server counts them as charged, and a site that refused was not charged"
        )
    elif missed:
        found.append(
            f"{missed} replies that were asked for did not count: late, lost or not as announced; "
            "they are charged all the same"
        )
    return found


def _repeat(record: RunRecord) -> dict[str, str]:
    """A command that makes the run again, and what that would mean."""
    if record.spec.runtime.backend == "flower":
        command = "sottovoce deploy run FEDERATION spec.toml --out AGAIN"
    else:
        command = "sottovoce run spec.toml --out AGAIN"
    if record.spec.randomness == "seeded":
        note = "The noise comes from the seed, so the same messages are made again."
    else:
        note = (
            "The noise will be fresh. Two runs on the same people's data spend twice: their "
            "epsilons add up."
        )
    return {"command": command, "note": note}
