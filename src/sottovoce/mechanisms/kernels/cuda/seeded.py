"""The signs of seeds and their scores on a CUDA device, as in `mechanisms.kernels.seeded`.

A seed expands to signs b_1, b_2, ... in {-1, +1}. Its score for int16 weights w is sum_i b_i w_i,
which is 2 S - W: S is the sum of the weights whose sign is +1, and W the sum of all weights.

A lane (one thread of the device) holds one block of a seed's keystream, 512 signs in 16 registers,
and adds the weights whose sign is +1. Adjacent lanes hold the same block of different seeds, so
that they read the same weights. A lane's sum over at most 64 blocks is at most 2^30 in magnitude;
the lanes are added in 64 bits, exactly, so their order does not matter.
"""

from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.kernels.cuda.chacha import key_words, load_key, main_block
from sottovoce.mechanisms.kernels.cuda.place import check_on_cuda, on_device
from sottovoce.mechanisms.kernels.seeded import MAX_SIGNS, SEED_BYTES, TAG, check_seeds

BLOCK = 512  # The number of signs in a block of the keystream.
_LANES, _WARPS = 128, 4
_GROUP = 32  # The number of seeds in adjacent lanes.
_MOST_ROWS = 65535
_MOST_BLOCKS = 64  # The most blocks that a lane can add in 32 bits.
_LARGEST_WEIGHT = 32_767.0
_ENOUGH = 4096  # The number of programs that keeps a device busy.


@triton.jit
def _plus(word, bit, weight):
    """Return the weight where this bit is 1, else 0."""
    return tl.where(((word >> bit) & 1) != 0, tl.load(weight + bit).to(tl.int32), 0)


@triton.jit
def _eight_plus(w0, w1, w2, w3, w4, w5, w6, w7, bit, weights):
    low = _plus(w0, bit, weights) + _plus(w1, bit, weights + 32)
    low += _plus(w2, bit, weights + 64) + _plus(w3, bit, weights + 96)
    low += _plus(w4, bit, weights + 128) + _plus(w5, bit, weights + 160)
    return low + _plus(w6, bit, weights + 192) + _plus(w7, bit, weights + 224)


