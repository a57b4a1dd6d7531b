"""`plan`: every mechanism at one budget, the smallest error first, and the choice in a sentence."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sottovoce.core import display
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import Table, rounded, show, text_table
from sottovoce.core.domains import clip_norm_of, clipped, geometry_of
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.registry import is_own, parameters_of
from sottovoce.planning.candidates import Candidate, LeftOut, Setting, candidates
from sottovoce.planning.release import sampled_terms

# Calibration is not closer than this: within a mechanism, fewer bits win such a tie.
_TIE = 0.005
# What people expect to win: the sentence says why it does not.
_EXPECTED = ("gaussian", "staircase")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All that keep the budget, best first, and the others with their reasons."""

    setting: Setting
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def choice(self) -> Candidate:
        """The smallest error; for deployment, among those that are sampled exactly, if any are.

        A plug-in has to be asked for by name: nobody here has tested its word.
        """
        exact = [one for one in self._own if one.mechanism.sampling == "exact"]
        return exact[0] if self.setting.exact and exact else self._own[0]

    @property
    def _own(self) -> tuple[Candidate, ...]:
        """Without plug-ins, unless there is nothing else."""
        return tuple(one for one in self.candidates if is_own(one.mechanism)) or self.candidates

    def best_of_each(self) -> "Ranking":
        """One entry for each mechanism: its best setting, or why none of them will do."""
        best: dict[str, Candidate] = {}
        for one in self.candidates:
            first = best.setdefault(one.kind, one)
            tied = one.mse <= (1.0 + _TIE) * first.mse
            if tied and one.bits_per_coordinate < first.bits_per_coordinate:
                best[one.kind] = one
        reasons: dict[str, dict[str, LeftOut]] = {}
        for other in self.left_out:
            if other.kind not in best:
                reasons.setdefault(other.kind, {}).setdefault(other.reason, other)
        left_out = [
            # What holds for every setting is said without one.
            dataclasses.replace(other, setting={}) if len(of_kind) == 1 else other
            for of_kind in reasons.values()
            for other in of_kind.values()
        ]
        return Ranking(
            setting=self.setting,
            candidates=tuple(sorted(best.values(), key=_order)),
            left_out=tuple(left_out),
        )

    def relative_error(self, candidate: Candidate) -> float:
        """The error over that of the choice."""
        return candidate.mse / self.choice.mse

    def explain(self, candidate: Candidate) -> str:
        """One entry beside the choice, in a few words."""
        choice = self.choice
        if candidate is choice:
            return "the choice"
        foreign = "" if is_own(candidate.mechanism) else "; a plug-in, chosen only by name"
        volume = candidate.bytes_per_update / choice.bytes_per_update
        size = "as many bytes" if volume == 1.0 else f"{_times(volume)} the bytes"
        grade = ""
        if self.setting.exact and candidate.mechanism.sampling != "exact":
            grade = "; not sampled exactly"
        return f"{_times(self.relative_error(candidate))} the error, {size}{grade}{foreign}"

    @property
    def explanation(self) -> str:
        """Why the choice is the choice, in one sentence."""
        choice = self.choice
        parts = [
            f"{choice.kind} has the smallest error{self._field()}: {choice.mse:.3g} a coordinate "
            f"(mean square) in {_bits(choice.bits_per_coordinate)}"
        ]
        parts.append(self._for_deployment())
        parts += [self._why_not(kind) for kind in _EXPECTED if kind != choice.kind]
        parts.append(self._close_and_smaller())
        return "; ".join(part for part in parts if part)

    def _field(self) -> str:
        own = "" if is_own(self.candidates[0].mechanism) else " of those that are no plug-ins"
        if not self.setting.exact:
            return own
        better = self._own[0]
        if self.choice.mechanism.sampling != "exact":
            return f"{own}, and none is sampled exactly, as deployment asks"
        less = "" if better is self.choice else f", where {better.kind}, with less, is not"
        return f"{own} of those sampled exactly, as deployment asks{less}"

    def _why_not(self, kind: str) -> str:
        for one in self.candidates:
            if one.kind == kind:
                return f"{kind} has {_times(self.relative_error(one))} that error"
        reasons = [other.reason for other in self.left_out if other.kind == kind]
        return f"{kind} is left out: {reasons[0].partition(';')[0]}" if reasons else ""

    def _for_deployment(self) -> str:
        """Float noise leaks in its last bits: what to take where that counts."""
        exact = [one for one in self._own if one.mechanism.sampling == "exact"]
        if self.choice.mechanism.sampling == "exact" or not exact:
            return ""
        one = exact[0]
        return (
            f"its noise is for simulation, and {one.kind}, sampled exactly, has "
            f"{_times(self.relative_error(one))} that error in {_bits(one.bits_per_coordinate)}"
        )

    def _close_and_smaller(self) -> str:
        """What errs next to no more in fewer bits: somebody may prefer it."""
        choice = self.choice
        close = [
            one
            for one in self._own
            if self.relative_error(one) <= 1.2
            and one.bits_per_coordinate < choice.bits_per_coordinate
            and (one.mechanism.sampling == "exact" or not self.setting.exact)
        ]
        if not close:
            return ""
        one = min(close, key=lambda c: (c.bits_per_coordinate, c.mse))
        return (
            f"{one.kind} has {_times(self.relative_error(one))} that error in "
            f"{_bits(one.bits_per_coordinate)}"
        )

    def describe(self) -> dict[str, Any]:
        """The ranking as plain data."""
        return {
            "ranking": [self._entry(one) for one in self.candidates],
            "left_out": [
                {"mechanism": one.kind, "parameters": dict(one.setting), "reason": one.reason}
                for one in self.left_out
            ],
            "choice": self.choice.kind,
            "explanation": self.explanation,
            "setting": self.setting.describe(),
        }

    def _entry(self, candidate: Candidate) -> dict[str, Any]:
        domain = candidate.mechanism.input_domain
        return {
            "mechanism": candidate.kind,
            "parameters": parameters_of(candidate.mechanism),
            "clip_geometry": geometry_of(domain),
            "clip_norm": clip_norm_of(domain),
            "mse": candidate.mse,
            "relative_mse": self.relative_error(candidate),
            "bits_per_coordinate": candidate.bits_per_coordinate,
            "bytes_per_update": candidate.bytes_per_update,
            "epsilon": candidate.spent.epsilon,
            "accountant": candidate.spent.accountant,
            "assumes": candidate.spent.assumes,
            "sampling_grade": candidate.mechanism.sampling,
            "unbiased_within": candidate.prediction.unbiased_within,
            "explanation": self.explain(candidate),
        }


