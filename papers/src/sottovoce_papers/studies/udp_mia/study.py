"""UDP-FL, table 6: membership inference on CIFAR-10, with and without privacy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sottovoce_papers.experiment import HELD_OUT, Findings, Row, Settings, experiment, number
from sottovoce_papers.learning.study import use_data_dir
from sottovoce_papers.udp_mechanisms import DELTA

if TYPE_CHECKING:  # These import torch, which 'experiment list' does not need.
    from sottovoce_papers.studies.udp_mia.grid import AttackScale
    from sottovoce_papers.studies.udp_mia.trial import CellResult

MEASURES = ("tpr_at_1_percent", "tpr_at_0.1_percent", "balanced_accuracy", "auc")
CHANCE = {
    "tpr_at_1_percent": 0.01,
    "tpr_at_0.1_percent": 0.001,
    "balanced_accuracy": 0.5,
    "auc": 0.5,
}


@experiment(
    "udp-mia",
    title="Membership inference with and without privacy, CIFAR-10 (UDP-FL, table 6)",
    claim="Without privacy Shokri's attack, LiRA and Canary have a TPR at 1% FPR of 0.053, 0.126 "
    "and 0.137 and an AUC of 0.757, 0.716 and 0.719; with DP-SGD, Laplace or staircase noise at "
    "epsilon 2 to 8 TPRs are 0.007 to 0.020, and the staircase has the lowest.",
    seeds=8,
    fast_seeds=3,
    data="cifar10",
    trains=True,
)
def udp_mia(settings: Settings) -> Findings:
    """Run every attack on every recipe; seeds are the target models of each recipe."""
    from sottovoce_papers.studies.udp_mia.grid import FAST, FULL, cells
    from sottovoce_papers.studies.udp_mia.trial import attack_recipe, roc_figures

    assert settings.folder is not None, "a study needs a folder for its models"
    scale = FAST if settings.fast else FULL
    found: list[CellResult] = []
    with use_data_dir(settings.data_dir):
        grid = cells(scale)
        for done, cell in enumerate(grid):
            settings.on_step("recipes", done, len(grid), cell.label)
            found.append(attack_recipe(cell, scale, settings))
        settings.on_step("recipes", len(grid), len(grid), "done")
    rows = [row for result in found for row in _rows(result)]
    return Findings(
        rows=rows,
        figures=roc_figures(found),
        verdict=verdict(rows),
        method=_method(scale, settings),
        tuning=TUNING,
        reduced=_reduced(scale, settings),
        trials=[trial for result in found for trial in result.trials],
    )


def _rows(result: "CellResult") -> list[Row]:
    from sottovoce_papers.studies.udp_mia.grid import PRINTED

    rows: list[Row] = []
    for attack, measured in result.measured.items():
        cell = result.cell
        printed = PRINTED.get((attack.partition("-")[0], cell.mechanism, cell.epsilon))
        row: dict[str, str | float | int | bool | None] = {
            "attack": attack,
            "mechanism": cell.mechanism,
            "epsilon": cell.epsilon,
        }
        for name in MEASURES:
            own = measured.get(name)
            row[name] = own.value if own else None
            row[f"{name}_low"] = own.low if own else None
            row[f"{name}_high"] = own.high if own else None
        tpr, accuracy, auc = printed or (None, None, None)
        row |= {
            "printed_tpr": tpr,
            "printed_accuracy": accuracy,
            "printed_auc": auc,
            "targets": result.targets,
        }
        for name, share in (
            ("members_accuracy", result.members_accuracy),
            ("others_accuracy", result.others_accuracy),
        ):
            row |= {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}
        rows.append(row)
    return rows


def _side(row: Row, name: str) -> int:
    """Return 1 if the interval is above chance, -1 if below, and 0 otherwise."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if not isinstance(low, float) or not isinstance(high, float):
        return 0
    return (low > CHANCE[name]) - (high < CHANCE[name])


def _figure(row: Row, name: str) -> str:
    return f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"


def verdict(rows: Sequence[Row]) -> str:
    """Return where attacks beat chance for each recipe, and where intervals contain chance."""
    lines = _describe_open(rows)
    private = [row for row in rows if row["epsilon"] is not None]
    figures = [(row, name) for row in private for name in MEASURES if row[name] is not None]
    above = [(row, name) for row, name in figures if _side(row, name) > 0]
    below = [(row, name) for row, name in figures if _side(row, name) < 0]
    contained = len(figures) - len(above) - len(below)
    lines.append(
        f"With privacy {contained} of {len(figures)} intervals contain chance; at 95% up to "
        f"{0.05 * len(figures):.1f} may miss it by luck alone."
    )
    if above:
        named = "; ".join(
            f"{_who(row)}: {_words(name)} {_figure(row, name)}" for row, name in above
        )
        lines.append(f"Above chance with privacy: {named}.")
    if below:
        named = "; ".join(
            f"{_who(row)}: {_words(name)} {_figure(row, name)}" for row, name in below
        )
        lines.append(f"Below chance with privacy: {named}.")
    lines.append(_describe_staircase(private))
    return "\n".join(lines)


