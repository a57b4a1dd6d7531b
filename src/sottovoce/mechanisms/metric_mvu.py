"""The MVU mechanism under metric DP, which protects close inputs more than distant ones."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.design.store import DesignSpec
from sottovoce.mechanisms.finite_channel import DesignedTable, interval
from sottovoce.mechanisms.registry import CalibratedParameter, Parameters, register
from sottovoce.privacy.envelope import renyi_curve
from sottovoce.privacy.events import MetricDp, PrivacyEvent, PureDp, Repeated
from sottovoce.privacy.interpolated import interpolated_renyi_bound

Metric = Literal["l1", "l2_squared", "euclidean"]
METRICS = (*store.METRICS, "euclidean")

# Mapping a coordinate to [0, 1] rounds by less than this, which may increase the distance of
# neighbors by as much.
_ROUNDING = 2.0**-50
# Each order takes some hundredths of a second, and epsilon changes little around the best order.
_ORDERS = tuple(1.0 + 0.05 * 1.25**k for k in range(42))  # 1.05 to 471
_RESOLUTION = 3e-3
_LEAST_OF_MANY = 5e-3


def _per_unit(domain: Domain, metric: str, input_bits: int) -> float:
    """Return the epsilon per unit of the metric for which the table on [0, 1] has slope 1."""
    low, high = interval(domain)
    if metric not in METRICS:
        raise UnknownNameError.among("metric", str(metric), METRICS)
    parameter_rules.integer("input_bits", input_bits, low=1, high=store.MAX_INPUT_BITS)
    match metric:
        case "euclidean":
            return math.sqrt(domain.dimension) / (high - low)
        case "l2_squared":
            return 1.0 / (store.slope_of_unit(metric, 1 << input_bits) * (high - low) ** 2)
        case _:
            return 1.0 / (high - low)


def _epsilon_ends(domain: Domain, given: Parameters) -> tuple[float, float]:
    """Return the least and the most private epsilon for which there are tables."""
    unit = _per_unit(domain, given["metric"], given["input_bits"])
    low, high = store.EPSILON_RANGE
    if given["output_bits"] > 2:
        # Below, the rows of a large table are too similar to be rounded to integers.
        low = _LEAST_OF_MANY
    return high * unit * (1.0 - 1e-9), low * unit * (1.0 + 1e-9)


@register(
    "metric_mvu",
    summary="the unbiased table of least variance under metric DP, for locations and balls",
    examples=[
        {"epsilon": 1.0, "metric": "l1", "input_bits": 5, "output_bits": 2},
        {"epsilon": 2.0, "metric": "l1", "input_bits": 1, "output_bits": 1},
    ],
    example_domain=L1Ball(dimension=8, radius=1.0),
    further_domains=[L2Ball(dimension=8, radius=1.0), Box(dimension=2, lower=0.0, upper=2.0)],
    calibrated_parameter=CalibratedParameter(
        parameter="epsilon", more_private="smaller", ends=_epsilon_ends, relative_tolerance=1e-3
    ),
    settings=[
        # 'euclidean' gives the same table on a box: a budget between neighbors has no metric.
        {"metric": "l1", "input_bits": inputs, "output_bits": outputs}
        for inputs, outputs in ((1, 1), (5, 2), (5, 3))
    ],
    coordinatewise=True,
    slow_on=[L2Ball],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class MetricMvu(DesignedTable):
    """An unbiased table of least variance under metric DP, for locations and vectors in a ball.

    Each coordinate passes through a table with bounded |d log P / dx|. `epsilon` is per unit of the
    metric, in the units of the domain (for instance per kilometer). The metrics:

    * "l1": P(x) <= e^(epsilon |x - x'|_1) P(x') for vectors. On an L1 ball of radius C that is
      epsilon C under zero-out and 2 epsilon C under replace-one (lemma 6), divided by `records`. On
      an L2 ball the Renyi divergences of the table are accounted, bounded by the concave envelope
      (section 4.3).
    * "euclidean": P(x) <= e^(epsilon |x - x'|_2) P(x') on a box, such as a map. Each of the d
      coordinates gets epsilon/sqrt(d), and the Cauchy-Schwarz inequality gives the claim
      (geo-indistinguishability).
    * "l2_squared": the paper's |x - x'|^2 between the 2^input_bits grid points. The constraints of
      adjacent points imply all others, so it is the "l1" design with epsilon * grid step: nearly
      equal rows and a large variance. For comparison only; use "l1".

    The table has rows at 2^input_bits points, with ratios of at most 1 + epsilon * step between
    adjacent rows, and is linear in between. So continuous inputs need no dithering with rejection,
    which would add bias.

    Cost: `output_bits` bits per coordinate.

    References: Chaudhuri, Guo and Rabbat 2022, sections 4.1 to 4.3; Andres et al. 2013.

    Attributes:
        input_domain: A box, an L1 ball or an L2 ball.
        epsilon: The privacy loss per unit of the metric, such that the table's own epsilon over the
            whole interval of a coordinate lies from 0.001 to 60.
        metric: "l1", "euclidean" (boxes only) or "l2_squared" (not for L1 balls).
        input_bits: The binary logarithm of the number of rows of the table, from 1 to 10.
        output_bits: The number of bits per coordinate, from 1 to 8.
    """

    input_domain: Domain
    epsilon: float
    metric: Metric
    input_bits: int
    output_bits: int

    def __post_init__(self) -> None:
        interval(self.input_domain)
        parameter_rules.positive("epsilon", self.epsilon)
        if self.metric == "euclidean" and not isinstance(self.input_domain, Box):
            raise ParameterError(
                "metric 'euclidean' needs a Box, such as a map; use metric 'l1' in a ball, where "
                "its L2 privacy is accounted exactly"
            )
        if self.metric == "l2_squared" and isinstance(self.input_domain, L1Ball):
            raise ParameterError("metric 'l2_squared' has no guarantee on an L1 ball; use 'l1'")
        parameter_rules.integer("output_bits", self.output_bits, low=1, high=store.MAX_BITS)
        self.design_spec()  # raises for parameters that no design can have

    def design_spec(self) -> DesignSpec:
        """Return the specification under which the table is solved for, shipped and cached.

        Returns:
            Its epsilon is per unit of the table's interval [0, 1], not per unit of the metric.
        """
        slope = self.epsilon / _per_unit(self.input_domain, self.metric, self.input_bits)
        return DesignSpec(
            family="metric", epsilon=slope, inputs=1 << self.input_bits, letters=self.levels
        )

    @property
    def hides_only_against_zero(self) -> bool:
        """Whether the zero-out event holds only if one of the two neighbors is the input 0.

        True on an L2 ball with `records` = 1.
        """
        domain = self.input_domain
        return isinstance(domain, L2Ball) and domain.against_zero(Adjacency.ZERO_OUT)

    def privacy(self, adjacency: Adjacency) -> PrivacyEvent:
        domain = self.input_domain
        low, high = interval(domain)
        rounding = domain.dimension * (high - low) * _ROUNDING
        if isinstance(domain, L2Ball):
            return _renyi_event(self, adjacency)
        if self.metric == "l2_squared":
            whole = PureDp(epsilon=self.table.pure_epsilon(), adjacency=adjacency)
            return Repeated(event=whole, count=domain.dimension)
        distance = domain.sensitivity(adjacency)  # in L1 for a ball, in one coordinate for a box
        if isinstance(domain, Box):
            euclidean = self.metric == "euclidean"
            distance *= math.sqrt(domain.dimension) if euclidean else domain.dimension
        return MetricDp(
            epsilon=self.epsilon,
            metric=self.metric,
            distance=distance + rounding,
            adjacency=adjacency,
        )


@lru_cache(maxsize=256)
def _renyi_event(mechanism: MetricMvu, adjacency: Adjacency) -> PrivacyEvent:
    """Return the event of the worst split of an L2 distance over the coordinates."""
    domain = mechanism.input_domain
    assert isinstance(domain, L2Ball)
    channel = mechanism.table.channel
    distance = domain.sensitivity(adjacency) / (2.0 * domain.radius)
    distance += math.sqrt(domain.dimension) * _ROUNDING
    alone = adjacency is Adjacency.ZERO_OUT and mechanism.hides_only_against_zero

    def bound(order: float) -> float:
        return interpolated_renyi_bound(
            channel.knots,
            channel.rows,
            order,
            power=2.0,
            radius_distance=distance,
            dimension=domain.dimension,
            center=0.5 if alone else None,
            resolution=_RESOLUTION,
        )

    return renyi_curve(bound, adjacency, _ORDERS)
