"""The common base of table mechanisms: each coordinate passes through one finite table by itself.

A table mechanism defines its table; sampling, decoding and the law follow from it.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Categories, Domain, Floats, L1Ball, L2Ball, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.coordinate_laws import InterpolatedTable
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.design.channel import IntegerTable
from sottovoce.mechanisms.design.store import Design, DesignSpec, table_epsilon
from sottovoce.mechanisms.encoding import Payloads, Prepared, Tensor, WithPrivatize, pack_each
from sottovoce.mechanisms.kernels.ladder import Affine
from sottovoce.mechanisms.kernels.table import sample_table, sample_table_rows
from sottovoce.mechanisms.mechanism import Codes, FiniteLaw, LevelCodes, Sampling, level_indices
from sottovoce.privacy.events import PureDp, Repeated


def interval(domain: Domain) -> tuple[float, float]:
    """Return the least and the largest value of a coordinate, which tables map onto [0, 1].

    Raises:
        ParameterError: The domain is no Box, L1Ball or L2Ball.
    """
    match domain:
        case Box():
            return domain.lower, domain.upper
        case L1Ball() | L2Ball():
            return -domain.radius, domain.radius
        case _:
            raise ParameterError(
                f"the domain of a table mechanism must be a Box, an L1Ball or an L2Ball, got "
                f"{type(domain).__name__}"
            )


class TableMechanism(WithPrivatize):
    """A base class of mechanisms that send each coordinate through one table of probabilities.

    Subclasses add parameters, `table`, `levels` and `privacy`.
    """

    __slots__ = ()

    input_domain: Domain
    sampling: ClassVar[Sampling] = "exact"
    clips_on_device: ClassVar[bool] = True

    @property
    def table(self) -> IntegerTable:
        """The table of integer probabilities, in units of 2^-128, from which codes are drawn."""
        raise NotImplementedError

    @property
    def levels(self) -> int:
        """The number of different codes."""
        raise NotImplementedError

    @property
    def ends(self) -> tuple[float, float]:
        """The input values that the table maps to 0 and to 1, in the units of the domain."""
        return interval(self.input_domain)

    @property
    def points(self) -> Vector:
        """The values that the codes decode to, in the units of the domain."""
        low, high = self.ends
        return np.asarray(low + (high - low) * self.table.letters)

    def design_digest(self) -> str:
        """Return the digest of the table, 32 hexadecimal digits; server and client must agree."""
        return self.table.digest

    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=self.levels)

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint8]:
        row, affine = self.places(self.input_domain.check(values))
        return sample_table(row, self.table, keystream, affine)

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Encode prepared rows on the CPU into a matrix of bytes with one row for each message."""
        table, batch = self.table, prepared.batch
        if batch is not None and not isinstance(self.input_domain, Categories):
            found = sample_table_rows(batch, table, keystreams, self.affine)
            if found is not None:
                return found

        def codes(i: int) -> NDArray[np.uint8]:
            row = prepared.rows[i] if prepared.scale(i) == 1.0 else prepared.vector(i)
            row, affine = self.places(row)
            return sample_table(row, table, keystreams[i], affine)

        return pack_each(prepared, codes)

    def encode_on_device(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Tensor:
        """Encode prepared rows on their CUDA device, into the same bytes as on the CPU."""
        # A plug-in's class may not be hashable.
        kept = isinstance(self, Hashable)
        sampler = _device_sampler if kept else _device_sampler.__wrapped__
        return sampler(self)(prepared.rows, keystreams, prepared.scales)

    @property
    def affine(self) -> Affine:
        """The map from the value of a coordinate to its position on the table, from 0 to 1."""
        low, high = self.ends
        return Affine(shift=low, divisor=high - low)

    def places(self, row: Floats) -> tuple[Floats, Affine]:
        """Return a row as it is sampled, and the map from it to positions from 0 to 1."""
        return row, self.affine

    def positions(self, values: ArrayLike) -> Vector:
        """Return the position of each coordinate on the table: 0 and 1 are the `ends`.

        Raises:
            DomainError: The values are not in the input domain.
        """
        row, affine = self.places(self.input_domain.check(values))
        return np.clip(affine(row.astype(np.float64, copy=False)), 0.0, 1.0)

    def decode(self, codes: Codes) -> Vector:
        return self.points[level_indices(codes, self.levels)]

    def law(self, values: ArrayLike) -> FiniteLaw:
        rows = self.table.channel.at(self.positions(values))
        return FiniteLaw(points=self.points, table=rows)

    def coordinate_law(self) -> InterpolatedTable:
        low, high = self.ends
        channel = self.table.channel
        return InterpolatedTable(
            low=low, high=high, knots=channel.knots, rows=channel.rows, letters=self.points
        )

    def density_ratios(self) -> tuple[float, float] | None:
        """Return bounds (lo, hi) with lo <= dR/dQ <= hi, for the law R of a message of any input.

        Q is one law that does not depend on the input. The bounds are ratios, rounded outward, the
        products of those of all coordinates; None if log(hi) or -log(lo) exceeds 600.
        """
        low, high = self.table.density_ratios()
        dimension = self.input_domain.dimension
        log_low, log_high = (dimension * math.log(ratio) for ratio in (low, high))
        if max(-log_low, log_high) > 600.0:
            return None
        rounding = 2.0**-48 * (1.0 + log_high - log_low)
        return math.exp(log_low) * (1.0 - rounding), math.exp(log_high) * (1.0 + rounding)


@lru_cache(maxsize=16)
def _device_sampler(mechanism: TableMechanism) -> Callable[..., Tensor]:
    from sottovoce.mechanisms.kernels.cuda.ladder import table_sampler

    return table_sampler(mechanism.table, mechanism.affine)


class DesignedTable(TableMechanism):
    """A base class of mechanisms whose table a solver designs; subclasses add `design_spec`."""

    __slots__ = ()

    output_bits: int

    def design_spec(self) -> DesignSpec:
        """Return the specification under which the table is solved for, shipped and cached."""
        raise NotImplementedError

    @property
    def design(self) -> Design:
        """The certified design: shipped with the package, cached on disk, or solved now and cached.

        Raises:
            DesignError: A stored design is damaged, or no certified one was found.
        """
        return store.find(self.design_spec())

    @property
    def table(self) -> IntegerTable:
        return self.design.table

    @property
    def levels(self) -> int:
        return 1 << self.output_bits


class IntervalTable(TableMechanism):
    """A base class of table mechanisms that are epsilon-DP for any two values of a coordinate."""

    __slots__ = ()

    epsilon: float

    def check(self) -> None:
        """Raise ParameterError unless the domain is a box and epsilon lies from 0.001 to 60."""
        if not isinstance(self.input_domain, Box):
            raise ParameterError(
                f"input_domain must be a Box (clip geometry linf), got "
                f"{type(self.input_domain).__name__}; this mechanism protects each coordinate over "
                "its whole interval, so for vectors in a ball use 'metric_mvu' or 'gauss_hermite'"
            )
        table_epsilon(self.epsilon)

    def privacy(self, adjacency: Adjacency) -> PureDp | Repeated:
        # Every table is checked against epsilon when it is made, so none is needed here.
        event = PureDp(epsilon=self.epsilon, adjacency=adjacency)
        return Repeated(event=event, count=self.input_domain.dimension)
