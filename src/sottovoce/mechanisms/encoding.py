"""The one way from a vector to the bytes that leave a client: `prepare`, charge, `encode_packed`.

`prepare` checks, clips and rotates. It may raise, so it runs before the ledger is charged. The norm
is computed here and nowhere else. `encode_packed` runs after the charge: it draws and packs codes
and never raises because of the data. Both take one row or many. They work where the rows lie: on
the CPU with several rows at a time on several threads, or on a CUDA device.

A mechanism only needs `encode`; its codes are packed here. A mechanism may bring a faster
`encode_packed` or `encode_on_device`, which must give the same bytes. Codes of 1 to 32 bits are
packed without gaps: code i takes bits i*b ... i*b + b - 1, lowest first.

`@register` adds `privatize` to every mechanism, plug-ins included:

    codes = mechanism.privatize(update)  # clipped; of any shape, from numpy or torch
    estimate = mechanism.decode(codes).reshape(update.shape)

`encode` is strict: it takes a vector that lies in the domain, and a keystream. `privatize`
flattens, projects onto the domain and draws a key from the operating system. Neither charges a
ledger: `sottovoce.Client` does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeGuard, assert_never, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.domains import (
    Box,
    Domain,
    Floats,
    L2Ball,
    Vector,
    plain_array,
    sized_vector,
)
from sottovoce.core.errors import DomainError, ParameterError, RandomnessError, WireError
from sottovoce.core.randomness import Keystream, Randomness, SystemRandomness
from sottovoce.core.stages import stage
from sottovoce.core.threads import over_rows
from sottovoce.mechanisms.kernels import cuda
from sottovoce.mechanisms.mechanism import CodeFormat, Codes, Float32Codes, LevelCodes, Mechanism
from sottovoce.mechanisms.packing import Octets, pack, unpack
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.mechanisms.row_batches import FactoredRows, RowBatch, clip_factors

Tensor = Any  # a torch tensor; torch is optional and not imported here
Payloads = NDArray[np.uint8]


class Prepared:
    """Rows that are checked and clipped, so that `encode_packed` cannot fail because of the data.

    Row i times `scales[i]`, in float64, lies in the domain of the mechanism (after `take_clipped`
    up to the caller's rounding). Rows on the CPU that are to be rotated, or that are factored, are
    made when `rows` is read first. Kernels which make them while they encode read `batch` instead.

    Args:
        mechanism: The mechanism that will encode the rows.
        rows: A matrix of float32 or float64 numbers, or a tensor on a CUDA device. It may be the
            caller's own memory, which must not be written to before the rows are encoded. A
            `RowBatch` if they are still to be made.
        scales: The clipping factor of each row, or None if all are 1 or in the batch. For rows on a
            device they may be a float64 tensor there.

    Attributes:
        mechanism: The mechanism that will encode the rows.
    """

    __slots__ = ("_given", "_made", "_scales", "mechanism")

    def __init__(self, *, mechanism: Mechanism, rows: Any, scales: Any = None) -> None:
        self.mechanism, self._scales, self._given = mechanism, scales, rows
        self._made: Vector | None = None

    def __len__(self) -> int:
        return len(self._given)

    @property
    def on_device(self) -> bool:
        """Whether the rows are a tensor on a CUDA device."""
        return not isinstance(self._given, np.ndarray | RowBatch)

    @property
    def batch(self) -> RowBatch | None:
        """The rows as kernels for many rows take them; None on a device."""
        if self.on_device:
            return None
        if isinstance(self._given, RowBatch):
            return self._given
        factors = None if self._scales is None else np.asarray(self._scales, dtype=np.float64)
        return RowBatch(source=self._given, factors=factors)

    @property
    def rows(self) -> Any:
        """The rows, a matrix or a tensor, not yet multiplied with their `scales`."""
        if not isinstance(self._given, RowBatch):
            return self._given
        if self._made is None:
            self._made = self._given.made()
        return self._made

    @property
    def scales(self) -> Any:
        """The clipping factor of each of `rows`, an array or a tensor, or None if all are 1."""
        return self._scales

    def scale(self, i: int) -> float:
        """Return the clipping factor of row i.

        Args:
            i: The index of the row.

        Returns:
            The factor that the row is multiplied with; 1 if it is not clipped.
        """
        return 1.0 if self._scales is None else float(self._scales[i])

    def vector(self, i: int) -> Vector:
        """Return row i as a vector of the domain.

        Args:
            i: The index of the row.

        Returns:
            The row times its clipping factor, in float64 on the CPU. It may share memory with
            `rows`.
        """
        row = self.rows[i].double().cpu().numpy() if self.on_device else self.rows[i]
        wide: Vector = row.astype(np.float64, copy=False)
        return wide if self.scale(i) == 1.0 else wide * self.scale(i)

    def tensor(self, i: int) -> Tensor:
        """Return row i as a tensor on its device.

        Args:
            i: The index of the row.

        Returns:
            The scaled row. It is in float64 if the scale is not 1, else in the type that it has.
        """
        scale = self.scale(i)
        return self.rows[i] if scale == 1.0 else self.rows[i].double() * scale

    def take(self, positions: Sequence[int]) -> "Prepared":
        """Return a `Prepared` with some of the rows only.

        Args:
            positions: The indices of the rows.

        Returns:
            Those rows with their scales, in this order; this object itself if these are all rows
            in their own order.
        """
        chosen = list(positions)
        if chosen == list(range(len(self))):
            return self
        if isinstance(self._given, RowBatch):
            return Prepared(mechanism=self.mechanism, rows=self._given.select(chosen))
        scales = self._scales
        if scales is not None:
            scales = scales[chosen] if hasattr(scales, "shape") else [scales[i] for i in chosen]
        return Prepared(mechanism=self.mechanism, rows=self._given[chosen], scales=scales)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedRows:
    """The packed codes of several rows, on the CPU or on the device of the rows.

    Attributes:
        payloads: A matrix or tensor of bytes with one row for each message.
        code_format: The format of the codes.
        num_codes: The number of codes in each row.
    """

    payloads: Any
    code_format: CodeFormat
    num_codes: int

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def on_device(self) -> bool:
        """Whether the payloads are a tensor on a CUDA device."""
        return not isinstance(self.payloads, np.ndarray)

    def on_cpu(self) -> Payloads:
        """Return the payloads on the CPU, copied from the device if they are on one.

        Returns:
            A matrix of bytes with one row for each message.
        """
        found: Payloads = self.payloads.cpu().numpy() if self.on_device else self.payloads
        return found

    def take(self, begin: int, end: int) -> "PackedRows":
        """Return some consecutive rows.

        Args:
            begin: The index of the first row.
            end: The index after the last row.

        Returns:
            The rows begin ... end - 1.
        """
        return replace(self, payloads=self.payloads[begin:end])

    def codes(self) -> list[Codes]:
        """Unpack the codes of each row.

        Returns:
            One array of codes for each row.
        """
        match self.code_format:
            case LevelCodes(bits=bits):
                return [unpack(row, self.num_codes, bits) for row in self.on_cpu()]
            case Float32Codes():
                return [row.view("<f4").astype(np.float32) for row in self.on_cpu()]
            case _:
                assert_never(self.code_format)


@runtime_checkable
class EncodesPacked(Protocol):
    """A mechanism with its own, faster `encode_packed`.

    For example, it draws the codes in packed form or skips checks that `prepare` has already made.
    """

    def encode_packed(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Payloads:
        """Encode prepared rows on the CPU.

        Args:
            prepared: The rows.
            keystreams: The random bits of each row.

        Returns:
            A matrix of bytes. Each row equals the packed result of `encode` on that row.
        """
        ...


@runtime_checkable
class EncodesOnDevice(Protocol):
    """A mechanism with kernels for CUDA devices, on an L2Ball or a Box.

    Rows outside of a Box are clipped before. If a class has `clips_on_device = True`, its kernels
    do that, and its rows are only known to be finite.
    """

    def encode_on_device(self, prepared: Prepared, keystreams: Sequence[Keystream]) -> Tensor:
        """Encode prepared rows on their CUDA device.

        Args:
            prepared: The rows, a tensor on the device.
            keystreams: The random bits of each row.

        Returns:
            The same bytes as on the CPU, as a tensor on the device of the rows.
        """
        ...


def prepare(
    mechanism: Mechanism,
    values: ArrayLike | Tensor | FactoredRows,
    *,
    rotation: Rotation | None = None,
    zero_nonfinite: bool = False,
) -> Prepared:
    """Check, clip and rotate one row or many, on the device where they lie.

    On the CPU the rows of an L2Ball are rotated later, while they are encoded or read.

    Args:
        mechanism: The mechanism; the rows are projected onto its input domain.
        values: A vector, or a matrix with a vector in each row: an array, `FactoredRows` or a torch
            tensor. A tensor on a CUDA device stays there if the mechanism has kernels for it and
            Triton is installed; else the CPU does the work, with the same result.
        rotation: A rotation to apply to the clipped rows. The domain must be an L2Ball of its
            dimension, which it maps into itself.
        zero_nonfinite: Whether rows with NaN or infinity count as zeros, so that a client which
            diverged does not stop a simulation. Rows on a CUDA device may then be overwritten.

    Returns:
        The rows, ready for `encode_packed`. `values` is not changed, but the result may share its
        memory.

    Raises:
        DomainError: If the rows have another dimension, contain NaN or infinity, or cannot be
            projected (means of several records outside an L1 ball).
        ParameterError: If a tensor that stays on a CUDA device has no floating-point type, or the
            domain is no L2Ball of the rotation's dimension.
    """
    domain = mechanism.input_domain
    if rotation is not None and not (
        isinstance(domain, L2Ball) and domain.dimension == rotation.dimension
    ):
        raise ParameterError(
            f"a rotation of {rotation.dimension} coordinates needs the domain L2Ball(dimension="
            f"{rotation.dimension}, ...), got {domain}; give the rotation the mechanism's "
            "dimension, or leave it out for domains that are no Euclidean ball"
        )
    if _has_kernels(mechanism, values):
        return prepare_on_device(
            mechanism, values, rotation=rotation, zero_nonfinite=zero_nonfinite
        )
    given = values if isinstance(values, FactoredRows) else _matrix(values, domain.dimension)
    with stage("prepare"):
        if not isinstance(domain, L2Ball):
            rows = given.matrix() if isinstance(given, FactoredRows) else given
            rows = _clipped(domain, _zeroed(rows) if zero_nonfinite else rows)
            return Prepared(mechanism=mechanism, rows=rows)
        source, factors = _scaled_to(domain, given, zero_nonfinite)
        if rotation is None and not isinstance(source, FactoredRows):
            return Prepared(mechanism=mechanism, rows=source, scales=factors)
        # Rotated rows stay in an L2 ball: the projection leaves headroom for the rotation's
        # rounding.
        batch = RowBatch(source=source, factors=factors, rotation=rotation)
        return Prepared(mechanism=mechanism, rows=batch)


def take_clipped(mechanism: Mechanism, values: Tensor) -> Prepared:
    """Wrap rows that the caller has already clipped, without a check; for simulations only.

    They are neither clipped nor tested for NaN. The caller's rounding may leave them slightly
    outside of the domain.
    """
    if _has_kernels(mechanism, values):
        return Prepared(mechanism=mechanism, rows=values.detach().contiguous())
    return Prepared(mechanism=mechanism, rows=_matrix(values, mechanism.input_domain.dimension))


def prepare_on_device(
    mechanism: Mechanism,
    values: Tensor,
    *,
    rotation: Rotation | None = None,
    zero_nonfinite: bool = False,
) -> Prepared:
    """Check, clip and rotate rows for `encode_packed`, on their CUDA device.

    The prepared rows equal those of the CPU, bit for bit, unless the mechanism's kernels clip them
    (`clips_on_device`). A rotation needs an L2Ball of its
    dimension as domain, which `prepare` checks. With `zero_nonfinite` rows that are not finite may
    be overwritten with zeros.
    """
    from sottovoce.mechanisms.kernels.cuda import rows as device_rows

    with stage("prepare"):
        rows = device_rows.matrix(values, mechanism.input_domain.dimension)
        rows, scales = device_rows.clipped(
            rows,
            mechanism.input_domain,
            zero_nonfinite=zero_nonfinite,
            as_they_are=getattr(mechanism, "clips_on_device", False),
        )
        if rotation is not None:
            from sottovoce.mechanisms.kernels.cuda.rotation import rotate_rows

            rows, scales = rotate_rows(rows, rotation, scales), None
    return Prepared(mechanism=mechanism, rows=rows, scales=scales)


def encode_packed(prepared: Prepared, keystreams: Sequence[Keystream]) -> PackedRows:
    """Draw and pack the codes of prepared rows, each from its own keystream.

    The mechanism's own `encode_on_device` or `encode_packed` is used if it has one, else its
    `encode`. No error depends on the data.

    Args:
        prepared: The rows.
        keystreams: The random bits of each row.

    Returns:
        The packed codes of each row.

    Raises:
        ParameterError: If the number of keystreams differs from the number of rows.
        RandomnessError: If a keystream was used before.
    """
    mechanism = prepared.mechanism
    if len(keystreams) != len(prepared):
        raise ParameterError(
            f"got {len(prepared)} rows and {len(keystreams)} keystreams; "
            "give one keystream for each row"
        )
    with stage("encode"):
        payloads = _encode(prepared, keystreams)
    code_format = mechanism.code_format()
    num_codes = code_format.num_codes(mechanism.input_domain.dimension)
    return PackedRows(payloads=payloads, code_format=code_format, num_codes=num_codes)


def _encode(prepared: Prepared, keystreams: Sequence[Keystream]) -> Any:
    mechanism = prepared.mechanism
    if prepared.on_device:
        assert _encodes_on_device(mechanism), "`prepare` keeps no other rows on a device"
        return mechanism.encode_on_device(prepared, keystreams)
    if _encodes_packed(mechanism):
        return mechanism.encode_packed(prepared, keystreams)
    return pack_each(prepared, lambda i: mechanism.encode(prepared.vector(i), keystreams[i]))


def pack_each(prepared: Prepared, codes_of: Callable[[int], Codes]) -> Payloads:
    """Return a matrix with the packed codes that `codes_of(i)` returns for each row i.

    Several threads call `codes_of`. Codes that do not fit the mechanism's format raise WireError.
    """
    code_format = prepared.mechanism.code_format()
    shape = (code_format.num_codes(prepared.mechanism.input_domain.dimension),)

    def payload_of(i: int) -> bytes:
        codes = codes_of(i)
        if np.shape(codes) != shape:
            raise WireError(
                f"the mechanism must return codes of shape {shape}, got {np.shape(codes)}"
            )
        return pack_codes(codes, code_format)

    return fill_each(prepared, payload_of)


def fill_each(prepared: Prepared, payload_of: Callable[[int], Octets]) -> Payloads:
    """Return a matrix with the packed bytes that `payload_of(i)` returns for each row i.

    Several threads call `payload_of`. A wrong number of bytes raises WireError.
    """
    mechanism = prepared.mechanism
    dimension = mechanism.input_domain.dimension
    size = (mechanism.code_format().payload_bits(dimension) + 7) // 8
    payloads = np.empty((len(prepared), size), dtype=np.uint8)
    _ = prepared.rows  # Made here, by all threads, and not by each of them.

    def work(begin: int, end: int) -> None:
        for i in range(begin, end):
            found = np.frombuffer(payload_of(i), dtype=np.uint8)
            if len(found) != size:
                raise WireError(
                    f"the mechanism must return a payload of {size} bytes, got {len(found)}"
                )
            payloads[i] = found

    over_rows(work, len(prepared), dimension)
    return payloads


def pack_codes(codes: Codes, code_format: CodeFormat) -> bytes:
    """Pack the codes of one row; raise WireError for codes that the format does not have."""
    match code_format:
        case LevelCodes():
            dtype = code_format.dtype
            if codes.dtype != dtype or (codes.size and int(codes.max()) >= code_format.levels):
                raise WireError(f"codes must be {dtype} integers below {code_format.levels}")
            return pack(codes.astype(dtype, copy=False), code_format.bits)
        case Float32Codes():
            if codes.dtype != np.float32 or not np.isfinite(codes).all():
                raise WireError("codes must be finite float32 numbers")
            return codes.astype("<f4", copy=False).tobytes()
        case _:
            assert_never(code_format)


# Of a class the answer is remembered; of an object, `isinstance` looks for each method every time.
def _encodes_packed(mechanism: Mechanism) -> TypeGuard[EncodesPacked]:
    return issubclass(type(mechanism), EncodesPacked)


def _encodes_on_device(mechanism: Mechanism) -> TypeGuard[EncodesOnDevice]:
    return issubclass(type(mechanism), EncodesOnDevice)


def _has_kernels(mechanism: Mechanism, values: Any) -> bool:
    """Return whether the rows lie on a CUDA device and can be encoded there."""
    return (
        getattr(values, "is_cuda", False)
        and isinstance(mechanism.input_domain, L2Ball | Box)
        and _encodes_on_device(mechanism)
        and cuda.available()
    )


def _matrix(values: Any, dimension: int) -> Floats:
    """Return the rows as a contiguous matrix, in float32 if that holds them exactly."""
    array = plain_array(values)
    if array.ndim != 2:
        return sized_vector(array, dimension)[None]
    if array.shape[1] != dimension or array.dtype.kind not in "fiu":
        raise DomainError(
            f"expected rows of {dimension} numbers, got {array.dtype} of shape {array.shape}; "
            "pass a matrix with one vector in each row"
        )
    small = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    return np.require(array, np.float32 if small else np.float64, ["C", "A"])


def _scaled_to(
    ball: L2Ball, given: Floats | FactoredRows, zero_nonfinite: bool
) -> tuple[Floats | FactoredRows, Vector | None]:
    """Return the rows, or their projections, and factors that clip them to the ball, if any."""
    factors = clip_factors(given, ball)
    if np.isnan(factors).any():  # Rows that are not finite, or too large for one multiplication.
        rows = given.matrix() if isinstance(given, FactoredRows) else given
        return _projected(ball, _zeroed(rows) if zero_nonfinite else rows), None
    return given, None if (factors == 1.0).all() else factors


def _zeroed(rows: Floats) -> Floats:
    """Return the rows with zeros for each row that has an infinite or NaN entry."""
    finite = np.asarray(np.isfinite(rows).all(axis=1))
    return rows if finite.all() else np.where(finite[:, None], rows, rows.dtype.type(0.0))


def _clipped(domain: Domain, rows: Floats) -> Floats:
    """Return the projection of each row onto a domain, without a copy if possible."""
    if isinstance(domain, Box) and rows.size:
        low, high = float(rows.min()), float(rows.max())
        if domain.lower <= low and high <= domain.upper:  # false for NaN
            return rows
    return _projected(domain, rows)


def _projected(domain: Domain, rows: Floats) -> Vector:
    """Return the projection of each row onto the domain, in float64."""
    found = np.empty(rows.shape)

    def work(begin: int, end: int) -> None:
        for row, out in zip(rows[begin:end], found[begin:end], strict=True):
            scale = domain.clip_scale(row) if isinstance(domain, L2Ball) else None
            if scale is None:
                out[:] = domain.project(row)
            else:
                np.multiply(row, scale, out=out, dtype=np.float64)

    over_rows(work, *rows.shape)
    return found


class Privatizing(Mechanism, Protocol):
    """A registered mechanism, which in addition to `Mechanism` clips updates of any shape."""

    def privatize(self, update: Any, *, randomness: Randomness | Keystream | None = None) -> Codes:
        """Flatten an update, clip it to the mechanism's domain and randomize it.

        Nothing is charged to a ledger.

        Args:
            update: Floating-point numbers, as many as the domain has dimensions, in any shape.
            randomness: The source of the key; by default the operating system.

        Returns:
            The codes of the update, for `decode`.

        Raises:
            DomainError: If the update has another size, is not an array of floating-point numbers,
                is not finite, or cannot be clipped (a mean of several records outside an L1 ball).
            RandomnessError: If `randomness` is seeded and no keystream, or a keystream that was
                used before.
        """
        ...


class WithPrivatize:
    """A base class that gives the mechanisms of this package their `privatize`."""

    __slots__ = ()

    def privatize(
        self: Mechanism, update: Any, *, randomness: Randomness | Keystream | None = None
    ) -> Codes:
        """Randomize an update, after flattening it and clipping it to the mechanism's domain.

        Nothing is charged to a ledger.

        Args:
            update: Floating-point numbers, as many as the domain has dimensions, in any shape: a
                list, a numpy array or a torch tensor. A tensor on a GPU is copied to the CPU first.
                If the domain is for a mean of several records (`records`), each record must already
                be clipped.
            randomness: The source of the key. By default a fresh key of the operating system. To
                repeat a simulation give a keystream whose label names this one input, such as
                `SeededRandomness(7).stream("clinic-3", 1)`.

        Returns:
            A flat array of codes for `decode`.

        Raises:
            DomainError: If the update has another size, is not an array of floating-point numbers,
                is not finite, or cannot be clipped (a mean of several records outside an L1 ball).
            RandomnessError: If `randomness` is seeded and no keystream, or a keystream that was
                used before.
        """
        prepared = prepare(self, flatten_update(update, self.input_domain.dimension))
        return self.encode(prepared.vector(0), _keystream(randomness))


def flatten_update(update: Any, dimension: int) -> Floats:
    """Return an update of any shape as a flat array on the CPU, without a check for NaN.

    Raises:
        DomainError: The update is not an array of `dimension` floating-point numbers.
    """
    array = plain_array(update)
    if array.dtype.kind in "iub":
        raise DomainError(
            f"the update holds {array.dtype} numbers, expected floating-point ones; convert it, "
            "with .astype(float) in numpy or .float() in torch"
        )
    if array.dtype.kind != "f":
        raise DomainError(
            f"the update holds {array.dtype} values, expected real floating-point numbers; convert "
            "it to float32 or float64"
        )
    if array.ndim == 0:
        raise DomainError("the update is a single number, expected an array; put it into a list")
    if array.size != dimension:
        raise DomainError(
            f"the update has {array.size} coordinates in shape {array.shape}, expected "
            f"{dimension}; pass one contribution per call, all of its coordinates together"
        )
    return np.ascontiguousarray(array).reshape(-1)


def _keystream(randomness: Randomness | Keystream | None) -> Keystream:
    if isinstance(randomness, Keystream):
        return randomness
    if randomness is not None and randomness.grade == "seeded":
        raise RandomnessError(
            "seeded randomness needs a label that names this one input, else two updates would "
            'share a key; pass randomness=seeded.stream("clinic-3", 1)'
        )
    return (randomness or SystemRandomness()).stream()
