"""Counts of packed codes of 2 to 4 bits on a CUDA device: how many clients sent each code.

A lane takes a coordinate and goes through the clients; it keeps a counter for each level in
registers and adds them to the counts at the end.
"""

import torch
import triton
import triton.language as tl

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.kernels.cuda.counts import check_payloads
from sottovoce.mechanisms.kernels.cuda.place import on_device

_MOST_COUNTED = 2**31 - 1
_ENOUGH = 2048  # The number of programs that keeps a device busy.
_MOST_SHARES = 65535
_BLOCK = 256


@triton.jit(do_not_specialize=["dimension", "size", "clients", "each", "stride", "levels"])
def _count(
    payloads, counts, beyond, dimension, size, clients, each, stride, levels,
    bits: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Add clients s each, ..., at most `each`, to the coordinates of program (p, s).

    counts[j, i] is for code j + 1 of coordinate i; `beyond` counts codes that are no level.
    """
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = i < dimension
    first = i * bits // 8
    into = (i * bits - first * 8).to(tl.int32)
    level = tl.arange(0, 1 << bits)
    found = tl.zeros((block, 1 << bits), tl.int32)
    begin = tl.program_id(1) * each
    stride = stride.to(tl.int64)
    for client in range(begin, tl.minimum(begin + each, clients)):
        row = payloads + stride * client
        code = tl.load(row + first, mask=real, other=0).to(tl.int32)
        if bits == 3:  # The code may end in the next byte.
            more = tl.load(row + first + 1, mask=real & (first + 1 < size), other=0).to(tl.int32)
            code = code | (more << 8)
        code = (code >> into) & ((1 << bits) - 1)
        found += (code[:, None] == level[None, :]).to(tl.int32)
    target = (level - 1).to(tl.int64)[None, :] * dimension + i[:, None]
    inside = (level > 0) & (level < levels)
    tl.atomic_add(counts + target, found, mask=real[:, None] & inside[None, :], sem="relaxed")
    wrong = (found > 0) & real[:, None] & (level >= levels)[None, :]
    tl.atomic_add(beyond + (target * 0).to(tl.int32), 1, mask=wrong, sem="relaxed")


class CudaLevelCounts:
    """The counts [levels - 1, d] (int32) of codes 1 and up, over any number of batches.

    Code 0 is not counted: it was sent by all other clients.

    Attributes:
        counts: How many clients sent code j + 1 for coordinate i, at position [j, i].
        clients: The number of clients counted.
    """

    def __init__(self, dimension: int, levels: int, device: torch.device | str) -> None:
        self._levels = parameter_rules.integer(
            "levels", levels, low=3, high=16, remedy="use OneCounts for 2 levels"
        )
        self.counts = torch.zeros((levels - 1, dimension), dtype=torch.int32, device=device)
        self.clients = 0

    def add(self, payloads: torch.Tensor) -> None:
        """Add the packed codes of payloads [clients, bytes], which stay unchanged, to `counts`.

        Raises:
            ParameterError: A code is not below `levels`, the payloads have another type, shape or
                device, or there would be more than 2^31 - 1 clients. Nothing is added then.
        """
        levels, (_, dimension) = self._levels, self.counts.shape
        bits = (levels - 1).bit_length()
        size = -(-dimension * bits // 8)
        check_payloads(payloads, size, self.counts.device)
        clients = len(payloads)
        if self.clients + clients > _MOST_COUNTED:
            raise ParameterError(
                "more than 2^31 - 1 clients cannot be counted; read the counts, and start new ones"
            )
        if not dimension or not clients:
            return
        whole = levels == 1 << bits  # Every code is a level, so that nothing can be refused.
        counts = self.counts if whole else torch.zeros_like(self.counts)
        beyond = torch.zeros(1, dtype=torch.int32, device=counts.device)
        groups = -(-dimension // _BLOCK)
        shares = max(1, min(-(-clients // 32), _ENOUGH // groups, _MOST_SHARES))
        with on_device(counts):
            _count[(groups, shares)](
                payloads, counts, beyond, dimension, size, clients, -(-clients // shares),
                payloads.stride(0), levels, bits=bits, block=_BLOCK, num_warps=4,
            )  # fmt: skip
        if not whole:
            if int(beyond):
                raise ParameterError(
                    f"every code of a payload must be below {levels}, but a code of this batch is "
                    f"not, so the batch is not counted; pass payloads encoded with {levels} levels"
                )
            self.counts += counts
        self.clients += clients
