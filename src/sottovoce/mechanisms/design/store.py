"""The store of certified designs: specs, certificates, and the files of solved designs.

A design is two files, NAME.json (the parameters, the digest of the arrays and the measurements of
the certificate) and NAME-DIGEST.npz (knots, rows, letters). Reading one checks everything again
from the arrays: a file that is truncated, edited or made for other parameters is an error, and a
design that fails its certificate is never used; forging both files can reduce accuracy, but not
privacy. Common designs come with the package; others are solved once and stored in a cache folder
($SOTTOVOCE_CACHE, else $XDG_CACHE_HOME/sottovoce, else ~/.cache/sottovoce).
"""

import hashlib
import io
import json
import math
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.errors import DesignError, OutputError, ParameterError, UnknownNameError
from sottovoce.core.files import ARRAY_DAMAGE, read_json, write_atomic, write_json
from sottovoce.mechanisms.design import metric, window
from sottovoce.mechanisms.design.channel import (
    ChannelMatrix,
    IntegerTable,
    round_metric,
    round_pure,
)
from sottovoce.mechanisms.design.lower_bound import variance_lower_bound

Family = Literal["strict", "metric"]

SOLVER_VERSION = 1  # Increment it when designs change; files of older versions are then ignored.
MAX_BITS = 8
MAX_INPUT_BITS = 10
EPSILON_RANGE = (1e-3, 60.0)
TOLERANCE = 1e-12  # For bias (relative to the letters), row sums and epsilon (nats).
_ARRAYS = ("knots", "letters", "rows")
_SHIPPED = "shipped"


class _DamagedDesignError(DesignError):
    """An error whose message the caller completes with the name of the file and the remedy."""


