"""Designs: what to solve for, its certificate, and where solved ones are kept.

A design is two files, NAME.npz (knots, rows, letters) and NAME.json (the parameters, the digest of
the arrays and what the certificate measured). Reading one checks everything again from the arrays:
a file that was edited, cut or made for other parameters is an error, and a design that fails its
certificate is never used. Common designs come with the package; others are solved once and kept in
a cache folder ($SOTTOVOCE_CACHE, else $XDG_CACHE_HOME/sottovoce, else ~/.cache/sottovoce).
"""

import hashlib
import io
import json
import math
import os
import time
import zipfile
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sottovoce import parameters
from sottovoce.design import metric, window
from sottovoce.design.channel import Channel, IntegerTable, round_metric, round_pure
from sottovoce.design.lower_bound import variance_lower_bound
from sottovoce.errors import DesignError, OutputError, ParameterError
from sottovoce.files import read_json, write_atomic, write_json

Family = Literal["strict", "metric"]

MAX_BITS = 8
MAX_INPUT_BITS = 10
EPSILON_RANGE = (1e-3, 60.0)
TOLERANCE = 1e-12  # of bias (relative to the letters), row sums and epsilon (nats)
_ARRAYS = ("knots", "letters", "rows")
_SHIPPED = package_files("sottovoce.design") / "shipped"


def table_epsilon(value: float) -> float:
    """An epsilon for which tables can be made, over the whole interval."""
    low, high = EPSILON_RANGE
    number = parameters.positive("epsilon", value)
    if not low <= number <= high:
        raise ParameterError(
            f"epsilon over the whole interval must lie between {low:g} and {high:g}, got "
            f"{value!r}; below, nothing gets through, above, nothing is hidden"
        )
    return float(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSpec:
    """What a design is for: the question, not the answer.

    family    'strict': epsilon between any two inputs; 'metric': epsilon per unit on [0, 1].
    inputs    evenly spaced inputs on [0, 1], or None for continuous input (strict only).
    """

    family: Family
    epsilon: float
    inputs: int | None
    letters: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", table_epsilon(self.epsilon))
        if self.inputs is not None:
            parameters.integer("inputs", self.inputs, low=2, high=1 << MAX_INPUT_BITS)
        elif self.family == "metric":
            raise ParameterError("a metric design needs input_bits, such as 6; continuous inputs "
                                 "are interpolated between them")
        parameters.integer("letters", self.letters, low=2, high=1 << MAX_BITS)

    @property
    def name(self) -> str:
        """The file name: readable, and different for different specs."""
        inputs = "continuous" if self.inputs is None else str(self.inputs)
        return f"{self.family}-epsilon{self.epsilon!r}-inputs{inputs}-letters{self.letters}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Design:
    """A certified channel for a spec, and the integer table that runs."""

    spec: DesignSpec
    channel: Channel
    table: IntegerTable
    solve_seconds: float

    def sum_of_variances(self) -> float:
        """Over the inputs; the mean over [0, 1] for continuous input."""
        if self.spec.inputs is None:
            return self.channel.mean_variance()
        return float(self.channel.variances(np.linspace(0.0, 1.0, self.spec.inputs)).sum())

    def lower_bound(self) -> float | None:
        """No design of this spec has a smaller sum of variances; None for metric designs."""
        if self.spec.family == "metric":
            return None
        return variance_lower_bound(self.spec.epsilon, self.spec.letters, self.spec.inputs)

    def certificate(self) -> dict[str, float]:
        """What was checked: the float64 design, and the integer table exactly."""
        excess = _epsilon(self.spec.family, self.channel) - self.spec.epsilon
        return {
            "max_bias": self.channel.bias(),
            "row_error": self.channel.row_error(),
            "dp_excess": excess,
            # Rounding has proved the table within the spec; its own epsilon is rounded up.
            "table_epsilon": min(self.spec.epsilon, _epsilon(self.spec.family, self.table)),
            "table_bias": self.table.bias(),
        }


def _epsilon(family: Family, channel: Channel | IntegerTable) -> float:
    return channel.pure_epsilon() if family == "strict" else channel.metric_epsilon()


def _digest(channel: Channel) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in _ARRAYS:
        digest.update(np.ascontiguousarray(getattr(channel, name), dtype="<f8").tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=256)
def find(spec: DesignSpec) -> Design:
    """The design for a spec: shipped, cached, or solved now and cached."""
    for folder in (_shipped_folder(), cache_folder()):
        if folder is not None and (folder / f"{spec.name}.json").is_file():
            return load(folder, spec)
    design = solve(spec)
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(design, folder)
    except (OSError, OutputError):  # a cache that cannot be written only costs time
        pass
    return design


def cache_folder() -> Path:
    """Where solved designs are kept."""
    if chosen := os.environ.get("SOTTOVOCE_CACHE"):
        return Path(chosen) / "designs"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sottovoce" / "designs"


def _shipped_folder() -> Path | None:
    return _SHIPPED if isinstance(_SHIPPED, Path) else None


def solve(spec: DesignSpec) -> Design:
    """Solve, certify, round."""
    start = time.process_time()
    if spec.family == "metric":
        assert spec.inputs is not None
        channel = metric.solve(spec.epsilon, spec.letters, spec.inputs)
    else:
        solution = window.solve(spec.epsilon, spec.letters, spec.inputs)
        centred = (
            solution.knots() if spec.inputs is None else np.linspace(-0.5, 0.5, spec.inputs)
        )
        channel = Channel(
            knots=centred + 0.5, rows=solution.rows(centred), letters=solution.letters + 0.5
        )
    return certified(spec, channel, time.process_time() - start)


def certified(spec: DesignSpec, channel: Channel, solve_seconds: float) -> Design:
    """The design, if the channel keeps what the spec asks; DesignError names what it breaks."""
    shape = (len(channel.knots), spec.letters)
    if channel.rows.shape != shape or channel.letters.shape != (spec.letters,):
        raise DesignError(f"design {spec.name} has rows of shape {channel.rows.shape}")
    arrays = (channel.knots, channel.rows, channel.letters)
    if not all(np.isfinite(array).all() for array in arrays) or channel.rows.min() <= 0.0:
        raise DesignError(f"design {spec.name} holds a NaN, an infinity or an empty cell")
    ends = channel.knots[0], channel.knots[-1]
    if ends != (0.0, 1.0) or not (np.diff(channel.knots) > 0.0).all():
        raise DesignError(f"design {spec.name} does not cover [0, 1]")
    excess = _epsilon(spec.family, channel) - spec.epsilon
    for what, value in (
        ("bias", channel.bias()),
        ("row sum error", channel.row_error()),
        ("epsilon excess", excess),
    ):
        if not value <= TOLERANCE:
            raise DesignError(f"design {spec.name} has {what} {value:.3g}; it is not used")
    rounded = (round_pure if spec.family == "strict" else round_metric)(channel, spec.epsilon)
    for array in arrays:
        array.flags.writeable = False
    return Design(spec=spec, channel=channel, table=rounded, solve_seconds=solve_seconds)


def save(design: Design, folder: Path) -> Path:
    """Write NAME.npz and NAME.json; the json, which points at the arrays, comes last."""
    path = folder / design.spec.name
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: getattr(design.channel, name) for name in _ARRAYS})
    write_atomic(path.with_name(path.name + ".npz"), buffer.getvalue())
    write_json(
        path.with_name(path.name + ".json"),
        {
            "spec": asdict(design.spec),
            "digest": _digest(design.channel),
            "solve_seconds": design.solve_seconds,
            "sum_of_variances": design.sum_of_variances(),
            "certificate": design.certificate(),
        },
    )
    return path.with_name(path.name + ".json")


