"""The data of a report: what run folders, audits and attacks say, and how runs compare."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.display import show_epsilon, show_lower
from sottovoce.core.errors import OutputError, ParameterError
from sottovoce.reporting.statement import (
    PrivacyStatement,
    simulated_because,
    statement_of,
    summary_of,
)
from sottovoce.reporting.words import facts
from sottovoce.runs.accounts import accounts_of
from sottovoce.runs.folder import ATTRIBUTES_NAME, AUDIT_NAME, MEMBERSHIP_NAME, RECONSTRUCTION_NAME
from sottovoce.runs.loading import toml_text
from sottovoce.runs.record import RunRecord, read_finding, read_record
from sottovoce.runs.site_counts import figures_of

# A table for the report: title, verdict, alarm (is it a violation?), columns, rows, notes.
Finding = dict[str, Any]


def findings(folder: Path) -> list[Finding]:
    """Return the findings of audits and attacks in a run's folder, each as a table for the report.

    Args:
        folder: The run's folder.

    Returns:
        For each finding its title, a sentence (`verdict`), whether it is a violation (`alarm`), the
        headings and rows of a table, and notes; empty if no audit or attack was made.

    Raises:
        OutputError: If a file is damaged.
    """
    found = []
    for name, keys, told in _KINDS:
        data = read_finding(folder / name, keys)
        if data is None:
            continue
        try:
            found.append(told(data))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise OutputError(
                f"{folder / name} is damaged: {type(error).__name__} at {error}; delete it and "
                "run the audit or attack again"
            ) from None
    return found


def _audit(data: dict[str, Any]) -> Finding:
    certified, lower = data["certified"], data["lower_bound"]
    rows = [
        ["certified to be at most", "none" if certified is None else show_epsilon(certified)],
        ["measured to be at least", "infinite" if lower is None else show_lower(lower)],
        ["at delta", f"{data['delta']:g}"],
        ["with confidence", f"{data['confidence']:g}"],
        ["by", str(data["method"])],
        ["trials", str(data["trials"])],
    ]
    return {
        "title": "Audit: does the certificate hold?",
        "verdict": str(data["finding"]),
        "alarm": bool(data["violated"]),
        "columns": ["epsilon", ""],
        "rows": rows,
        "notes": [str(note) for note in data.get("notes", [])],
        "profile": [
            {key: float(point[key]) for key in ("epsilon", "certified_delta", "measured_delta")}
            for point in data["profile"]
        ],
    }


def _membership(data: dict[str, Any]) -> Finding:
    attacks = data["attacks"]
    first, *_ = attacks.values()
    fprs = [one["fpr"] for one in first["tpr_at_fpr"]]
    rows = [["chance", *(f"{fpr:g}" for fpr in fprs), "0.5", "0.5"]]
    for name, one in attacks.items():
        figures = [*one["tpr_at_fpr"], one["balanced_accuracy"], one["auc"]]
        rows.append([name, *(_interval(figure, "value") for figure in figures)])
    rates = [f"TPR at {100 * fpr:g}% FPR" for fpr in fprs]
    return {
        "title": "Attack: who was in the training data?",
        "verdict": str(data["verdict"]),
        "alarm": False,
        "columns": ["attack", *rates, "balanced accuracy", "AUC"],
        "rows": rows,
        "notes": [
            f"{data['shadows']} shadow models, {data['candidates']} candidates.",
            *(str(note) for note in data["notes"]),
        ],
    }


def _reconstruction(data: dict[str, Any]) -> Finding:
    names = [name for name in ("mse", "mae", "psnr", "ssim") if data[name] is not None]
    rows = [[data["attack"], *(_interval(data[name]) for name in names)]]
    for baseline, one in data["baselines"].items():
        rows.append([f"{baseline}, no attack", *(_interval(one[name]) for name in names)])
    won = [name.upper() for name, better in data["beats_mean_image"].items() if better]
    return {
        "title": "Attack: can training images be reconstructed?",
        "verdict": f"The attack beats the mean image in {', '.join(won)}."
        if won
        else "The attack does not beat the mean image, which needs no attack.",
        "alarm": False,
        "columns": ["guess", *(name.upper() for name in names)],
        "rows": rows,
        "notes": [str(data["setting"])],
    }


def _attributes(data: dict[str, Any]) -> Finding:
    rows = [["the model's embeddings", _interval(data["accuracy"]), _interval(data["f1"])]]
    for name, one in data["baselines"].items():
        rows.append([str(name), _interval(one["accuracy"]), _interval(one["f1"])])
    beaten = [name for name, better in data["beats"].items() if better]
    return {
        "title": f"Attack: can '{data['attribute']}' be inferred from the model?",
        "verdict": f"The model's embeddings tell more than: {', '.join(beaten)}."
        if beaten
        else "The model's embeddings tell no more than guesses without the model.",
        "alarm": False,
        "columns": ["guess", "accuracy", "F1"],
        "rows": rows,
        "notes": [str(data["setting"])],
    }


def _interval(one: dict[str, Any], middle: str = "mean") -> str:
    """Return a figure with its 95% interval."""
    return f"{one[middle]:.4g} ({one['low']:.4g} to {one['high']:.4g})"


_KINDS: tuple[tuple[str, tuple[str, ...], Callable[[dict[str, Any]], Finding]], ...] = (
    (AUDIT_NAME, ("finding", "violated", "certified", "lower_bound", "profile"), _audit),
    (MEMBERSHIP_NAME, ("attacks", "verdict", "notes"), _membership),
    (RECONSTRUCTION_NAME, ("attack", "baselines", "beats_mean_image"), _reconstruction),
    (ATTRIBUTES_NAME, ("attribute", "baselines", "beats"), _attributes),
)


# Runs that differ in one of these are not comparable by epsilon or accuracy.
_MUST_AGREE = {
    "dataset": "data set",
    "level": "unit that is protected",
    "adjacency": "adjacency",
    "delta": "delta",
    "score": "figure of the test data",
}


def compare_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return why runs are not comparable, notes about them, and those on the Pareto frontier.

    Args:
        runs: The data of each run, as `run_data` returns it, with its `label`.

    Returns:
        `obstacles`: sentences that say in what guarantees or data differ; `notes`: sentences;
        `frontier`: the labels of runs that no other beats in accuracy, epsilon and bytes at once,
        empty if there are obstacles.
    """
    figures = [run["figures"] for run in runs]
    obstacles = [
        f"the {what} differs ({', '.join(sorted({str(one[key]) for one in figures}))})"
        for key, what in _MUST_AGREE.items()
        if len({one[key] for one in figures}) > 1
    ]
    notes = [
        "If the same people's data went into several of these runs, their privacy losses add up."
    ]
    if len({one["channel"] for one in figures}) > 1:
        notes.append("The runs trust different parties: see who sees it in each section.")
    if any(run["state"] == "unfinished" for run in runs):
        notes.append("Unfinished runs are shown up to their last round.")
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
    """Return the indices of the points on the Pareto frontier, in increasing order.

    A point is not on it if another one is at least as good in all three and better in one. A larger
    accuracy, a smaller epsilon and fewer bytes are better.

    Args:
        points: (accuracy, epsilon, bytes); an epsilon of None is infinite, and a point without
            accuracy or bytes is left out.
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


OnRun = Callable[[int, int, str], None]  # number of runs read, of how many, the next folder


def report_of(folders: Sequence[Path], on_run: OnRun | None = None) -> dict[str, Any]:
    """Return the data of a report about one run or several.

    Args:
        folders: The folders of the runs, finished or not.
        on_run: Called before each run is read with the number of runs read, the number of all, and
            the name of the next folder.

    Returns:
        `runs`: the data of each, see `run_data`; `statement`: the three texts that the page opens
        with; `comparison`: see `compare_runs`, None for one run. The same folders give the same
        data.

    Raises:
        ParameterError: If a folder is named twice.
        OutputError: If a folder holds no run, or its files are damaged or contradict each other.
        LedgerError: If a ledger is damaged or lacks charges.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ParameterError("a run folder is named twice; name each once")
    runs = []
    for number, folder in enumerate(folders):
        if on_run:
            on_run(number, len(folders), folder.name)
        runs.append(run_data(folder))
    for run, label in zip(runs, _labels(runs), strict=True):
        run["label"] = label
    return {
        "runs": runs,
        "statement": _statement(runs),
        "comparison": compare_runs(runs) if len(runs) > 1 else None,
    }


