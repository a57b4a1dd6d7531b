"""The ranking of all mechanisms at one budget by predicted error, and the function `plan`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sottovoce.core import display
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import Table, show, show_rounded, text_table
from sottovoce.core.domains import clip_norm_of, clipped_domain, geometry_of
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.registry import is_builtin, parameters_of
from sottovoce.planning.candidates import (
    Candidate,
    ExcludedCandidate,
    PlanSetting,
    generate_candidates,
)
from sottovoce.planning.release import planned_terms, sampled_terms

# Calibration is not more precise than this: within a mechanism, the fewest bits win such a tie.
_TIE = 0.005
_ENOUGH = 1.1  # One bit counts as enough in a secure sum up to so many times the least error.
# Mechanisms that users expect to win: the explanation says why they do not.
_EXPECTED = ("gaussian", "staircase")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The candidates that keep the budget, smallest error first, and the excluded mechanisms.

    Errors are predicted mean squared errors per coordinate of a decoded update.

    Attributes:
        setting: The question that was asked.
        candidates: The mechanisms that keep the budget, at least one, smallest error first.
        left_out: The mechanisms that cannot be used here, with their reasons.
    """

    setting: PlanSetting
    candidates: tuple[Candidate, ...]
    left_out: tuple[ExcludedCandidate, ...]

    @property
    def choice(self) -> Candidate:
        """The candidate with the smallest error; in deployment, of those sampled exactly, if any.

        Deployment means `setting.exact`. A plug-in is chosen only if there is no built-in
        candidate: its privacy claim has not been tested here. Name it in the spec to use it.
        """
        exact = [one for one in self._own if one.mechanism.sampling == "exact"]
        return exact[0] if self.setting.exact and exact else self._own[0]

    @property
    def _own(self) -> tuple[Candidate, ...]:
        """The candidates that are not plug-ins; all candidates if there are no others."""
        return tuple(one for one in self.candidates if is_builtin(one.mechanism)) or self.candidates

    def best_of_each(self) -> "Ranking":
        """Return a ranking with one entry for each mechanism: its best setting, or why it has none.

        Returns:
            The shortened ranking. Of settings of one mechanism whose errors are within 0.5%, the
            precision of calibration, the one with fewer bits stands for it.
        """
        best: dict[str, Candidate] = {}
        for one in self.candidates:
            first = best.setdefault(one.kind, one)
            tied = one.mse <= (1.0 + _TIE) * first.mse
            if tied and one.sent_bits < first.sent_bits:
                best[one.kind] = one
        reasons: dict[str, dict[str, ExcludedCandidate]] = {}
        for other in self.left_out:
            if other.kind not in best:
                reasons.setdefault(other.kind, {}).setdefault(other.reason, other)
        left_out = [
            # A reason that holds for every setting is given without one.
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
        """Return the error of a candidate divided by the error of the choice.

        Args:
            candidate: An entry of the ranking.

        Returns:
            The ratio of the two mean squared errors.
        """
        return candidate.mse / self.choice.mse

    def explain(self, candidate: Candidate) -> str:
        """Return a short comparison of a candidate with the choice.

        Args:
            candidate: An entry of the ranking.

        Returns:
            Its relative error and size, and why it may not be chosen, in a few words; "the choice"
            for the choice itself.
        """
        choice = self.choice
        if candidate is choice:
            return "the choice"
        foreign = (
            "" if is_builtin(candidate.mechanism) else "; a plug-in, used only if a spec names it"
        )
        volume = candidate.bytes_per_update / choice.bytes_per_update
        size = "as many bytes" if volume == 1.0 else f"{_times(volume)} the bytes"
        grade = ""
        if self.setting.exact and candidate.mechanism.sampling != "exact":
            grade = "; not sampled exactly"
        return f"{_times(self.relative_error(candidate))} the error, {size}{grade}{foreign}"

    @property
    def explanation(self) -> str:
        """Why `choice` was chosen, in one sentence without a final period."""
        choice = self.choice
        masked = "" if self.setting.summed_clients is None else " masked"
        parts = [
            f"{choice.kind} has the smallest error{self._field()}: a mean squared error of "
            f"{choice.mse:.3g} per coordinate{self._of_the_mean} in "
            f"{_bits(choice.sent_bits)}{masked}"
        ]
        if self.setting.summed_clients is not None:
            return "; ".join([*parts, self._one_bit()])
        parts.append(self._for_deployment())
        parts += [self._why_not(kind) for kind in _EXPECTED if kind != choice.kind]
        parts.append(self._close_and_smaller())
        return "; ".join(part for part in parts if part)

    @property
    def _of_the_mean(self) -> str:
        clients = self.setting.summed_clients
        return "" if clients is None else f" of the mean of {clients} clients"

    def _one_bit(self) -> str:
        """Return whether one bit per coordinate is enough for a secure sum."""
        single = [one for one in self.candidates if one.bits_per_coordinate == 1.0]
        if not single:
            return "no mechanism with one bit per coordinate fits"
        one = single[0]
        ratio, masked = self.relative_error(one), _bits(one.sent_bits)
        if one is self.choice:
            return "one bit is enough"
        if ratio <= _ENOUGH:
            return f"one bit is enough: {one.kind} has {_times(ratio)} that error in {masked}"
        close = min(
            (other for other in self._own if self.relative_error(other) <= _ENOUGH),
            key=lambda other: other.sent_bits,
        )
        return (
            f"one bit is not enough: {one.kind} has {_times(ratio)} that error in {masked}, and "
            f"{close.kind} {_times(self.relative_error(close))} in {_bits(close.sent_bits)}"
        )

    def _field(self) -> str:
        own = "" if is_builtin(self.candidates[0].mechanism) else " among built-in mechanisms"
        if not self.setting.exact:
            return own
        better = self._own[0]
        if self.choice.mechanism.sampling != "exact":
            return f"{own} (none is sampled exactly, as deployment requires)"
        less = "" if better is self.choice else f" ({better.kind} has less but is not)"
        among = own or " among mechanisms"
        return f"{among} that are sampled exactly, as deployment requires{less}"

    def _why_not(self, kind: str) -> str:
        for one in self.candidates:
            if one.kind == kind:
                return f"{kind} has {_times(self.relative_error(one))} that error"
        reasons = [other.reason for other in self.left_out if other.kind == kind]
        return f"{kind} is left out: {reasons[0].partition(';')[0]}" if reasons else ""

    def _for_deployment(self) -> str:
        """Return which exactly sampled mechanism to deploy, if the choice is not one.

        The low-order bits of floating-point noise can reveal the input.
        """
        exact = [one for one in self._own if one.mechanism.sampling == "exact"]
        if self.choice.mechanism.sampling == "exact" or not exact:
            return ""
        one = exact[0]
        return (
            f"its float noise is for simulation only, while {one.kind} is sampled exactly and has "
            f"{_times(self.relative_error(one))} that error in {_bits(one.bits_per_coordinate)}"
        )

    def _close_and_smaller(self) -> str:
        """Return the candidate with a similar error in the fewest bits, if there is one."""
        choice = self.choice
        close = [
            one
            for one in self._own
            if self.relative_error(one) <= 1.2
            and one.sent_bits < choice.sent_bits
            and (one.mechanism.sampling == "exact" or not self.setting.exact)
        ]
        if not close:
            return ""
        one = min(close, key=lambda c: (c.sent_bits, c.mse))
        ratio, bits = _times(self.relative_error(one)), _bits(one.sent_bits)
        return f"{one.kind} has {ratio} that error in {bits}"

    def describe(self) -> dict[str, Any]:
        """Return the ranking as plain data.

        Returns:
            The content of `plan --json`: "ranking", "left_out", "choice", "explanation" and
            "setting".
        """
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
        local = candidate.local_spent
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
            "masked_bits_per_coordinate": candidate.masked_bits,
            "local_epsilon": None if local is None else local.epsilon,
        }


