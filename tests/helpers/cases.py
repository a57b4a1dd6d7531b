"""How many cases a test tries: its usual number, times CASES (1 unless the environment says more).

`make soundness` sets CASES=10. Numbers of random cases go through `cases`, grids of values through
`denser`; examples of property tests are multiplied in conftest.py. Of a long grid `thinned` leaves
some cells to `make test-full`, `make soundness` and `make mutations`.
"""

import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

P = ParamSpec("P")
R = TypeVar("R")

FACTOR = int(os.environ.get("CASES", "1"))
_tried: Counter[str] = Counter()  # by test


def cases(usual: int) -> int:
    """So many cases in place of the usual number."""
    tried = usual * FACTOR
    _tried[_test()] += tried
    return tried


def denser(values: Sequence[float]) -> list[float]:
    """The values, and CASES - 1 more for each, evenly between them (whole numbers stay whole).

    Between positive numbers they are evenly spaced in the logarithm.
    """
    if FACTOR == 1:
        return list(values)
    whole = all(isinstance(value, int) for value in values)
    low, high = min(values), max(values)
    more = (FACTOR - 1) * len(values)
    parts = [number / (more + 1) for number in range(1, more + 1)]
    if low > 0 and not whole:
        between = [math.exp(math.log(low) + part * math.log(high / low)) for part in parts]
    else:
        between = [low + part * (high - low) for part in parts]
    return sorted({*values, *(round(one) if whole else one for one in between)})


def thinned(*axes: Sequence[Any]) -> list[Any]:
    """Every combination of the axes' values, for `parametrize`; only some of them are not slow.

    Those are the corners, where each value is the first or the last of its axis, and one diagonal,
    so that every value of every axis is tried in `make test`, too. A tuple is several values.
    """
    longest = max(len(axis) for axis in axes)
    ends = [{0, len(axis) - 1} for axis in axes]
    quick = set(itertools.product(*ends))
    quick |= {
        tuple((at + turn) % len(axis) for turn, axis in enumerate(axes)) for at in range(longest)
    }
    return [
        pytest.param(
            *itertools.chain.from_iterable(
                axis[at] if isinstance(axis[at], tuple) else (axis[at],)
                for axis, at in zip(axes, cell, strict=True)
            ),
            marks=[pytest.mark.slow] * (cell not in quick),
        )
        for cell in itertools.product(*(range(len(axis)) for axis in axes))
    ]


def counted(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose calls are cases of the test that runs."""

    def calls(*arguments: P.args, **named: P.kwargs) -> R:
        _tried[_test()] += 1
        return function(*arguments, **named)

    return calls


def write(path: Path, tests: Sequence[str]) -> None:
    """How many cases each of these tests has tried, at least one, as JSON."""
    path.write_text(json.dumps({test: max(1, _tried[test]) for test in tests}))


def _test() -> str:
    """The test that runs, as pytest calls it; nothing while modules are imported."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
