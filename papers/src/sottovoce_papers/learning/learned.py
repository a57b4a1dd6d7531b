"""Whether a setting learns at all: the trivial score, and the floor for training without noise.

Where training without noise learns little, mechanisms cannot be told apart: all of them look as
good as no noise. Rows of such a setting stay in the table and get no verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sottovoce_papers.experiment import Cell, Row
from sottovoce_papers.grid_files import EPSILON, MECHANISM, FigureOptions
from sottovoce_papers.learning.rows import TRIVIAL, Summary, named_with_epsilon

Setting = tuple[tuple[str, Cell], ...]
FLOOR = "learned_from"  # The column of the floors.


def setting_of(row: Summary) -> Setting:
    """Return all axes that a row shares with training without noise: model, data, schedule."""
    return tuple((n, value) for n, value in row.key.items() if n not in (MECHANISM, EPSILON))


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The rows of a study, and what training without noise must reach in each setting."""

    options: FigureOptions
    rows: Sequence[Summary]

    def has_learned(self, row: Summary) -> bool | None:
        """Return whether training without noise learns in the row's setting; None if unknown."""
        reached = self._without_noise().get(setting_of(row))
        if reached is None:
            return None
        trivial = self._trivial(row)
        return reached >= self._floor(row) and (trivial is None or reached > trivial)

    def sentences(self) -> list[str]:
        """Return what the page says about trivial scores, floors and missing baselines."""
        private = {
            setting_of(row): row
            for row in self.rows
            if row.epsilon is not None and row.published is None
        }
        settings = {**private, **{setting_of(row): row for row in self._plain_rows()}}
        lines = [self._constant_answers(), self._at_chance()]
        lines += [self._not_learned(r) for r in settings.values() if self.has_learned(r) is False]
        unknown = [row for key, row in private.items() if key not in self._without_noise()]
        if unknown and len(unknown) == len(private):
            lines.append(
                "This page has no training without noise, so it does not show whether the model "
                "learns with this schedule."
            )
        elif unknown:
            named = "; ".join(map(_name, unknown))
            lines.append(f"Training without noise is missing for {named}.")
        return [line for line in lines if line]

    def with_floors(self, cells: Sequence[Row]) -> list[Row]:
        """Return the page's table with the floor of each row, if the study states any."""
        if not self.options.learned_from:
            return list(cells)
        return [
            {**own, FLOOR: self._floor(row) or None}
            for row, own in zip(self.rows, cells, strict=True)
        ]

    def _not_learned(self, row: Summary) -> str:
        asked = [f"{self._floor(row):.0%} are asked for"] if self._floor(row) else []
        trivial = self._trivial(row)
        asked += [f"the best constant answer has {trivial:.2%}"] if trivial is not None else []
        return (
            f"Not learned: {_name(row)}. Without noise it reaches "
            f"{self._without_noise()[setting_of(row)]:.2%} ({', '.join(asked)}), so there is no "
            "verdict about its rows."
        )

    def _constant_answers(self) -> str:
        known: dict[str, None] = {}
        for row in self.rows:
            trivial = self._trivial(row)
            if trivial is not None:
                panel = self._panel(row)
                known[f"{trivial:.2%}" + ("" if panel is None else f" ({panel})")] = None
        if not known:
            return ""
        regression = any(row.r_squared for row in self.rows)
        what = "the median of the targets; its R-squared is 0 or less" if regression else ""
        what = what or "the most frequent class"
        return f"The best constant answer on the test data ({what}) scores {', '.join(known)}."

    def _at_chance(self) -> str:
        found = []
        for row in self.rows:
            trivial = self._trivial(row)
            if trivial is None or row.mean is None or row.interval is None:
                continue
            if row.interval[0] <= trivial:
                found.append(named_with_epsilon(row))
        if not found:
            return ""
        return f"No better than the best constant answer, by their intervals: {'; '.join(found)}."

    def _plain_rows(self) -> list[Summary]:
        return [
            row
            for row in self.rows
            if row.epsilon is None and row.published is None and row.mean is not None
        ]

    def _without_noise(self) -> Mapping[Setting, float]:
        found: dict[Setting, float] = {}
        for row in self._plain_rows():
            key = setting_of(row)
            found[key] = max(row.mean or 0.0, found.get(key, 0.0))
        return found

    def _panel(self, row: Summary) -> Cell:
        return row.key[self.options.panels] if self.options.panels else None

    def _floor(self, row: Summary) -> float:
        floor = self.options.learned_from
        if isinstance(floor, Mapping):
            return floor.get(str(self._panel(row)), 0.0)
        return floor or 0.0

    def _trivial(self, row: Summary) -> float | None:
        found = [
            one.first[TRIVIAL]
            for one in self.rows
            if setting_of(one) == setting_of(row) and one.first[TRIVIAL] is not None
        ]
        return float(found[0]) if found else None  # type: ignore[arg-type]


def _name(row: Summary) -> str:
    """Return the setting of a row, or "this grid" if there are no further axes."""
    return row.named(apart_from=(EPSILON,)).removeprefix(row.mechanism).lstrip(", ") or "this grid"