@triton.jit(do_not_specialize=["seeds", "blocks", "repeat"])
def _score(
    weights, keys, sums, seeds, blocks, repeat,
    lanes: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    """Add `repeat` times lanes/group blocks, in program (p, g), for the g-th group of seeds.

    Lanes beyond the last seed or block repeat the last one, and add nothing.
    """
    index = tl.arange(0, lanes)
    wanted = tl.program_id(1) * group + index % group
    seed = tl.minimum(wanted, seeds - 1).to(tl.int64)
    key = load_key(keys + seed * 8, tl.zeros((lanes,), tl.uint32))
    total = tl.zeros((lanes,), tl.int32)
    for again in range(repeat):
        first = (tl.program_id(0).to(tl.int64) * repeat + again) * (lanes // group)
        here = first + index // group
        block = tl.minimum(here, blocks - 1)
        w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = main_block(
            block.to(tl.uint32), key
        )
        part = tl.zeros((lanes,), tl.int32)
        start = weights + block * 512
        for bit in range(32):
            part += _eight_plus(w0, w1, w2, w3, w4, w5, w6, w7, bit, start)
            part += _eight_plus(w8, w9, w10, w11, w12, w13, w14, w15, bit, start + 256)
        total += tl.where(here < blocks, part, 0)
    tl.atomic_add(sums + seed, total.to(tl.int64), mask=wanted < seeds, sem="relaxed")


@triton.jit
def _store_four(rows, w0, w1, w2, w3, j: tl.constexpr, block, left, lanes: tl.constexpr):
    """Store words j to j + 3 of each block, without the bits from `left` on."""
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (lanes, 4))
    place = j + tl.arange(0, 4)[None, :]
    bits = tl.minimum(tl.maximum(left[:, None] - 32 * place, 0), 32)
    real = ((tl.full((lanes, 4), 1, tl.int64) << bits) - 1).to(tl.uint32)
    target = rows + block[:, None] * 16 + place
    tl.store(target, (words & real).to(tl.int32, bitcast=True), mask=bits > 0)


@triton.jit(do_not_specialize=["count", "blocks"])
def _expand(keys, rows, count, blocks, lanes: tl.constexpr):
    """Write `lanes` blocks of row r in program (p, r)."""
    row = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    counter = block.to(tl.uint32)
    key = load_key(keys + row * 8, counter)
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = main_block(counter, key)
    left = count - block * 512
    here = rows + row * blocks * 16
    _store_four(here, w0, w1, w2, w3, 0, block, left, lanes)
    _store_four(here, w4, w5, w6, w7, 4, block, left, lanes)
    _store_four(here, w8, w9, w10, w11, 8, block, left, lanes)
    _store_four(here, w12, w13, w14, w15, 12, block, left, lanes)


def scores(seeds: NDArray[np.uint8], weights: torch.Tensor) -> torch.Tensor:
    """Return the score of each seed: the sum of all weights, each times +1 or -1.

    The score is sum_i b_i w_i, where b_i in {-1, +1} is the i-th of the signs to which
    `mechanisms.kernels.seeded` expands the seed, one for each weight w_i. It is exact.

    Args:
        seeds: A matrix (n, 16) of bytes, one seed in each row.
        weights: A contiguous int16 vector on a CUDA device.

    Returns:
        The n scores, as int64 on the device of the weights.

    Raises:
        ParameterError: The seeds or the weights have another shape or type, or there are too many
            seeds.
    """
    given = check_seeds(seeds)
    check_on_cuda(weights)
    if weights.dtype != torch.int16 or weights.ndim != 1 or not weights.is_contiguous():
        raise ParameterError(
            f"weights must be a contiguous vector of int16, got {weights.dtype} of shape "
            f"{tuple(weights.shape)}; scale and round them to -32768 ... 32767 first"
        )
    groups = -(-len(given) // _GROUP)
    if groups > _MOST_ROWS:
        raise ParameterError(
            f"seeds must be at most {_MOST_ROWS * _GROUP} at once, got {len(given)}; split them"
        )
    sums = torch.zeros(len(given), dtype=torch.int64, device=weights.device)
    if not len(given) or not len(weights):
        return sums
    with on_device(weights):
        blocks = -(-len(weights) // BLOCK)
        group = min(_GROUP, 1 << (len(given) - 1).bit_length())
        columns = -(-blocks // (_LANES // group))
        repeat = max(1, min(_MOST_BLOCKS, columns, columns * groups // _ENOUGH))
        _score[(-(-columns // repeat), groups)](
            _whole_blocks(weights), _keys(given, weights.device), sums,
            len(given), blocks, repeat,
            lanes=_LANES, group=group, num_warps=_WARPS,
        )  # fmt: skip
    return 2 * sums - weights.sum(dtype=torch.int64)


def make_scorer(
    device: torch.device,
) -> Callable[[NDArray[np.uint8], NDArray[np.int16]], NDArray[np.int64]]:
    """Return a function that computes the scores of seeds for weights in the CPU's memory.

    The weights are copied to `device` once, as long as the same array is passed again.
    """
    placed_weights: list[tuple[NDArray[np.int16], torch.Tensor]] = []

    def score(seeds: NDArray[np.uint8], weights: NDArray[np.int16]) -> NDArray[np.int64]:
        if not placed_weights or placed_weights[0][0] is not weights:
            placed_weights[:] = [(weights, torch.from_numpy(weights).to(device))]
        return np.asarray(scores(seeds, placed_weights[0][1]).cpu().numpy())

    return score


def scores_to_host(seeds: NDArray[np.uint8], weights: torch.Tensor) -> NDArray[np.int64]:
    """Return the scores of seeds for weights on a device (see `scores`), as a numpy array."""
    return np.asarray(scores(seeds, weights).cpu().numpy())


def largest_magnitude(values: torch.Tensor) -> float:
    """Return the largest absolute value in a tensor that is not empty."""
    low, high = torch.aminmax(values)
    return max(float(high), -float(low))


def quantize(
    values: torch.Tensor, ratio: float, step: float, *, nearest: bool
) -> tuple[torch.Tensor, float]:
    """Return `ratio` times the values as int16 weights w, and sum_i log cosh(step w_i).

    The products are clipped to [-32767, 32767] and rounded: to the nearest integer if `nearest`,
    otherwise toward 0.
    """
    whole = (values.double() * ratio).clamp_(-_LARGEST_WEIGHT, _LARGEST_WEIGHT)
    whole = whole.round_() if nearest else whole.trunc_()
    weights = whole.to(torch.int16)
    # log cosh z = -log(1 - tanh(z)^2)/2 has no cancellation for the small z that occur here.
    slopes = whole.mul_(step).tanh_()
    return weights, -0.5 * float(torch.log1p(-slopes * slopes).sum())


def bytes_to_device(payload: bytes, device: torch.device) -> torch.Tensor:
    """Return bytes as a uint8 tensor on the device."""
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8).to(device)


def sign_rows(
    seeds: NDArray[np.uint8], count: int, device: torch.device | str = "cuda"
) -> torch.Tensor:
    """Return the first `count` signs of each seed, packed into bytes.

    Args:
        seeds: A matrix (n, 16) of bytes, one seed in each row.
        count: The number of signs.
        device: The CUDA device.

    Returns:
        A matrix (n, ceil(count/8)) of bytes on the device. A bit is 1 for the sign +1 and 0 for -1,
        the lowest bit of a byte first; unused bits are 0.

    Raises:
        ParameterError: The seeds have another shape or type, there are more than 65535 of them, or
            the device is no CUDA device.
    """
    given = check_seeds(seeds)
    parameter_rules.integer("count", count, low=0, high=MAX_SIGNS)
    if len(given) > _MOST_ROWS:
        raise ParameterError(
            f"seeds must be at most {_MOST_ROWS} at once, got {len(given)}; split them"
        )
    blocks = -(-count // BLOCK)
    rows = torch.empty((len(given), 16 * blocks), dtype=torch.int32, device=device)
    check_on_cuda(rows)
    if rows.numel():
        with on_device(rows):
            _expand[(-(-blocks // _LANES), len(given))](
                _keys(given, rows.device), rows, count, blocks,
                lanes=_LANES, num_warps=_WARPS,
            )  # fmt: skip
    return rows.view(torch.uint8)[:, : -(-count // 8)]


def signs(seed: bytes, count: int, device: torch.device | str = "cuda") -> torch.Tensor:
    """Return the first `count` signs of a seed of 16 bytes, packed as a row of `sign_rows` is.

    Raises:
        ParameterError: The seed has another length.
    """
    if len(seed) != SEED_BYTES:
        raise ParameterError(f"a seed must have {SEED_BYTES} bytes, got {len(seed)}")
    return sign_rows(np.frombuffer(seed, dtype=np.uint8)[None], count, device)[0]


def _keys(seeds: NDArray[np.uint8], device: torch.device) -> torch.Tensor:
    tags = np.broadcast_to(np.frombuffer(TAG, dtype=np.uint8), (len(seeds), len(TAG)))
    return torch.from_numpy(key_words(np.hstack([seeds, tags]))).to(device)


def _whole_blocks(weights: torch.Tensor) -> torch.Tensor:
    """Return the weights, padded with zeros to whole blocks."""
    missing = -len(weights) % BLOCK
    return torch.nn.functional.pad(weights, (0, missing)) if missing else weights