def _statement(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the three sentences that the page opens with."""
    if len(runs) == 1:
        return list(runs[0]["statement"])
    stated = {}
    for run in runs:
        protected, spent, assumes = run["statement"]
        stated[run["label"]] = PrivacyStatement(protected=protected, spent=spent, assumes=assumes)
    return summary_of(stated)


def run_data(folder: Path) -> dict[str, Any]:
    """Return the data of one run: state, text, figures, rounds, clients, findings and spec.

    What was spent is computed again from the run's ledger, if it has one.

    Args:
        folder: The run's folder.

    Raises:
        OutputError: If the folder holds no run, or its files are damaged or contradict each other.
        LedgerError: If the ledger is damaged or lacks charges.
    """
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
        "statement": statement_of(record, accounts["epsilon"], accounts["clients"]).sentences(),
        "facts": facts(record, accounts),
        "simulated_because": simulated_because(record),
        "on_one_machine": spec.runtime.backend != "flower",
        "has_sites": record.has_sites,
        "figures": _figures(record, accounts),
        "rows": record.rows,
        "accounts": accounts,
        "groups": result["groups"] if result else [],
        "findings": findings(folder),
        "diagnosis": (result or {}).get("diagnosis"),
        "warnings": [*map(str, (result or {}).get("warnings", [])), *_doubts(record, accounts)],
        "spec": toml_text(spec.plain()),
        "spec_hash": spec.hash,
        "sottovoce": str(record.header.get("sottovoce", "unknown")),
        "repeat": _repeat(record),
    }


def _labels(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the label of each run: its name, with its folder or a number if not unique."""
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
    if record.result.get("diverged"):
        return "diverged"
    return "halted" if record.result.get("halted") else "finished"


def _figures(record: RunRecord, accounts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers by which runs are compared."""
    spec, rows = record.spec, record.rows
    last = record.result or next((row for row in reversed(rows) if row["accuracy"] is not None), {})
    clients = len(record.header.get("clients", [])) or len(accounts["clients"])
    totals = {
        name: sum(row[name] for row in rows)
        for name in ("payload_bytes_up", "total_bytes_up", "payload_bytes_down", "total_bytes_down")
    }
    return {
        "accuracy": last.get("accuracy"),
        "score": last.get("score", "accuracy"),
        "metrics": figures_of(last) if last else {},
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
    """Return how many clients have no budget for another round.

    For a run that has not ended: how many were out of budget in the last round. In a federation
    this is the server's count; a site may refuse by its own ledger.
    """
    if record.result is None:
        return int(record.rows[-1]["clients_out_of_budget"]) if record.rows else 0
    return sum(bool(row["ran_out"]) for row in accounts["clients"])


def _doubts(record: RunRecord, accounts: Mapping[str, Any]) -> list[str]:
    found = list(accounts["warnings"])
    stated = record.header["spec_hash"]
    if stated != record.spec.hash:
        found.append(
            f"the spec in run.json has hash {record.spec.hash}, but the file states {stated}: it "
            "was edited, or written by another version"
        )
    last = record.rows[-1]["accuracy"] if record.rows else None
    claimed = (record.result or {}).get("accuracy")
    if last is not None and claimed is not None and abs(last - claimed) > 1e-9:
        found.append(
            f"result.json has accuracy {claimed:.4f}, but the last round in metrics.jsonl has "
            f"{last:.4f}: one of them was edited"
        )
    missed = sum(row["clients_asked"] - row["clients_received"] for row in record.rows)
    if missed and record.has_sites:
        found.append(
            f"{missed} requested replies were not used: refused, late, lost or not as planned; the "
            "server counts them as charged, while a site that refused was not charged"
        )
    elif missed:
        found.append(
            f"{missed} requested replies were not used: late, lost or not as planned; they are "
            "charged nevertheless"
        )
    return found


def _repeat(record: RunRecord) -> dict[str, str]:
    """Return a command that repeats the run, and what repeating it means."""
    if record.spec.runtime.backend == "flower":
        command = "sottovoce deploy run FEDERATION spec.toml --out AGAIN"
    else:
        command = "sottovoce run spec.toml --out AGAIN"
    if record.spec.randomness == "seeded":
        note = "The noise comes from the seed, so the messages will be the same."
    else:
        note = (
            "The noise will be new. Two runs on the same people's data spend twice: their "
            "privacy losses add up."
        )
    return {"command": command, "note": note}
