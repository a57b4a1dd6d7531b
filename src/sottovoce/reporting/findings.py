"""What audits and attacks have found of a run, as tables that a page can show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sottovoce.core.errors import OutputError
from sottovoce.core.shown import show_epsilon, show_lower
from sottovoce.runs.folder import ATTRIBUTES_NAME, AUDIT_NAME, MEMBERSHIP_NAME, RECONSTRUCTION_NAME
from sottovoce.runs.record import read_finding

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
