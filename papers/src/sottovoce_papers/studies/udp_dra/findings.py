"""Rows, pictures and verdict of the reconstruction study, from its cells."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sottovoce.auditing.reconstruction_scores import (
    GRAY,
    MEAN_IMAGE,
    ReconstructionScores,
    beats,
    difference,
    gains,
    interval,
    summary,
)
from sottovoce.core.charts.grids import ImageGrid, Picture, PictureRow
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce_papers.experiment import Figure, Row
from sottovoce_papers.studies.udp_dra.cells import ORIGINAL, scores_of
from sottovoce_papers.udp_mechanisms import (
    GAUSSIAN,
    NO_PRIVACY,
    STAIRCASE,
    describe_budgets,
)

Cell = Mapping[str, Any]
Name = tuple[str, float | None]
Printed = Mapping[tuple[str, float | None], Mapping[str, float]]

_NO_ATTACK = (ORIGINAL, GRAY, MEAN_IMAGE)


def rows(cells: Sequence[Cell], printed: Mapping[str, Printed]) -> list[Row]:
    """Return a row for each guess, with the numbers that the paper prints."""
    return [
        _row(cell, _reference(cells, cell), printed)
        for cell in cells
        if cell["mechanism"] != ORIGINAL
    ]


def _row(cell: Cell, reference: ReconstructionScores, printed: Mapping[str, Printed]) -> Row:
    own = scores_of(cell)
    row: dict[str, Any] = {
        name: cell[name] for name in ("part", "batch", "mechanism", "epsilon", "updates")
    }
    for name, value in summary(own).items():
        row[name] = value and value["mean"]
        row |= {f"{name}_{end}": value and value[end] for end in ("low", "high")}
    attacked = cell["mechanism"] not in _NO_ATTACK
    gain = gains(own, reference) if attacked else {}
    for name in ("mse", "ssim"):
        row[f"beats_mean_image_{name}"] = beats(gain[name]) if name in gain else None
    leaked = _leaked(cell) if "unseen_mse" in cell else None
    for end in ("mean", "low", "high"):
        row[f"mse_less_on_own_rows_{end}"] = leaked and leaked[end]
    row["total_variation"] = cell.get("total_variation")
    row["target_accuracy"] = cell.get("accuracy")
    paper = printed.get(cell["part"], {}).get((cell["mechanism"], cell["epsilon"]), {})
    if cell["batch"] > 1:
        # The tables do not say how many images an update has; one is the attacker's best case.
        paper = {}
    return row | {f"paper_{name}": paper.get(name) for name in ("mse", "mae", "psnr", "ssim")}


def _leaked(cell: Cell) -> dict[str, float]:
    """Return by how much the model's training rows are guessed better than other rows."""
    return difference(np.array(cell["unseen_mse"]), scores_of(cell).mse)


def _reference(cells: Sequence[Cell], cell: Cell) -> ReconstructionScores:
    """Return the mean image's scores on the images of a cell."""
    about = ("batch", "updates")
    return next(
        scores_of(one)
        for one in cells
        if one["mechanism"] == MEAN_IMAGE and all(one[name] == cell[name] for name in about)
    )


# -- figures -------------------------------------------------------------------------------------


def figures(cells: Sequence[Cell]) -> list[Figure]:
    """Return similarity by epsilon for each part and batch size, and pictures."""
    found = []
    for part, batch in dict.fromkeys((cell["part"], cell["batch"]) for cell in cells):
        own = [cell for cell in cells if cell["part"] == part and cell["batch"] == batch]
        name = f"{part.replace(', ', '-').replace(' ', '-')}-{batch}"
        if len({cell["epsilon"] for cell in own}) > 2:
            found.append(_by_epsilon(own, part, batch, f"ssim-{name}"))
        if any(cell["mechanism"] == ORIGINAL for cell in own):
            found.append(_grid(own, part, batch, f"pictures-{name}"))
    return found


def _by_epsilon(cells: Sequence[Cell], part: str, batch: int, name: str) -> Figure:
    """Return the picture of SSIM by epsilon; guesses without epsilon are horizontal lines."""
    epsilons = sorted({cell["epsilon"] for cell in cells if cell["epsilon"] is not None})
    names = dict.fromkeys(cell["mechanism"] for cell in cells if cell["mechanism"] != ORIGINAL)
    lines = []
    for mechanism in names:
        own = [cell for cell in cells if cell["mechanism"] == mechanism]
        own = own * len(epsilons) if own[0]["epsilon"] is None else own
        values = [interval(_ssim(cell)) for cell in own]
        lines.append(
            ChartLine(
                name=mechanism,
                x=epsilons,
                y=[value["mean"] for value in values],
                low=[value["low"] for value in values],
                high=[value["high"] for value in values],
            )
        )
    return Figure(
        name=name,
        caption=f"Means over updates, bands Student's 95% intervals; '{GRAY}' and 'mean image' "
        "need no attack.",
        chart=LineChart(
            title=f"SSIM by epsilon: {part}, {_images(batch)}",
            x_label="epsilon",
            y_label="SSIM",
            lines=lines,
        ),
    )


