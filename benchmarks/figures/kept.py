"""The pages under results/: which command made each, and whether a full study ran and learned.

A page says what was run: its command, its seeds and what was reduced. Its table says what came out.
What older pages do not say is read from the study itself, and a doubt counts against the page.
"""

import csv
import functools
import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.core.errors import SottovoceError
from sottovoce_papers.experiment import Experiment, find
from sottovoce_papers.grid_files import (
    EPSILON,
    MECHANISM,
    RATE,
    FigureOptions,
    GridFile,
    choices_of,
    read_grid_files,
)
from sottovoce_papers.learning.learned import FLOOR
from sottovoce_papers.page import show_cell

Rows = Sequence[Mapping[str, str]]
_RUN = ["sottovoce", "experiment", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page under results/; one that `experiment publish` wrote lies beside its table."""

    path: Path

    @property
    def command(self) -> str:
        """The command that made the page, in its own words; empty if it does not say so."""
        return self._fact(r"^- Again: `(.+)`$") or self._fact(r"^`([^`]+)` on ")

    @property
    def machine(self) -> str:
        return self._fact(r"^- Machine: (.+)$")

    @property
    def refused(self) -> str:
        """Why the page cannot be judged: it does not say what ran, or contradicts itself."""
        if not self.command:
            return "its page does not say which command made it"
        if not self._is_published:
            return ""
        words, name = shlex.split(self.command), self.path.parent.name
        if words[:4] != [*_RUN, name]:
            return f"its page was made by `{self.command}`, not by `{' '.join([*_RUN, name])}`"
        if self._study is None:
            return f"there is no experiment '{name}'"
        given, told = _seeds(words), self._fact(r"^- Seeds: (\d+)$")
        if given and told and given != told:
            return f"its command has {given} seeds, its page {told}"
        most = max((_trials(row) for row in self.rows if row.get("seeds")), default=None)
        if told and most is not None and most != int(told):
            return f"its page has {told} seeds, its table {most}"
        return "" if self._shows_table else "the table on its page is not data.csv"

    @property
    def reduced(self) -> str:
        """What the run left out of the study, in words; empty for the full study."""
        told = self._fact(r"^\*\*Reduced:\*\* (.+)$")
        if told or not self._is_published or self._study is None:
            return told
        words, planned = shlex.split(self.command), self._study.default_seeds
        given = _seeds(words)
        failed = sum(int(row.get("failed") or 0) for row in self.rows)
        missing = _missing_cells(self._grid, self.rows) if self._grid else 0
        found = (
            ("run with --fast", "--fast" in words),
            ("run with --only", any(word.startswith("--only") for word in words)),
            (f"{given} seeds, not {planned}", bool(given) and int(given) < planned),
            (f"{failed} trials failed", failed > 0),
            (f"{missing} cells of the grid are missing", missing > 0),
        )
        return "; ".join(text for text, holds in found if holds)

    @property
    def not_learned(self) -> str:
        """Where training without noise is below its floor or missing; empty if nowhere."""
        told = re.findall(r"^Not learned: .+$", self._text, re.MULTILINE)
        if told or not self._is_published or self._grid is None:
            return " ".join(told)
        return _below_floors(self._grid, self.rows)

    @property
    def rows(self) -> Rows:
        """The table beside the page; empty if there is none."""
        table = self.path.with_name("data.csv")
        if not self._is_published or not table.exists():
            return []
        with table.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    @property
    def _is_published(self) -> bool:
        return self.path.name == "README.md"

    @property
    def _study(self) -> Experiment | None:
        try:
            return find(self.path.parent.name)
        except SottovoceError:
            return None

    @property
    def _grid(self) -> GridFile | None:
        return _grids().get(self.path.parent.name)

    @property
    def _text(self) -> str:
        return self.path.read_text(encoding="utf-8") if self.path.exists() else ""

    @property
    def _shows_table(self) -> bool:
        """Whether the page has the same table as data.csv beside it, as far as it is rounded."""
        rows = self.rows
        if not rows:
            return False
        lines = [_line(name.replace("_", " ") for name in rows[0])]
        lines += ["| " + " | ".join(["---"] * len(rows[0])) + " |"]
        lines += [_line(show_cell(_cell(text)) for text in row.values()) for row in rows]
        return "\n".join([*lines, "", ""]) in self._text

    def _fact(self, pattern: str) -> str:
        found = re.search(pattern, self._text, re.MULTILINE)
        return found[1].strip() if found else ""


@functools.cache
def _grids() -> dict[str, GridFile]:
    return {grid_file.name: grid_file for grid_file in read_grid_files()}


def _seeds(words: Sequence[str]) -> str:
    """Return the number after --seeds; empty if the command leaves it to the study."""
    return words[words.index("--seeds") + 1] if "--seeds" in words[:-1] else ""


def _trials(row: Mapping[str, str]) -> int:
    return int(row["seeds"]) + int(row.get("failed") or 0)


def _missing_cells(grid: GridFile, rows: Rows) -> int:
    """Return how many cells of a grid have no row; one without a budget stands for all budgets."""
    axes = {
        name: [str(choice.value) for choice in choices_of(axis)]
        for name, axis in grid.axes.items()
        if name != RATE
    }

    def fits(row: Mapping[str, str], cell: Sequence[str]) -> bool:
        return all(
            row.get(name) == value or (name == EPSILON and row.get(name) == "")
            for name, value in zip(axes, cell, strict=True)
        )

    cells = itertools.product(*axes.values())
    return sum(not any(fits(row, cell) for row in rows) for cell in cells)


def _below_floors(grid: GridFile, rows: Rows) -> str:
    """Return the settings in which training without noise does not reach what it must reach."""
    shared = [name for name in grid.axes if name not in (MECHANISM, EPSILON, RATE)]
    plain: dict[tuple[str, ...], float] = {}
    floors: dict[tuple[str, ...], float] = {}
    for row in rows:
        setting = tuple(row.get(name, "") for name in shared)
        floors[setting] = _floor(grid.figure, row)
        if not row.get(EPSILON) and not row.get("published_epsilon") and row["accuracy"]:
            plain[setting] = max(float(row["accuracy"]), plain.get(setting, 0.0))
    told = []
    for setting, floor in floors.items():
        where = f"Without noise{''.join(f', {value}' for value in setting)}: "
        if floor and setting not in plain:
            told.append(f"{where}no training on the page.")
        elif floor and plain[setting] < floor:
            told.append(f"{where}{plain[setting]:.2%}, {floor:.0%} are asked for.")
    return " ".join(told)


def _floor(options: FigureOptions, row: Mapping[str, str]) -> float:
    """Return what training without noise must reach, by the page or else by the study."""
    if FLOOR in row:
        return float(row[FLOOR] or 0.0)
    floor = options.learned_from
    if isinstance(floor, Mapping):
        return floor.get(row.get(options.panels or "", ""), 0.0)
    return floor or 0.0


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cell(text: str) -> str | int | float | bool | None:
    """Return a cell of a CSV file as the value that was written."""
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