def rank(setting: PlanSetting) -> Ranking:
    """Calibrate every registered mechanism with each of its settings to one budget, and rank them.

    Args:
        setting: The budget, the clipping and the limits.

    Returns:
        The candidates, smallest predicted error first, and the excluded mechanisms.

    Raises:
        ParameterError: No mechanism keeps the budget within the limits.
    """
    answers = list(generate_candidates(setting))
    found = [one for one in answers if isinstance(one, Candidate)]
    left_out = [one for one in answers if isinstance(one, ExcludedCandidate)]
    if not found:
        raise ParameterError(_nothing_fits(setting, left_out))
    return Ranking(
        setting=setting, candidates=tuple(sorted(found, key=_order)), left_out=tuple(left_out)
    )


def _order(candidate: Candidate) -> tuple[float, float, str]:
    return candidate.mse, candidate.sent_bits, candidate.kind


def _nothing_fits(setting: PlanSetting, left_out: list[ExcludedCandidate]) -> str:
    """Return the message of the error: what excludes the mechanisms that come nearest."""
    needs = [(one.needs, one.kind) for one in left_out if one.needs is not None]
    if needs:
        bits, kind = min(needs)
        return (
            f"no mechanism that sends at most {setting.bits:g} bits per coordinate fits; allow at "
            f"least {_bits(bits)}, which '{kind}' needs"
        )
    reasons = dict.fromkeys(one.reason for one in left_out if one.fits)
    return (
        f"no mechanism keeps epsilon {setting.epsilon:g} at delta {setting.delta:g} over "
        f"{setting.rounds} rounds; raise epsilon, or plan for fewer rounds. The reasons: "
        f"{'; '.join(reasons)}"
    )


