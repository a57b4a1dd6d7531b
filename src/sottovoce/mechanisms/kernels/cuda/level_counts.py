"""Counts of packed codes of 2 to 4 bits on a CUDA device: how many clients sent each code.

A lane takes a column of every client's payload, a word with 16 codes of 2 bits or 8 codes of 3 or 4
bits. The words of 2, 3 or 4 clients are merged into planes: plane j has bit j of all their codes,
and one bit for each code and client. Logic on planes gives, for each level, a word of those who
sent it, and these words are added with a carry-save adder, as in `counts`, but with a set of planes
for each level. At the end, the bits of the clients that were merged are added.
"""

import torch
import triton
import triton.language as tl

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.kernels.cuda.counts import (
    as_words,
    check_payloads,
    full_adder,
    half_adder,
    in_words,
)
from sottovoce.mechanisms.kernels.cuda.place import on_device

_MOST_COUNTED = 2**31 - 1
_ENOUGH = 2048  # The number of programs that keeps a device busy.
_TOGETHER = 8  # The merged words that are added at once.
_PLANES = 9
_MOST = 2**_PLANES - _TOGETHER  # The most merged words in one pass.
_MOST_SHARES = 65535
_BLOCK = 64


@triton.jit
def _codes(row, column, here, words, bits: tl.constexpr):
    """Return the codes of one client in each column, in the lowest bits; 0 where not here."""
    if bits == 3:
        at = column * 3 // 4
        into = ((column * 3 - at * 4) * 8).to(tl.uint32)
        low = tl.load(row + at, mask=here, other=0).to(tl.uint32, bitcast=True)
        more = here & (into > 8) & (at + 1 < words)
        high = tl.load(row + at + 1, mask=more, other=0).to(tl.uint32, bitcast=True)
        found = (((high.to(tl.uint64) << 32) | low) >> into).to(tl.uint32)
    else:
        found = tl.load(row + column, mask=here, other=0).to(tl.uint32, bitcast=True)
    return found


@triton.jit
def _plane(given, j: tl.constexpr, field: tl.constexpr):
    """Return bit j of all codes of `field` clients: that of client c is bit c of its field."""
    lowest: tl.constexpr = 0x55555555 if field == 2 else 0x249249 if field == 3 else 0x11111111
    found = (given[0] & (lowest << j)) >> j
    for c in tl.static_range(1, field):
        part = given[c] & (lowest << j)
        if c >= j:
            found = found | (part << (c - j))
        else:
            found = found | (part >> (j - c))
    return found


@triton.jit
def _senders(planes, group: tl.constexpr, level: tl.constexpr, bits: tl.constexpr):
    """Return a word with a 1 for each code of a group of clients that is this level."""
    found = planes[group * bits] ^ (0 if level & 1 else 0xFFFFFFFF)
    for j in tl.static_range(1, bits):
        found = found & (planes[group * bits + j] ^ (0 if (level >> j) & 1 else 0xFFFFFFFF))
    return found


@triton.jit
def _add_eight(sums, first: tl.constexpr, a):
    """Return the nine planes from `first` on of a tuple, with eight words added to them."""
    p0, two0 = full_adder(sums[first], a[0], a[1])
    p0, two1 = full_adder(p0, a[2], a[3])
    p0, two2 = full_adder(p0, a[4], a[5])
    p0, two3 = full_adder(p0, a[6], a[7])
    p1, four0 = full_adder(sums[first + 1], two0, two1)
    p1, four1 = full_adder(p1, two2, two3)
    p2, carry = full_adder(sums[first + 2], four0, four1)
    found = (p0, p1, p2)
    for k in tl.static_range(3, 9):
        plane, carry = half_adder(sums[first + k], carry)
        found = found + (plane,)
    return found


@triton.jit
def _fields(word, field: tl.constexpr):
    """Return the number of ones in each field of a word, in that field."""
    if field == 3:
        found = word - ((word >> 1) & 0x6DB6DB) - ((word >> 2) & 0x249249)
    else:
        found = word - ((word >> 1) & 0x55555555)
    if field == 4:
        found = (found & 0x33333333) + ((found >> 2) & 0x33333333)
    return found


@triton.jit
def _total(ones, place, field: tl.constexpr):
    """Return the sum of the bits that planes have in the field at `place`."""
    found = (ones[0] >> place) & ((1 << field) - 1)
    for k in tl.static_range(1, 9):
        found += ((ones[k] >> place) & ((1 << field) - 1)) << k
    return found