def table_epsilon(value: float) -> float:
    """Return the epsilon of a design over the whole of [0, 1] as a float, if it is in range.

    The range is 0.001 to 60.

    Raises:
        ParameterError: It is no finite number in that range.
    """
    low, high = EPSILON_RANGE
    number = parameter_rules.finite("epsilon", value)
    if not low <= number <= high:
        raise ParameterError(
            f"epsilon between any two inputs must lie between {low:g} and {high:g}, got {value!r}; "
            "a smaller one transmits nothing, a larger one hides nothing. For a metric it is that "
            "between the ends of the interval"
        )
    return float(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSpec:
    """The parameters of the problem that a design solves.

    Attributes:
        family: 'strict' for epsilon between any two inputs; 'metric' for epsilon per unit on [0,
            1].
        epsilon: The epsilon over the whole interval, or per unit.
        inputs: The number of evenly spaced inputs on [0, 1]; None for continuous input (strict
            only).
        letters: The number of output values.
    """

    family: Family
    epsilon: float
    inputs: int | None
    letters: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", table_epsilon(self.epsilon))
        if self.inputs is not None:
            parameter_rules.integer("inputs", self.inputs, low=2, high=1 << MAX_INPUT_BITS)
        elif self.family == "metric":
            raise ParameterError(
                "a metric design needs a number of inputs, got None; set inputs, such as 64"
            )
        parameter_rules.integer("letters", self.letters, low=2, high=1 << MAX_BITS)

    @property
    def name(self) -> str:
        """The name of the design's files, without ending: different for different specs."""
        inputs = "continuous" if self.inputs is None else str(self.inputs)
        return (
            f"{self.family}-epsilon{self.epsilon!r}-inputs{inputs}-letters{self.letters}"
            f"-solver{SOLVER_VERSION}"
        )


METRICS = ("l1", "l2_squared")


def spec_of(
    epsilon: float, input_bits: int | None, output_bits: int, metric: str | None = None
) -> DesignSpec:
    """Return the spec of a design on [0, 1] whose sizes are given in bits.

    Args:
        epsilon: The epsilon between any two inputs, or per unit of the metric.
        input_bits: The binary logarithm of the number of inputs; None for continuous input.
        output_bits: The binary logarithm of the number of output values.
        metric: One of `METRICS` for metric DP; None for epsilon between any two inputs.

    Returns:
        The spec.

    Raises:
        UnknownNameError: The metric is unknown.
        ParameterError: A number is out of range, or a metric design has continuous input.
    """
    parameter_rules.integer("output_bits", output_bits, low=1, high=MAX_BITS)
    if input_bits is not None:
        parameter_rules.integer("input_bits", input_bits, low=1, high=MAX_INPUT_BITS)
    inputs = None if input_bits is None else 1 << input_bits
    if metric is None:
        return DesignSpec(family="strict", epsilon=epsilon, inputs=inputs, letters=1 << output_bits)
    if metric not in METRICS:
        raise UnknownNameError.among("metric", metric, METRICS)
    if inputs is None:
        raise ParameterError(
            "a metric design needs a number of input_bits; set it, such as to 6 (values between "
            "its points are interpolated, so every value can be sent)"
        )
    slope = epsilon * slope_of_unit(metric, inputs)
    return DesignSpec(family="metric", epsilon=slope, inputs=inputs, letters=1 << output_bits)


def slope_of_unit(metric: str, inputs: int) -> float:
    """Return the slope |d log P / dx| on [0, 1] that epsilon 1 per unit of the metric allows.

    It is 1 for the metric 'l1', and 1/(inputs - 1), the step of the grid, for 'l2_squared'. For the
    squared distance it is enough to consider adjacent grid points, at distance step: there it is
    epsilon step^2, so it is the l1 metric with epsilon * step.
    """
    return 1.0 if metric == "l1" else 1.0 / (inputs - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Design:
    """A certified solution of a spec: a channel in float64, and the integer table that is sampled.

    Attributes:
        spec: The problem.
        channel: The solution in float64.
        table: The solution in integers, which is sampled.
        solve_seconds: The CPU time that solving took.
    """

    spec: DesignSpec
    channel: ChannelMatrix
    table: IntegerTable
    solve_seconds: float

    def sum_of_variances(self) -> float:
        """Return the sum of the float64 channel's variances over the inputs, on [0, 1].

        For continuous input it is their mean over [0, 1].
        """
        if self.spec.inputs is None:
            return self.channel.mean_variance()
        return float(self.channel.variances(np.linspace(0.0, 1.0, self.spec.inputs)).sum())

    def lower_bound(self) -> float:
        """Return a lower bound on `sum_of_variances` of every design of this spec.

        A metric design is epsilon-DP over [0, 1] as well, and its Fisher information is at most
        epsilon^2, so that an unbiased one has variance at least 1/epsilon^2 (Cramer and Rao).
        """
        spec = self.spec
        near = self.channel if spec.family == "strict" else None
        bound = variance_lower_bound(spec.epsilon, spec.letters, spec.inputs, near)
        if spec.family == "metric":
            bound = max(bound, (spec.inputs or 1) / spec.epsilon**2 * (1.0 - 1e-12))
        return bound

    def certificate(self) -> dict[str, float]:
        """Return the checked numbers of the float64 channel, and of the integer table exactly.

        Returns:
            Of the channel: `max_bias` (relative to the largest letter), `row_error` (the largest
            distance of a row's sum from 1) and `dp_excess` (its epsilon minus that of the spec). Of
            the table: `table_epsilon`, at most the spec's, and `table_bias`, in the units of the
            input.
        """
        excess = _epsilon(self.spec.family, self.channel) - self.spec.epsilon
        return {
            "max_bias": self.channel.bias(),
            "row_error": self.channel.row_error(),
            "dp_excess": excess,
            # Rounding has proved that the table meets the spec; its own epsilon is rounded up.
            "table_epsilon": min(self.spec.epsilon, _epsilon(self.spec.family, self.table)),
            "table_bias": self.table.bias(),
        }


def _epsilon(family: Family, channel: ChannelMatrix | IntegerTable) -> float:
    return channel.pure_epsilon() if family == "strict" else channel.metric_epsilon()


def _digest(channel: ChannelMatrix) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in _ARRAYS:
        digest.update(np.ascontiguousarray(getattr(channel, name), dtype="<f8").tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=256)
def find(spec: DesignSpec) -> Design:
    """Return the design for a spec: from the package, from the cache, or solved now and cached.

    A solved design is written to `cache_folder`; it is returned even if that cannot be written.

    Args:
        spec: The problem.

    Returns:
        The certified design.

    Raises:
        DesignError: The stored design is damaged (it is not solved again then), or no certified
            design was found.
    """
    shipped = _load_shipped(spec)
    if shipped is not None:
        return shipped
    folder = cache_folder()
    if (folder / f"{spec.name}.json").is_file():
        return load(folder, spec)
    design = solve(spec)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(design, folder)
    except (OSError, OutputError):  # A cache that cannot be written only costs time.
        pass
    return design


def cache_folder() -> Path:
    """Return the folder in which solved designs are stored; it may not exist yet.

    It is `designs` in $SOTTOVOCE_CACHE, else in $XDG_CACHE_HOME/sottovoce, else in
    ~/.cache/sottovoce.
    """
    if chosen := os.environ.get("SOTTOVOCE_CACHE"):
        return Path(chosen) / "designs"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "sottovoce" / "designs"


def solve(spec: DesignSpec) -> Design:
    """Solve a spec, certify the result, round it to integers and return the design.

    Nothing is stored.

    Raises:
        DesignError: No solution was found, or it fails its certificate.
    """
    start = time.process_time()
    if spec.family == "metric":
        assert spec.inputs is not None
        channel = metric.solve(spec.epsilon, spec.letters, spec.inputs)
    else:
        solution = window.solve(spec.epsilon, spec.letters, spec.inputs)
        centered = solution.knots() if spec.inputs is None else np.linspace(-0.5, 0.5, spec.inputs)
        channel = ChannelMatrix(
            knots=centered + 0.5, rows=solution.rows(centered), letters=solution.letters + 0.5
        )
    return certify(spec, channel, time.process_time() - start)


def certify(spec: DesignSpec, channel: ChannelMatrix, solve_seconds: float) -> Design:
    """Return the design of a channel, rounded to integers, if it satisfies its spec.

    The arrays of the channel become read-only. `solve_seconds` is only recorded.

    Raises:
        DesignError: The channel has another shape, is not finite, positive and ascending, exceeds
            1e-12 in bias, row sums or epsilon, or cannot be rounded within its epsilon.
    """
    shape = (len(channel.knots), spec.letters)
    if channel.rows.shape != shape or channel.letters.shape != (spec.letters,):
        raise DesignError(
            f"design {spec.name} must have rows of shape {shape}, got {channel.rows.shape}"
        )
    arrays = (channel.knots, channel.rows, channel.letters)
    if not all(np.isfinite(array).all() for array in arrays) or channel.rows.min() <= 0.0:
        raise DesignError(
            f"design {spec.name} must have finite numbers and positive probabilities only"
        )
    ends = channel.knots[0], channel.knots[-1]
    if ends != (0.0, 1.0) or not (np.diff(channel.knots) > 0.0).all():
        raise DesignError(
            f"design {spec.name} must have ascending knots from 0 to 1, got knots that do not "
            f"ascend, or the ends {ends}"
        )
    excess = _epsilon(spec.family, channel) - spec.epsilon
    for what, value in (
        ("bias", channel.bias()),
        ("row sum error", channel.row_error()),
        ("epsilon excess", excess),
    ):
        if not value <= TOLERANCE:
            raise DesignError(
                f"design {spec.name} must have a {what} of at most {TOLERANCE:g}, got {value:.3g}"
            )
    rounded = (round_pure if spec.family == "strict" else round_metric)(channel, spec.epsilon)
    for array in arrays:
        array.flags.writeable = False
    return Design(spec=spec, channel=channel, table=rounded, solve_seconds=solve_seconds)


def save(design: Design, folder: Path) -> Path:
    """Write the two files of a design to an existing folder; return the path of NAME.json.

    The arrays are written before the description that names them, so that two writers never mix.

    Raises:
        OutputError: A file cannot be written.
    """
    description = folder / f"{design.spec.name}.json"
    write_atomic(folder / _arrays_name(design.spec, _digest(design.channel)), _archive([design]))
    write_json(description, _description(design))
    return description


def load(folder: Path, spec: DesignSpec) -> Design:
    """Return the design of a spec that `save` wrote to a folder, with everything checked again.

    Raises:
        DesignError: Its files are missing, damaged or made for other parameters, or the design
            fails its certificate.
    """
    description = folder / f"{spec.name}.json"
    try:
        described = read_json(description)
        archive = (folder / _arrays_name(spec, str(described["digest"]))).read_bytes()
        return _checked(spec, described, archive)
    except (KeyError, TypeError) as error:
        reason = f"it cannot be read ({type(error).__name__}: {error})"
    except (DesignError, OutputError, OSError) as error:
        reason = str(error)
    raise DesignError(
        f"cannot use the design {description}: {reason}; delete it and it will be solved again"
    )


def _arrays_name(spec: DesignSpec, digest: str) -> str:
    return f"{spec.name}-{''.join(c for c in digest[:8] if c.isalnum())}.npz"


def ship(specs: Iterable[DesignSpec], folder: Path) -> None:
    """Solve many designs and write them to shipped.json and shipped.npz in a folder.

    The package includes these two files.
    """
    designs = [solve(spec) for spec in specs]
    write_atomic(folder / f"{_SHIPPED}.npz", _archive(designs))
    described = {design.spec.name: _description(design) for design in designs}
    write_json(folder / f"{_SHIPPED}.json", described)


@lru_cache(maxsize=1)
def _shipped() -> tuple[dict[str, Any], bytes]:
    folder = package_files("sottovoce.mechanisms.design")
    described = folder / f"{_SHIPPED}.json"
    if not described.is_file():
        return {}, b""
    return json.loads(described.read_text()), (folder / f"{_SHIPPED}.npz").read_bytes()


def _load_shipped(spec: DesignSpec) -> Design | None:
    described, archive = _shipped()
    if spec.name not in described:
        return None
    try:
        return _checked(spec, described[spec.name], archive)
    except DesignError as error:
        raise DesignError(
            f"a design of the package is damaged ({error}); reinstall Sottovoce"
        ) from None


def _description(design: Design) -> dict[str, Any]:
    return {
        "spec": asdict(design.spec),
        "digest": _digest(design.channel),
        "solve_seconds": design.solve_seconds,
        "sum_of_variances": design.sum_of_variances(),
        "certificate": design.certificate(),
    }


def _archive(designs: Iterable[Design]) -> bytes:
    buffer = io.BytesIO()
    arrays = {
        f"{design.spec.name}/{name}": getattr(design.channel, name)
        for design in designs
        for name in _ARRAYS
    }
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _checked(spec: DesignSpec, described: Any, archive: bytes) -> Design:
    """Return the design if description and arrays fit the spec and are certified."""
    try:
        if described["spec"] != asdict(spec):
            raise _DamagedDesignError("it was made for other parameters")
        with np.load(io.BytesIO(archive), allow_pickle=False) as arrays:
            parts = {name: np.array(arrays[f"{spec.name}/{name}"], float) for name in _ARRAYS}
        channel = ChannelMatrix(**parts)
        if described["digest"] != _digest(channel):
            raise _DamagedDesignError("its arrays are not those that its description names")
        design = certify(spec, channel, float(described["solve_seconds"]))
        if not math.isclose(described["sum_of_variances"], design.sum_of_variances(), rel_tol=1e-9):
            raise _DamagedDesignError("it states a variance that its arrays do not have")
        return design
    except ARRAY_DAMAGE as error:
        raise _DamagedDesignError(f"it cannot be read ({type(error).__name__}: {error})") from None
