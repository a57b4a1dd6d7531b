"""Counts of packed bits on a CUDA device: for each coordinate, how many clients sent a 1.

A lane takes a column, one word of every client's payload, and adds the clients' words bit by bit
with a carry-save adder: plane p has, for each bit of the word, bit p of its count. Full adders add
eight words to the lowest three planes, and their carries ripple through the others. Ten planes
count 1023 clients; then the planes are added to int32 counts and start again at zero.
"""

import torch
import triton
import triton.language as tl

from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.kernels.cuda.launcher import launched
from sottovoce.mechanisms.kernels.cuda.place import check_on_cuda, on_device

_PLANES = 10
_MOST = 2**_PLANES - 8  # The most clients in one pass, in whole groups of eight.
_MOST_COUNTED = 2**31 - 1
_ENOUGH = 2048  # The number of programs that keeps a device busy.


@triton.jit
def full_adder(a, b, c):
    """Return the sum of three bits: its lower bit and its carry."""
    either = a ^ b
    return either ^ c, (a & b) | (either & c)


@triton.jit
def half_adder(a, b):
    """Return the sum of two bits: its lower bit and its carry."""
    return a ^ b, a & b


@triton.jit
def _word(
    payloads, client, j: tl.constexpr, stride, column, here, end,
    bits: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Return the word that client + j has in each column; 0 from client `end` on."""
    if masked:
        here = here & (column * 0 + client + j < end)
    row = payloads + stride * client + stride * j
    found = tl.load(row + column, mask=here, other=0)
    return found.to(tl.uint32, bitcast=True) if bits == 32 else found.to(tl.uint32)


@triton.jit
def _eight_more(
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9,
    payloads, client, stride, column, here, end,
    bits: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    a0 = _word(payloads, client, 0, stride, column, here, end, bits, masked)
    a1 = _word(payloads, client, 1, stride, column, here, end, bits, masked)
    a2 = _word(payloads, client, 2, stride, column, here, end, bits, masked)
    a3 = _word(payloads, client, 3, stride, column, here, end, bits, masked)
    a4 = _word(payloads, client, 4, stride, column, here, end, bits, masked)
    a5 = _word(payloads, client, 5, stride, column, here, end, bits, masked)
    a6 = _word(payloads, client, 6, stride, column, here, end, bits, masked)
    a7 = _word(payloads, client, 7, stride, column, here, end, bits, masked)
    p0, two0 = full_adder(p0, a0, a1)
    p0, two1 = full_adder(p0, a2, a3)
    p0, two2 = full_adder(p0, a4, a5)
    p0, two3 = full_adder(p0, a6, a7)
    p1, four0 = full_adder(p1, two0, two1)
    p1, four1 = full_adder(p1, two2, two3)
    p2, carry = full_adder(p2, four0, four1)
    p3, carry = half_adder(p3, carry)
    p4, carry = half_adder(p4, carry)
    p5, carry = half_adder(p5, carry)
    p6, carry = half_adder(p6, carry)
    p7, carry = half_adder(p7, carry)
    p8, carry = half_adder(p8, carry)
    return p0, p1, p2, p3, p4, p5, p6, p7, p8, p9 ^ carry


@triton.jit
def _bit(plane, place, p: tl.constexpr):
    return ((plane >> place) & 1) << p


@triton.jit
def _count(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, place):
    """Return the count of the bit at `place`."""
    low = _bit(p0, place, 0) | _bit(p1, place, 1) | _bit(p2, place, 2) | _bit(p3, place, 3)
    middle = _bit(p4, place, 4) | _bit(p5, place, 5) | _bit(p6, place, 6) | _bit(p7, place, 7)
    return low | middle | _bit(p8, place, 8) | _bit(p9, place, 9)


@launched("dimension", "columns", "clients", "start", "each", "stride")
def _add_ones(
    payloads, counts, dimension, columns, clients, start, each, stride,
    block: tl.constexpr, bits: tl.constexpr, together: tl.constexpr,
):  # fmt: skip
    """Add clients start + s each, ..., at most `each`, to the columns of program (p, s)."""
    column = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    here = column < columns
    stride = stride.to(tl.int64)
    begin = start + tl.program_id(1) * each
    end = tl.minimum(begin + each, clients)
    whole = begin + tl.maximum(end - begin, 0) // 8 * 8
    p0 = tl.zeros((block,), tl.uint32)
    p1 = tl.zeros((block,), tl.uint32)
    p2 = tl.zeros((block,), tl.uint32)
    p3 = tl.zeros((block,), tl.uint32)
    p4 = tl.zeros((block,), tl.uint32)
    p5 = tl.zeros((block,), tl.uint32)
    p6 = tl.zeros((block,), tl.uint32)
    p7 = tl.zeros((block,), tl.uint32)
    p8 = tl.zeros((block,), tl.uint32)
    p9 = tl.zeros((block,), tl.uint32)
    for client in range(begin, whole, 8):
        p0, p1, p2, p3, p4, p5, p6, p7, p8, p9 = _eight_more(
            p0, p1, p2, p3, p4, p5, p6, p7, p8, p9,
            payloads, client, stride, column, here, end, bits, False,
        )  # fmt: skip
    if whole < end:
        p0, p1, p2, p3, p4, p5, p6, p7, p8, p9 = _eight_more(
            p0, p1, p2, p3, p4, p5, p6, p7, p8, p9,
            payloads, whole, stride, column, here, end, bits, True,
        )  # fmt: skip
    for quad in range(bits // 4):  # Four counts of a column are adjacent in memory.
        place = (tl.zeros((block,), tl.int32) + 4 * quad).to(tl.uint32)
        t0 = _count(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, place)
        t1 = _count(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, place + 1)
        t2 = _count(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, place + 2)
        t3 = _count(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, place + 3)
        total = tl.reshape(tl.join(tl.join(t0, t2), tl.join(t1, t3)), (block, 4)).to(tl.int32)
        coordinate = column[:, None] * bits + (4 * quad + tl.arange(0, 4))[None, :]
        target = counts + coordinate
        real = coordinate < dimension
        if together:
            tl.atomic_add(target, total, mask=real, sem="relaxed")
        else:
            tl.store(target, tl.load(target, mask=real, other=0) + total, mask=real)


class OneCounts:
    """The counts of ones for each coordinate, over any number of batches of payloads.

    A payload has one bit for each coordinate, packed, of one client.

    Attributes:
        counts: The counts (int32), one for each coordinate.
        clients: The number of clients counted.
    """

    def __init__(self, dimension: int, device: torch.device | str) -> None:
        self.counts = torch.zeros(dimension, dtype=torch.int32, device=device)
        self.clients = 0

    def add(self, payloads: torch.Tensor, *, block: int = 128, warps: int = 4) -> None:
        """Add the bits of payloads [clients, bytes], which stay unchanged, to `counts`.

        Coordinate i is bit i of a payload, the lowest bit of a byte first. `block` and `warps` set
        only how the kernel is launched.

        Raises:
            ParameterError: The payloads have another type, shape or device, or there would be more
                than 2^31 - 1 clients. Nothing is added then.
        """
        dimension = self.counts.shape[0]
        clients = len(payloads)
        if self.clients + clients > _MOST_COUNTED:
            raise ParameterError(
                "more than 2^31 - 1 clients cannot be counted; read the counts, and start new ones"
            )
        check_payloads(payloads, -(-dimension // 8), self.counts.device)
        self.clients += clients
        if dimension and clients:
            with on_device(self.counts):
                _add(self.counts, payloads, block, warps)


def check_payloads(payloads: torch.Tensor, size: int, device: torch.device) -> None:
    """Raise ParameterError unless payloads are a uint8 matrix [clients, size] on this CUDA device.

    The bytes of a row must be contiguous.
    """
    check_on_cuda(payloads)
    if payloads.device != device:
        raise ParameterError(
            f"payloads must be on {device}, as the counts are, got {payloads.device}; move them"
        )
    if payloads.dtype != torch.uint8 or payloads.ndim != 2 or payloads.shape[1] != size:
        raise ParameterError(
            f"payloads must be bytes (uint8) of shape (clients, {size}), got {payloads.dtype} of "
            f"shape {tuple(payloads.shape)}; use torch.stack to make a matrix of a list"
        )
    if size > 1 and payloads.stride(1) != 1:
        raise ParameterError("the bytes of a payload must be contiguous; use .contiguous()")


def _add(counts: torch.Tensor, payloads: torch.Tensor, block: int, warps: int) -> None:
    dimension, clients = counts.shape[0], len(payloads)
    bits = 32 if in_words(payloads) else 8
    columns = -(-dimension // bits)
    groups = -(-columns // block)
    stride = payloads.stride(0) * 8 // bits
    source = payloads.as_strided((1,), (1,)) if bits == 8 else as_words(payloads)
    # If there are few columns, several programs share each of them.
    shares = max(1, min(-(-clients // 32), _ENOUGH // groups))
    each = min(_MOST, -(-clients // shares))
    for start in range(0, clients, _MOST * shares):
        part = min(clients - start, _MOST * shares)
        segments = -(-part // each)
        _add_ones[(groups, segments)](
            source, counts, dimension, columns, clients, start, each, stride,
            block=block, bits=bits, together=segments > 1, num_warps=warps,
        )  # fmt: skip


def as_words(payloads: torch.Tensor) -> torch.Tensor:
    """Return a tensor of int32 that begins where the payloads do."""
    start = payloads.storage_offset()
    flat = torch.empty(0, dtype=torch.int32, device=payloads.device)
    return flat.set_(payloads.untyped_storage(), start // 4, (1,), (1,))


def in_words(payloads: torch.Tensor) -> bool:
    """Return whether every payload begins at a word, and its last word lies in its memory."""
    start, stride = payloads.storage_offset(), payloads.stride(0)
    if payloads.data_ptr() % 4 or start % 4 or stride % 4:
        return False
    last = start + (len(payloads) - 1) * stride
    return last + -(-payloads.shape[1] // 4) * 4 <= payloads.untyped_storage().nbytes()
