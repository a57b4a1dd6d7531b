"""The packing of codes on a CUDA device: code i takes bits i b ... i b + b - 1, lowest first."""

import torch
import triton
import triton.language as tl

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.kernels.cuda.place import check_on_cuda, on_device

_TYPES = (torch.uint8, torch.int32)
_MOST_BITS = {torch.uint8: 8, torch.int32: 31}
_BLOCK = 512


@triton.jit(do_not_specialize=["count", "size", "row_stride"])
def _pack(
    codes, packed, count, size, row_stride,
    bits: tl.constexpr, reach: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Store one byte in each lane, made of the code in which it begins and the codes after it.

    At most `reach` codes contribute; the lowest bit of the byte is bit `into` of the first one.
    """
    row = tl.program_id(1).to(tl.int64)
    codes += row * row_stride
    packed += row * size
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    first = at * 8 // bits
    into = (at * 8 - first * bits).to(tl.uint64)
    joined = tl.zeros((block,), tl.uint64)
    for j in tl.static_range(reach):
        code = tl.load(codes + first + j, mask=first + j < count, other=0).to(tl.uint64)
        joined = joined | ((code & ((1 << bits) - 1)) << (bits * j))
    tl.store(packed + at, (joined >> into).to(tl.uint8), mask=at < size)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return codes on a CUDA device packed into bytes: code i takes bits i b to i b + b - 1.

    Here b is `bits`, and the lowest bit of a byte comes first; unused bits are 0.

    Args:
        codes: Codes below 2^bits, as uint8, or as int32 for up to 31 bits: a vector, or a matrix
            with a vector in each row.
        bits: The number of bits of each code.

    Returns:
        The packed bytes of each vector, on the same device.

    Raises:
        ParameterError: The codes are no contiguous vectors of uint8 or int32, or `bits` is too
            large.
    """
    check_on_cuda(codes)
    if codes.dtype not in _TYPES or codes.ndim not in (1, 2) or codes.stride(-1) != 1:
        raise ParameterError(
            f"codes must be contiguous vectors of uint8 or int32, got {codes.dtype} of shape "
            f"{tuple(codes.shape)}; use .to(torch.int32) and .contiguous()"
        )
    parameter_rules.integer("bits", bits, low=1, high=_MOST_BITS[codes.dtype])
    rows = codes if codes.ndim == 2 else codes[None]
    clients, count = rows.shape
    size = -(-count * bits // 8)
    packed = torch.empty((clients, size), dtype=torch.uint8, device=codes.device)
    if rows.numel():
        # A byte that begins at the last bit of a code ends in the code that is 7 bits further.
        reach = 1 + -(-7 // bits)
        with on_device(codes):
            _pack[(-(-size // _BLOCK), clients)](
                rows, packed, count, size, rows.stride(0),
                bits=bits, reach=reach, block=_BLOCK, num_warps=4,
            )  # fmt: skip
    return packed if codes.ndim == 2 else packed[0]