@triton.jit
def _store(counts, ones, column, dimension, field: tl.constexpr, block: tl.constexpr, add):
    """Add the counts in the planes of one level; four of a column are adjacent in memory."""
    per: tl.constexpr = 16 if field == 2 else 8
    for quad in tl.static_range(per // 4):
        t0 = _total(ones, field * 4 * quad, field)
        t1 = _total(ones, field * (4 * quad + 1), field)
        t2 = _total(ones, field * (4 * quad + 2), field)
        t3 = _total(ones, field * (4 * quad + 3), field)
        total = tl.reshape(tl.join(tl.join(t0, t2), tl.join(t1, t3)), (block, 4)).to(tl.int32)
        coordinate = column[:, None] * per + (4 * quad + tl.arange(0, 4))[None, :]
        real = coordinate < dimension
        target = counts + coordinate
        if add:
            tl.atomic_add(target, total, mask=real, sem="relaxed")
        else:
            tl.store(target, tl.load(target, mask=real, other=0) + total, mask=real)


@triton.jit(
    do_not_specialize=["dimension", "columns", "words", "clients", "start", "each", "stride"]
)
def _count(
    payloads, counts, beyond, dimension, columns, words, clients, start, each, stride,
    levels: tl.constexpr, bits: tl.constexpr, together: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Add clients start + s each, ..., at most `each`, to the columns of program (p, s).

    counts[j, i] is for code j + 1 of coordinate i; `beyond` becomes 1 if a code is no level.
    """
    column = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    here = column < columns
    stride = stride.to(tl.int64)
    begin = start + tl.program_id(1) * each
    end = tl.minimum(begin + each, clients)
    zero = tl.zeros((block,), tl.uint32)
    wrong = zero
    sums = ()
    for _ in tl.static_range((levels - 1) * 9):
        sums = sums + (zero,)
    for client in range(begin, end, 8 * bits):
        planes = ()
        for group in tl.static_range(8):
            given = ()
            for c in tl.static_range(bits):
                one = client + group * bits + c
                found = _codes(payloads + stride * one, column, here & (one < end), words, bits)
                given = given + (found,)
            for j in tl.static_range(bits):
                planes = planes + (_plane(given, j, bits),)
        added = ()
        for level in tl.static_range(1, 1 << bits):
            a = ()
            for group in tl.static_range(8):
                a = a + (_senders(planes, group, level, bits),)
            if level < levels:
                added = added + _add_eight(sums, (level - 1) * 9, a)
            else:
                for group in tl.static_range(8):
                    wrong = wrong | a[group]
        sums = added
    for level in tl.static_range(1, levels):
        ones = ()
        for k in tl.static_range(9):
            ones = ones + (_fields(sums[(level - 1) * 9 + k], bits),)
        level_counts = counts + (level - 1) * dimension.to(tl.int64)
        _store(level_counts, ones, column, dimension, bits, block, together)
    if levels < (1 << bits):
        per: tl.constexpr = 16 if bits == 2 else 8
        left = tl.minimum(tl.maximum(dimension - column * per, 0), per)
        kept = ((tl.full((block,), 1, tl.int64) << (left * bits)) - 1).to(tl.uint32)
        tl.store(beyond + column * 0, 1, mask=here & ((wrong & kept) != 0))


class CudaLevelCounts:
    """The counts of codes 1 and up of 3 to 16 levels, over any number of batches.

    Code 0 is not counted: it was sent by all other clients.

    Attributes:
        clients: The number of clients counted.
    """

    def __init__(self, dimension: int, levels: int, device: torch.device | str) -> None:
        self._levels = parameter_rules.integer(
            "levels", levels, low=3, high=16, remedy="use OneCounts for 2 levels"
        )
        self._counts = torch.zeros((levels - 1, dimension), dtype=torch.int32, device=device)
        self._beyond = torch.zeros(1, dtype=torch.int32, device=device)
        self.clients = 0

    @property
    def counts(self) -> torch.Tensor:
        """How many clients sent code j + 1 for coordinate i, at position [j, i] (int32).

        Raises:
            ParameterError: A code of a batch was not below `levels`.
        """
        # Checked here, because reading a flag after every batch would wait for the device.
        if self._levels & (self._levels - 1) and int(self._beyond):
            raise ParameterError(
                f"every code of a payload must be below {self._levels}, but a code that was "
                f"counted is not; pass payloads encoded with {self._levels} levels"
            )
        return self._counts

    def add(self, payloads: torch.Tensor, *, block: int = _BLOCK) -> None:
        """Add the packed codes of payloads [clients, bytes], which stay unchanged, to the counts.

        `block` sets only how the kernel is launched.

        Raises:
            ParameterError: The payloads have another type, shape or device, or there would be more
                than 2^31 - 1 clients. Nothing is added then.
        """
        levels, (_, dimension) = self._levels, self._counts.shape
        bits = (levels - 1).bit_length()
        check_payloads(payloads, -(-dimension * bits // 8), self._counts.device)
        clients = len(payloads)
        if self.clients + clients > _MOST_COUNTED:
            raise ParameterError(
                "more than 2^31 - 1 clients cannot be counted; read the counts, and start new ones"
            )
        self.clients += clients
        if dimension and clients:
            with on_device(self._counts):
                self._add(payloads, bits, block)

    def _add(self, payloads: torch.Tensor, bits: int, block: int) -> None:
        clients, size = payloads.shape
        if not in_words(payloads):
            payloads = torch.nn.functional.pad(payloads, (0, -size % 4))
        dimension = self._counts.shape[1]
        columns = -(-dimension // (16 if bits == 2 else 8))
        groups = -(-columns // block)
        # If there are few columns, several programs share each of them.
        shares = max(1, min(-(-clients // (8 * bits)), _ENOUGH // groups, _MOST_SHARES))
        each = min(_MOST * bits, -(-clients // shares))
        for start in range(0, clients, each * _MOST_SHARES):
            segments = min(-(-(clients - start) // each), _MOST_SHARES)
            _count[(groups, segments)](
                as_words(payloads), self._counts, self._beyond, dimension, columns, -(-size // 4),
                clients, start, each, payloads.stride(0) // 4,
                levels=self._levels, bits=bits, together=segments > 1, block=block,
                num_warps=max(1, block // 32),
            )  # fmt: skip