def _ssim(cell: Cell) -> Any:
    found = scores_of(cell).ssim
    assert found is not None, "images of CIFAR-10 are larger than the window of SSIM"
    return found


def _grid(cells: Sequence[Cell], part: str, batch: int, name: str) -> Figure:
    """Return originals and below them the reconstructions at each mechanism's largest epsilon."""
    largest = max((cell["epsilon"] for cell in cells if cell["epsilon"] is not None), default=None)
    shown = [cell for cell in cells if cell["epsilon"] in (None, largest)]
    order = sorted(shown, key=lambda cell: cell["mechanism"] != ORIGINAL)  # stable
    grid = ImageGrid(
        title=f"Originals and reconstructions: {part}, {_images(batch)}",
        columns=[str(number + 1) for number in range(len(order[0]["pictures"]))],
        rows=[
            PictureRow(
                name=cell["mechanism"],
                pictures=[
                    Picture(source=source, caption="" if cell["mechanism"] == ORIGINAL else caption)
                    for source, caption in cell["pictures"]
                ],
            )
            for cell in order
            if cell["mechanism"] != GRAY
        ],
    )
    budget = "" if largest is None else f" Mechanisms at epsilon = {largest:g}."
    return Figure(name=name, caption=f"The first images, as they were drawn.{budget}", chart=grid)


# -- verdict -------------------------------------------------------------------------------------


def verdict(cells: Sequence[Cell]) -> str:
    """Return where an attack beats the mean image, and whether the staircase differs."""
    lines = []
    for part, batch in dict.fromkeys((cell["part"], cell["batch"]) for cell in cells):
        own = [cell for cell in cells if cell["part"] == part and cell["batch"] == batch]
        name = f"{part.capitalize()}, {_images(batch)}"
        lines.append(f"{name}: {_of_part(cells, own)}")
        if any("unseen_mse" in cell for cell in own):
            lines.append(f"{name}: {_of_training(own)}")
        private = [cell for cell in own if cell["epsilon"] is not None]
        if private:
            lines.append(f"{name}: {_staircase(private)}")
    return "\n".join(lines)


def _images(batch: int) -> str:
    return "one image an update" if batch == 1 else f"{batch} images an update"


def _of_training(cells: Sequence[Cell]) -> str:
    """Return which guesses are better because the model was trained on the rows."""
    leaks = {_name(cell): _leaked(cell) for cell in cells if "unseen_mse" in cell}
    worse = [name for name, value in leaks.items() if beats(value)]
    told = f"with {describe_budgets(worse)}" if worse else "nowhere"
    return (
        "outputs reveal any row, trained on or not; rows of the training set are guessed better "
        f"than rows that the model never saw (MSE, 95%) {told}."
    )


def _of_part(cells: Sequence[Cell], own: Sequence[Cell]) -> str:
    reference = _reference(cells, own[0])
    assert reference.ssim is not None
    base = interval(reference.ssim)
    told: dict[str, list[Name]] = {}
    for cell in own:
        if cell["mechanism"] not in _NO_ATTACK:
            gain = gains(scores_of(cell), reference)
            better = " and ".join(name.upper() for name in ("mse", "ssim") if beats(gain[name]))
            told.setdefault(better, []).append(_name(cell))
    lost = told.pop("", [])
    plain = [cell for cell in own if cell["mechanism"] == NO_PRIVACY]
    first = ""
    if plain:
        value = interval(_ssim(plain[0]))
        first = (
            f"without privacy SSIM is {value['mean']:.3f} ({value['low']:.3f} to "
            f"{value['high']:.3f}); the mean image, which needs no attack, has {base['mean']:.3f} "
            f"({base['low']:.3f} to {base['high']:.3f}). "
        )
    won = "; ".join(f"in {better} with {describe_budgets(names)}" for better, names in told.items())
    beaten = f"The mean image is beaten {won}." if won else "Nothing beats it."
    rest = f" It is not beaten with {describe_budgets(lost)}." if lost else ""
    return f"{first}{beaten}{rest}"


def _name(cell: Cell) -> Name:
    return cell["mechanism"], cell["epsilon"]


def _staircase(cells: Sequence[Cell]) -> str:
    """Return the paired difference of staircase and Gaussian on the same images."""
    found = {(cell["mechanism"], cell["epsilon"]): scores_of(cell) for cell in cells}
    counts = {"higher": 0, "lower": 0, "no clear difference": 0}
    parts = []
    for epsilon in sorted({epsilon for _, epsilon in found}):
        pair = found[STAIRCASE, epsilon].mse - found[GAUSSIAN, epsilon].mse
        value = interval(pair)
        told = (
            "higher"
            if value["low"] > 0
            else "lower"
            if value["high"] < 0
            else "no clear difference"
        )
        counts[told] += 1
        ends = f"{value['low']:+.2g} to {value['high']:+.2g}"
        parts.append(f"{value['mean']:+.2g} ({ends}) at epsilon {epsilon:g}")
    return (
        f"the staircase's MSE minus the Gaussian's is {', '.join(parts)}: higher in "
        f"{counts['higher']}, lower in {counts['lower']}, no clear difference in "
        f"{counts['no clear difference']} of {len(parts)}, where 1 in 20 differs by chance."
    )
