"""Averages of the models that the server releases; training continues from the last model itself.

An average is post-processing of released models, so it costs no privacy. It is part of the
algorithm's state, and so of each checkpoint: a run that is resumed has the same bits.

Reference: Polyak and Juditsky 1992.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError, ParameterError, UnknownNameError
from sottovoce.federated.algorithms.algorithm import MAX_BYTES, State

AVERAGED, RECENT = "averaged", "recent_models"  # Keys of the algorithm's state.
_KEYS = {"ema": "decay", "mean": "rounds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAverage:
    """An average of the models after the rounds so far.

    Attributes:
        decay: For an exponential moving average: the model of each round has `decay` times the
            weight of the next one's, and the weights add up to one from the first round on.
        last: For a plain mean: the number of models in it, those of the last rounds.

    Raises:
        ParameterError: A value is out of its range, or not exactly one of the two is given.
    """

    decay: float | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        if (self.decay is None) == (self.last is None):
            raise ParameterError(
                "an average of models needs either a decay or a number of models; give one of them"
            )
        if self.decay is not None and not 0.0 < parameter_rules.finite("decay", self.decay) < 1.0:
            raise ParameterError(f"decay must lie strictly between 0 and 1, got {self.decay}")
        if self.last is not None:
            parameter_rules.integer("rounds", self.last, low=2, high=10**6)

    def check_memory(self, dimension: int) -> None:
        """Raise ConfigError if the models that are kept would take more than 2 GiB."""
        needed = 8 * (self.last or 1) * dimension
        if needed > MAX_BYTES:
            raise ConfigError(
                f"'algorithm.averaging' keeps {self.last} models of {dimension} parameters, "
                f"{needed / 2**30:.1f} GiB and more than the limit of {MAX_BYTES / 2**30:g} GiB; "
                "average fewer rounds, or use kind = 'ema', which keeps one model"
            )

    def after_round(self, model: Vector, state: State, number: int) -> State:
        """Return the average after a round, and what is kept for the next one, by name.

        Args:
            model: The model after the round.
            state: The algorithm's state before the round.
            number: The number of models so far, this one included.
        """
        if self.decay is not None:
            if number == 1:
                return {AVERAGED: model.copy()}
            share = (1.0 - self.decay) / -np.expm1(number * np.log(self.decay))
            return {AVERAGED: state[AVERAGED] + share * (model - state[AVERAGED])}
        assert self.last is not None, "it was checked"
        kept = [*state[RECENT], model] if number > 1 else [model]
        recent = np.stack(kept[-self.last :])
        return {AVERAGED: recent.mean(axis=0), RECENT: recent}


def average_of(table: Mapping[str, Any], where: str) -> ModelAverage:
    """Return the average that a table of a spec describes.

    Args:
        table: The table, `{kind = "ema", decay = ...}` or `{kind = "mean", rounds = ...}`.
        where: Its name in the spec, for messages.

    Raises:
        ConfigError: The table has no `kind`, lacks a key or has a bad value.
        UnknownNameError: There is no such kind, or it has no such key.
    """
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        raise ConfigError(f"'{where}' must be a table with the 'kind' of an average, such as 'ema'")
    kind = table["kind"]
    if kind not in _KEYS:
        raise UnknownNameError(f"{UnknownNameError.among('average', kind, _KEYS)} (in [{where}])")
    key = _KEYS[kind]
    for name in table:
        if name not in ("kind", key):
            raise UnknownNameError(f"{UnknownNameError.among('key', name, [key])} (in [{where}])")
    if key not in table:
        raise ConfigError(f"'{where}.{key}' is missing; add it to the spec")
    try:
        if kind == "ema":
            return ModelAverage(decay=table[key])
        return ModelAverage(last=table[key])
    except ParameterError as error:
        raise ConfigError(f"[{where}]: {error}") from None