def load(folder: Path, spec: DesignSpec) -> Design:
    """Read a design and check all of it again."""
    description, arrays = folder / f"{spec.name}.json", folder / f"{spec.name}.npz"
    remedy = f"delete {description.with_suffix('.*')} and it will be solved again"
    try:
        written: dict[str, Any] = read_json(description)
        with np.load(io.BytesIO(arrays.read_bytes()), allow_pickle=False) as archive:
            channel = Channel(**{name: np.array(archive[name], float) for name in _ARRAYS})
        if written["spec"] != asdict(spec):
            raise DesignError(f"{description} was made for other parameters; {remedy}")
        if written["digest"] != _digest(channel):
            raise DesignError(f"{arrays} is not what {description.name} describes; {remedy}")
        design = certified(spec, channel, float(written["solve_seconds"]))
        stated = written["sum_of_variances"]
        if not math.isclose(stated, design.sum_of_variances(), rel_tol=1e-9):
            raise DesignError(f"{description} states a variance that its arrays do not have; "
                              f"{remedy}")
        return design
    except DesignError as error:
        raise DesignError(f"{error}" if remedy in str(error) else f"{error}; {remedy}") from None
    except (OSError, OutputError, KeyError, TypeError, ValueError, EOFError,
            zipfile.BadZipFile, json.JSONDecodeError) as error:
        raise DesignError(f"{description} cannot be read ({error}); {remedy}") from None
