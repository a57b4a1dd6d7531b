"""Learning rates that change from round to round, as a pure function of the round.

    RateSchedule.of({"kind": "cosine", "warmup_rounds": 5}, rounds=100).factor(round_number)

The factor multiplies the learning rate. In the `warmup_rounds` first rounds it rises linearly, as
1/(w + 1), 2/(w + 1) ... w/(w + 1). Afterwards, with x from 0 in the first round to 1 in the last:

    constant      1
    linear        1 - (1 - final_factor) x
    cosine        final_factor + (1 - final_factor) (1 + cos(pi x))/2
    exponential   final_factor^x
    step          factor^k after k times `every` rounds

It reads neither data nor messages, so it costs no privacy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ConfigError, ParameterError, UnknownNameError

# The keys of each kind in addition to `warmup_rounds`.
_KEYS: dict[str, tuple[str, ...]] = {
    "constant": (),
    "linear": ("final_factor",),
    "cosine": ("final_factor",),
    "exponential": ("final_factor",),
    "step": ("every", "factor"),
}
CONSTANT = {"kind": "constant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSchedule:
    """The factor of a learning rate in each round of a run.

    Attributes:
        rounds: The number of rounds of the run.
        kind: How the factor falls: "constant", "linear", "cosine", "exponential" or "step".
        warmup_rounds: Number of rounds in which it rises first.
        final_factor: The factor in the last round, for the kinds that have one.
        every: Number of rounds between two steps, for the kind "step".
        step_factor: What the rate is multiplied by at each of them.

    Raises:
        ParameterError: A value is out of its range.

    Examples:
        >>> cosine = RateSchedule(rounds=5, kind="cosine", final_factor=0.1)
        >>> [round(cosine.factor(number), 3) for number in range(1, 6)]
        [1.0, 0.868, 0.55, 0.232, 0.1]
    """

    rounds: int
    kind: str = "constant"
    warmup_rounds: int = 0
    final_factor: float = 0.0
    every: int = 1
    step_factor: float = 0.1

    def __post_init__(self) -> None:
        parameter_rules.integer("warmup_rounds", self.warmup_rounds, low=0, high=2**32)
        if self.warmup_rounds >= self.rounds:
            raise ParameterError(
                f"warmup_rounds = {self.warmup_rounds} leaves no round of {self.rounds} with the "
                "full learning rate; give a smaller number"
            )
        parameter_rules.integer("every", self.every, low=1, high=2**32)
        parameter_rules.fraction("factor", self.step_factor)
        if self.kind == "exponential":
            parameter_rules.fraction("final_factor", self.final_factor)
        elif not 0.0 <= parameter_rules.finite("final_factor", self.final_factor) <= 1.0:
            raise ParameterError(f"final_factor must lie in [0, 1], got {self.final_factor}")

    @classmethod
    def of(cls, table: Mapping[str, Any], *, rounds: int, where: str) -> "RateSchedule | None":
        """Return the schedule that a table of a spec describes.

        Args:
            table: The table, as `check_table` returns it.
            rounds: The number of rounds of the run.
            where: The table's name, for messages.

        Returns:
            The schedule; None if the learning rate is the same in all rounds.

        Raises:
            ConfigError: A value is out of its range, or the warm-up is longer than the run.
        """
        if table == CONSTANT:
            return None
        given = {("step_factor" if key == "factor" else key): table[key] for key in table}
        if table["kind"] == "exponential" and "final_factor" not in table:
            raise ConfigError(f"'{where}.final_factor' is missing; add it to the spec")
        try:
            return cls(rounds=rounds, **given)
        except ParameterError as error:
            raise ConfigError(f"[{where}]: {error}") from None

    def factor(self, number: int) -> float:
        """Return what the learning rate is multiplied by in a round, counted from 1."""
        after = number - self.warmup_rounds - 1  # 0 in the first round with the full rate.
        if after < 0:
            return number / (self.warmup_rounds + 1)
        progress = min(1.0, after / max(1, self.rounds - self.warmup_rounds - 1))
        match self.kind:
            case "linear":
                return 1.0 - (1.0 - self.final_factor) * progress
            case "cosine":
                share = 0.5 * (1.0 + math.cos(math.pi * progress))
                return self.final_factor + (1.0 - self.final_factor) * share
            case "exponential":
                return float(self.final_factor**progress)
            case "step":
                return float(self.step_factor ** (after // self.every))
            case _:
                return 1.0


def check_table(name: str, value: Any) -> dict[str, Any]:
    """Return the table of a schedule, as specs keep it.

    Args:
        name: The table's name in the spec.
        value: The table.

    Raises:
        ConfigError: It is no table with a `kind`.
        UnknownNameError: There is no such kind, or it has no such key.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
        raise ConfigError(
            f"'{name}' must be a table with the 'kind' of a schedule, such as 'cosine'"
        )
    kind = value["kind"]
    if kind not in _KEYS:
        raise UnknownNameError(f"{UnknownNameError.among('schedule', kind, _KEYS)} (in [{name}])")
    known = ("warmup_rounds", *_KEYS[kind])
    for key in value:
        if key != "kind" and key not in known:
            raise UnknownNameError(f"{UnknownNameError.among('key', key, known)} (in [{name}])")
    return dict(value)