def _who(row: Row) -> str:
    return f"{row['attack']} on {row['mechanism']} at epsilon {row['epsilon']:g}"


def _words(name: str) -> str:
    return {
        "tpr_at_1_percent": "TPR at 1% FPR",
        "tpr_at_0.1_percent": "TPR at 0.1% FPR",
        "balanced_accuracy": "balanced accuracy",
        "auc": "AUC",
    }[name]


def _describe_open(rows: Sequence[Row]) -> list[str]:
    """Return TPR at 1% FPR and AUC without privacy, one line per recipe."""
    lines: dict[str, list[str]] = {}
    for row in (row for row in rows if row["epsilon"] is None):
        name = "tpr_at_1_percent"
        how = {1: "beats", 0: "does not differ from", -1: "is below"}[_side(row, name)]
        value = row[name]
        assert isinstance(value, float)
        begin = (
            f"{str(row['mechanism']).capitalize()} (models right on "
            f"{_figure(row, 'members_accuracy')} of members, {_figure(row, 'others_accuracy')} of "
            "others), TPR at 1% FPR: "
        )
        lines.setdefault(begin, []).append(
            f"{row['attack']} {how} chance with {_figure(row, name)}, {value / CHANCE[name]:.1f} "
            f"times chance (AUC {_figure(row, 'auc')})"
        )
    return [begin + "; ".join(found) + "." for begin, found in lines.items()]


def _describe_staircase(private: Sequence[Row]) -> str:
    """Return each mechanism's range of rates; the paper says that the staircase's are lowest."""
    name = "tpr_at_1_percent"
    by_mechanism: dict[str, list[Row]] = {}
    for row in private:
        by_mechanism.setdefault(str(row["mechanism"]), []).append(row)
    shown = []
    for mechanism, own in by_mechanism.items():
        ordered = sorted(own, key=lambda row: number(row, name))
        shown.append(
            f"{mechanism} {_figure(ordered[0], name)} to {_figure(ordered[-1], name)}, models "
            f"right on {_figure(own[-1], 'others_accuracy')} of others at the largest epsilon"
        )
    return (
        f"Least and largest TPR at 1% FPR: {'; '.join(shown)}. A model that has learned nothing "
        "reveals nothing, so a low rate alone is no evidence for a mechanism."
    )


TUNING = (
    "Learning rates are fixed for each mechanism: the Gaussian's and the one without privacy were "
    "chosen among a few on held-out training images, the others were not tuned, and no attack "
    f"influenced them. {HELD_OUT}"
)


def _method(scale: "AttackScale", settings: Settings) -> str:
    return (
        f"For each recipe {scale.shadows} shadow models and {settings.seeds} targets of "
        f"'strided_cnn' (33,834 parameters), trained by the same recipe from seeds of their own. "
        f"{scale.candidates} training images are candidates, of which every model has a random "
        f"half; {scale.known} further ones, which the attacker knows, are in all models but the "
        f"overfitted ones. Shadows come in complementary pairs. Recipes: {scale.rounds} rounds of "
        f"a 5% sample of records, 10 clients, clip 1, sample level, zero-out, delta = {DELTA:g}, "
        f"noise calibrated to epsilon; overfitted models train {scale.overfitting_rounds} rounds "
        f"of {100 * scale.overfitting_rate:g}% on the candidates alone.\n"
        "LiRA asks about an image as it is, mirrored and moved by a pixel; Canary makes "
        f"{scale.canary_queries} queries a candidate in {scale.canary_steps} steps. Figures are "
        "means over targets; an interval is the wider, on either side, of Student's over targets "
        "and of the one for all targets' candidates together (95% each; exact for rates, DeLong's "
        "for AUC). Balanced accuracy is at each attack's own threshold.\n"
        "The paper's accuracies are taken as balanced ones. Its models are larger, and it does not "
        "say how many records or shadow models it has."
    )


def _reduced(scale: "AttackScale", settings: Settings) -> str:
    network = "'strided_cnn' of 33,834 parameters in place of the paper's ResNet-18"
    if not settings.fast:
        return f"{network}; {scale.candidates // 2 + scale.known} training images, not 50,000."
    return (
        f"{network}; {scale.candidates // 2} training images, {scale.shadows} shadows, "
        f"{settings.seeds} targets, {scale.rounds} rounds, {len(scale.mechanisms)} mechanisms."
    )
