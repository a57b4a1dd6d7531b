"""Run folders as plain data for a page: every figure that a report shows, and nothing else.

Several runs side by side: are they comparable, and which does no other beat?

What audits and attacks have found of a run, as tables that a page can show.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.display import show_epsilon, show_lower
from sottovoce.core.errors import OutputError, ParameterError
from sottovoce.reporting.statement import Statement, simulated_because, statement_of, summary_of
from sottovoce.reporting.words import facts
from sottovoce.runs.accounts import accounts_of
from sottovoce.runs.folder import ATTRIBUTES_NAME, AUDIT_NAME, MEMBERSHIP_NAME, RECONSTRUCTION_NAME
from sottovoce.runs.loading import toml_text
from sottovoce.runs.record import RunRecord, read_finding, read_record

Finding = dict[str, Any]  # title, verdict, alarm, columns, rows, notes


def findings(folder: Path) -> list[Finding]:
    """One for each file that an audit or an attack has left."""
    found = []
    for name, keys, told in _KINDS:
        data = read_finding(folder / name, keys)
        if data is None:
            continue
        try:
            found.append(told(data))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise OutputError(
                f"{folder / name} is damaged: {type(error).__name__} at {error}; make it again"
            ) from None
    return found


def _audit(data: dict[str, Any]) -> Finding:
    certified, lower = data["certified"], data["lower_bound"]
    rows = [
        ["certified to be at most", "none" if certified is None else show_epsilon(certified)],
        ["surely at least", "infinite" if lower is None else show_lower(lower)],
        ["at delta", f"{data['delta']:g}"],
        ["with confidence", f"{data['confidence']:g}"],
        ["by", str(data["method"])],
        ["what was counted", str(data["trials"])],
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


def _interval(one: dict[str, Any], centre: str = "mean") -> str:
    """A figure with its 95% interval."""
    return f"{one[centre]:.4g} ({one['low']:.4g} to {one['high']:.4g})"


_KINDS: tuple[tuple[str, tuple[str, ...], Callable[[dict[str, Any]], Finding]], ...] = (
    (AUDIT_NAME, ("finding", "violated", "certified", "lower_bound", "profile"), _audit),
    (MEMBERSHIP_NAME, ("attacks", "verdict", "notes"), _membership),
    (RECONSTRUCTION_NAME, ("attack", "baselines", "beats_mean_image"), _reconstruction),
    (ATTRIBUTES_NAME, ("attribute", "baselines", "beats"), _attributes),
)


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
    return {
        "runs": runs,
        "statement": _statement(runs),
        "comparison": compared(runs) if len(runs) > 1 else None,
    }


def _statement(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the three sentences that the page opens with."""
    if len(runs) == 1:
        return list(runs[0]["statement"])
    stated = {}
    for run in runs:
        protected, spent, assumes = run["statement"]
        stated[run["label"]] = Statement(protected=protected, spent=spent, assumes=assumes)
    return summary_of(stated)


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
        "statement": statement_of(record, accounts["epsilon"], accounts["clients"]).sentences(),
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