def _bits(bits: float) -> str:
    return "1 bit" if bits == 1.0 else f"{bits:g} bits"


def _times(ratio: float) -> str:
    return f"{ratio:.4g} times"


COLUMNS = ["mechanism", "parameters", "mse", "times best", "bits", "bytes", "epsilon", "sampling"]
SUM_COLUMNS = [*COLUMNS[:-1], "masked bits", "local epsilon", COLUMNS[-1]]
_SIMULATION_ONLY = {"float": "float: simulation only"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMechanism:
    """A row of a plan: one mechanism with parameters that keep the budget, and its predicted error.

    Attributes:
        mechanism: The registered name of the mechanism.
        parameters: All parameters, calibrated.
        mse: The predicted mean squared error per coordinate of one decoded update.
        relative_mse: `mse` divided by that of the mechanism that the plan recommends.
        bits_per_coordinate: The bits of a message per coordinate, without its header.
        bytes_per_update: The size of the whole message in bytes, header included.
        epsilon: What all rounds spend; at most the budget.
        accountant: The accountant whose bound that is.
        assumes: What epsilon rests on in addition to its proof, in a sentence; None for nothing.
        sampling_grade: "exact", or "float" for simulation only.
        unbiased_within: The largest absolute coordinate of an update up to which the bias is at
            most 1% of the standard deviation; None if that holds in the whole domain.
        clip_geometry: The norm of the mechanism's domain: "l2", "l1" or "linf".
        clip_norm: The largest norm in that domain.
        explanation: A comparison with the recommended mechanism, in a few words.
        masked_bits_per_coordinate: For a secure sum: the bits of a coordinate of the sum, which
            every masked message has; else None.
        local_epsilon: For a secure sum: what all rounds spend if every message is seen; else None.
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
    masked_bits_per_coordinate: int | None = None
    local_epsilon: float | None = None

    def cells(self) -> list[str]:
        """Return the row of a printed table.

        Returns:
            One text for each of `COLUMNS`; for a secure sum of `SUM_COLUMNS`.
        """
        summed = []
        if self.local_epsilon is not None:
            summed = [str(self.masked_bits_per_coordinate), show(self.local_epsilon, "epsilon")]
        return [
            self.mechanism,
            show_rounded(self.parameters),
            f"{self.mse:.4g}",
            f"{self.relative_mse:.4g}",
            f"{self.bits_per_coordinate:g}",
            str(self.bytes_per_update),
            show(self.epsilon, "epsilon"),
            *summed,
            self.sampling_grade,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedMechanism:
    """A mechanism that cannot be used here, and why.

    Attributes:
        mechanism: The registered name of the mechanism.
        parameters: The parameters that were tried; empty if the reason holds for all of them.
        reason: Why it cannot be used, in a sentence.
    """

    mechanism: str
    parameters: Mapping[str, Any]
    reason: str


class Plan(Table[PlannedMechanism]):
    """A table of the mechanisms that keep the budget, smallest error first: `plan[0]` is the best.

    Prints as a text table; a notebook shows it as HTML. `to_dicts()` and `to_pandas()` convert it.
    """

    __slots__ = ("_all", "_ranking")

    def __init__(self, ranking: Ranking, everything: Ranking) -> None:
        super().__init__(
            [PlannedMechanism(**entry) for entry in ranking.describe()["ranking"]], caption="plan"
        )
        self._ranking, self._all = ranking, everything

    @property
    def columns(self) -> list[str]:
        """The names of the columns of the printed table."""
        return COLUMNS if self._ranking.setting.summed_clients is None else SUM_COLUMNS

    @property
    def explanation(self) -> str:
        """Why the recommended mechanism was chosen, in one sentence without a final period."""
        return self._ranking.explanation

    @property
    def left_out(self) -> Table[ExcludedMechanism]:
        """The mechanisms that cannot be used here, with their reasons."""
        rows = [ExcludedMechanism(**entry) for entry in self._ranking.describe()["left_out"]]
        return Table(rows, caption="left out")

    @property
    def setting(self) -> dict[str, Any]:
        """The question that the plan answers as plain data: budget, rounds, clipping and limits."""
        return self._ranking.setting.describe()

    @property
    def all_settings(self) -> Ranking:
        """The ranking of every setting that was tried, not only the best of each mechanism."""
        return self._all

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data.

        Returns:
            The same as `plan --json` prints: "ranking", "left_out", "choice", "explanation" and
            "setting".
        """
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

        Returns:
            One row per mechanism, with the columns of the printed table.
        """
        rows = [one.cells() for one in self]
        exact = [row for row in rows if row[-1] == "exact"]
        rest = [[*row[:-1], _SIMULATION_ONLY.get(row[-1], row[-1])] for row in rows]
        return exact + [row for row in rest if row[-1] != "exact"]

    def __str__(self) -> str:
        return f"{text_table(self.columns, self.shown_rows())}\n{self.explanation}."

    def _repr_html_(self) -> str:
        rows = display.table(self.columns, self.shown_rows(), caption=self._question())
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
    channel: str = "direct",
    clients: int | None = None,
    honest: int | None = None,
    bits: float | None = None,
    all_settings: bool = False,
    designs: bool = False,
) -> Plan:
    """Rank all mechanisms by the error that they cause within a privacy budget.

    Every registered mechanism is calibrated to the budget. The mean squared error of a decoded
    update is then predicted from the mechanism's law, averaged over updates of full norm.

    Args:
        epsilon: The budget of a client over all `rounds` in which it takes part.
        delta: The failure probability of that budget, strictly between 0 and 1.
        dimension: The number of coordinates of an update.
        rounds: The number of rounds in which a client takes part.
        clip_norm: The largest norm of a contribution; longer ones are clipped to it.
        clip_geometry: The norm that is clipped: "l2", "l1" or "linf".
        records: How many records an update averages; each is clipped to `clip_norm`, and one of
            them is protected. With 1 the whole update is protected.
        adjacency: "zero-out" or "replace-one".
        sampling_rate: The probability of being in the secret sample of a round; None for no
            sampling.
        sampling: How the sample is drawn: "poisson" or "fixed-size".
        sampling_hidden_by: What hides the sample: "own-records", "central-noise" or "secure-sum".
        channel: "direct" (the server sees every message) or "secure_sum" (it sees sums only). For a
            secure sum the error is that of the mean of all clients.
        clients: The number of messages in a secure sum.
        honest: How many of them come from clients that neither drop out nor collude; by default
            all but one.
        bits: The most bits per coordinate that a message may have; None for no limit. In a secure
            sum they are the bits of a masked message.
        all_settings: Rank every setting that was tried, not only the best of each mechanism.
        designs: Also rank mechanisms whose calibration takes about a minute.

    Returns:
        The plan. `plan[0]` has the smallest error; `explanation` says which mechanism is
        recommended, and why.

    Raises:
        ParameterError: A parameter is out of range, or no mechanism keeps the budget, also because
            no bound is proved for such a sample.
        UnknownNameError: There is no such adjacency, geometry, sampling or channel.
        PrivacyError: There is both a sample and a secure sum, or `sampling_hidden_by` is
            "nothing", so sampling does not amplify privacy.

    Examples:
        >>> import sottovoce
        >>> found = sottovoce.plan(epsilon=8.0, delta=1e-5, rounds=100, dimension=1000)
        >>> found[0].mechanism, found[0].sampling_grade
        ('gaussian', 'float')
        >>> [row.mechanism for row in found if row.bits_per_coordinate <= 1][0]
        'gauss_hermite'
    """
    setting = PlanSetting(
        domain=clipped_domain(clip_geometry, dimension, clip_norm, records),
        epsilon=epsilon,
        delta=delta,
        terms=planned_terms(
            sampled_terms(adjacency, sampling_rate, sampling, sampling_hidden_by),
            channel=channel,
            clients=clients,
            honest=honest,
        ),
        rounds=rounds,
        bits=bits,
        designs=designs,
        summed_clients=clients,
    )
    everything = rank(setting)
    return Plan(everything if all_settings else everything.best_of_each(), everything)
