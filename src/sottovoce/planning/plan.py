"""`plan`: every mechanism at one budget, ranked by its error."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sottovoce.core import display
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import Table, rounded, show, text_table
from sottovoce.core.domains import clipped
from sottovoce.planning.candidates import Setting
from sottovoce.planning.ranking import Ranking, rank
from sottovoce.planning.release import sampled_terms

COLUMNS = ["mechanism", "parameters", "mse", "times best", "bits", "bytes", "epsilon", "sampling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One mechanism with parameters that keep the budget, and what it does to an update.

    mse              of a decoded coordinate, predicted; `relative_mse` is beside the best.
    unbiased_within  the norm up to which nothing is cut off; None if there is no such limit.
    sampling_grade   'exact', or 'float' for simulation only.
    """

    mechanism: str
    parameters: Mapping[str, Any]
    mse: float
    relative_mse: float
    bits_per_coordinate: float
    bytes_per_update: int
    epsilon: float
    accountant: str
    assumes: str | None
    sampling_grade: str
    unbiased_within: float | None
    clip_geometry: str
    clip_norm: float
    explanation: str

    def cells(self) -> list[str]:
        """The row of a table, in the order of COLUMNS."""
        return [
            self.mechanism,
            rounded(self.parameters),
            f"{self.mse:.4g}",
            f"{self.relative_mse:.4g}",
            f"{self.bits_per_coordinate:g}",
            str(self.bytes_per_update),
            show(self.epsilon, "epsilon"),
            self.sampling_grade,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlanned:
    """A mechanism that was left out, and why."""

    mechanism: str
    parameters: Mapping[str, Any]
    reason: str


class Plan(Table[Planned]):
    """Mechanisms that keep the budget, the least error first: `plan[0]` is the best."""

    __slots__ = ("_all", "_ranking")

    def __init__(self, ranking: Ranking, everything: Ranking) -> None:
        super().__init__(
            [Planned(**entry) for entry in ranking.describe()["ranking"]], caption="plan"
        )
        self._ranking, self._all = ranking, everything

    @property
    def explanation(self) -> str:
        """Why the first is first, in one sentence."""
        return self._ranking.explanation

    @property
    def left_out(self) -> Table[NotPlanned]:
        """The others, with their reasons."""
        rows = [NotPlanned(**entry) for entry in self._ranking.describe()["left_out"]]
        return Table(rows, caption="left out")

    @property
    def setting(self) -> dict[str, Any]:
        """The question."""
        return self._ranking.setting.describe()

    @property
    def all_settings(self) -> Ranking:
        """Every setting that was tried, not only the best of each mechanism."""
        return self._all

    def to_dict(self) -> dict[str, Any]:
        """As plain data, the same as `plan --json` prints."""
        return self._ranking.describe()

    def _question(self) -> str:
        return ", ".join(
            f"{name} {show(value, 'delta')}"
            for name, value in self.setting.items()
            if value is not None and name != "assumes"
        )

    def __str__(self) -> str:
        rows = text_table(COLUMNS, [one.cells() for one in self])
        return f"{rows}\n{self.explanation}."

    def _repr_html_(self) -> str:
        rows = display.table(COLUMNS, [one.cells() for one in self], caption=self._question())
        return f"{rows}{display.note(f'{self.explanation}.')}"


def plan(
    *,
    epsilon: float,
    delta: float,
    dimension: int,
    rounds: int = 1,
    clip_norm: float = 1.0,
    clip_geometry: str = "l2",
    records: int = 1,
    adjacency: str | Adjacency = Adjacency.ZERO_OUT,
    sampling_rate: float | None = None,
    sampling: str = "poisson",
    sampling_hidden_by: str = "own-records",
    bits: float | None = None,
    all_settings: bool = False,
    designs: bool = False,
) -> Plan:
    """Which mechanism errs least within a budget: all of them calibrated, predicted and ranked.

        plan(epsilon=2, delta=1e-5, rounds=100, dimension=10_000)[0].mechanism

    epsilon, delta  the budget of a client over all `rounds` in which it takes part.
    bits            the most bits a coordinate [any number].
    all_settings    every setting tried, not only the best of each mechanism.
    designs         rank also what takes a minute to calibrate.
    """
    setting = Setting(
        domain=clipped(clip_geometry, dimension, clip_norm, records),
        epsilon=epsilon,
        delta=delta,
        terms=sampled_terms(adjacency, sampling_rate, sampling, sampling_hidden_by),
        rounds=rounds,
        bits=bits,
        designs=designs,
    )
    everything = rank(setting)
    return Plan(everything if all_settings else everything.best_of_each(), everything)