def rank(setting: Setting) -> Ranking:
    """Every registered mechanism with each of its settings, calibrated to the same budget."""
    answers = list(candidates(setting))
    found = [one for one in answers if isinstance(one, Candidate)]
    left_out = [one for one in answers if isinstance(one, LeftOut)]
    if not found:
        raise ParameterError(_nothing_fits(setting, left_out))
    return Ranking(
        setting=setting, candidates=tuple(sorted(found, key=_order)), left_out=tuple(left_out)
    )


def _order(candidate: Candidate) -> tuple[float, float, str]:
    return candidate.mse, candidate.bits_per_coordinate, candidate.kind


def _nothing_fits(setting: Setting, left_out: list[LeftOut]) -> str:
    """What stands against those that come nearest."""
    needs = [(one.needs, one.kind) for one in left_out if one.needs is not None]
    if needs:
        bits, kind = min(needs)
        return (
            f"no mechanism sends at most {setting.bits:g} bits a coordinate here; the fewest are "
            f"{_bits(bits)}, by '{kind}'"
        )
    reasons = dict.fromkeys(one.reason for one in left_out if one.fits)
    return (
        f"no mechanism keeps epsilon {setting.epsilon:g} at delta {setting.delta:g} over "
        f"{setting.rounds} rounds: {'; '.join(reasons)}"
    )


def _bits(bits: float) -> str:
    return "1 bit" if bits == 1.0 else f"{bits:g} bits"


def _times(ratio: float) -> str:
    return f"{ratio:.4g} times"


COLUMNS = ["mechanism", "parameters", "mse", "times best", "bits", "bytes", "epsilon", "sampling"]
_SIMULATION_ONLY = {"float": "float: simulation only"}


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

    def shown_rows(self) -> list[list[str]]:
        """Return the rows of a table for people: exactly sampled mechanisms first.

        Float noise leaks in its last bits, so such mechanisms are listed below the others and
        marked. Within both parts the order is that of the list.
        """
        rows = [one.cells() for one in self]
        exact = [row for row in rows if row[-1] == "exact"]
        rest = [[*row[:-1], _SIMULATION_ONLY.get(row[-1], row[-1])] for row in rows]
        return exact + [row for row in rest if row[-1] != "exact"]

    def __str__(self) -> str:
        return f"{text_table(COLUMNS, self.shown_rows())}\n{self.explanation}."

    def _repr_html_(self) -> str:
        rows = display.table(COLUMNS, self.shown_rows(), caption=self._question())
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
