"""Baselines in plain numpy and torch: float32 and an ordinary generator, without exactness.

Each class makes payloads from an update: clip, probabilities, draws, packing. They are not
mechanisms: float32 probabilities and a generator that is not cryptographic give no guarantee.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]
# Cells of probabilities that are held at the same time: more would not fit into the cache.
_CELLS = 1 << 20


def pack(codes: NDArray[Any], bits: int) -> bytes:
    """Return codes of 1 to 16 bits, pack with plain numpy."""
    if bits == 1:
        return np.packbits(codes, bitorder="little").tobytes()
    if bits in (8, 16):
        return codes.astype(f"<u{bits // 8}", copy=False).tobytes()
    if bits in (2, 4):
        per_byte = 8 // bits
        padded = np.zeros(-(-len(codes) // per_byte) * per_byte, dtype=np.uint8)
        padded[: len(codes)] = codes
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        octets = padded.reshape(-1, per_byte) << shifts
        return np.asarray(np.bitwise_or.reduce(octets, axis=1)).tobytes()
    planes = codes[:, None] >> np.arange(bits, dtype=codes.dtype) & 1
    return np.packbits(planes.astype(np.uint8).ravel(), bitorder="little").tobytes()


def pack_with_torch(codes: "torch.Tensor", bits: int) -> "torch.Tensor":
    """Return codes pack with torch, by shifts and sums."""
    import torch

    if bits == 8:
        return codes.to(torch.uint8)
    if bits == 16:
        return codes.to(torch.int16)
    if 8 % bits:  # Codes cross the borders of bytes, so they are pack bit by bit.
        codes = (codes[:, None] >> torch.arange(bits)) & 1
        codes, bits = codes.flatten(), 1
    per_byte = 8 // bits
    codes = codes.to(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, -len(codes) % per_byte))
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return (codes.view(-1, per_byte) << shifts).sum(1, dtype=torch.uint8)


class NumpyOneBit:
    """A one-bit baseline: 1 with probability sigmoid(2 u/sigma)."""

    def __init__(self, radius: float, stddev: float) -> None:
        self._radius, self._stddev = radius, stddev

    def payload(self, update: Floats, generator: np.random.Generator) -> bytes:
        slope = np.float32(2.0 * _clip_factor(update, self._radius) / self._stddev)
        chances = 1.0 / (1.0 + np.exp(-slope * update))
        return pack(generator.random(len(update), dtype=np.float32) < chances, 1)

    def torch_payload(self, update: "torch.Tensor") -> "torch.Tensor":
        import torch

        slope = 2.0 * (self._radius / update.norm()).clamp(max=1.0) / self._stddev
        return pack_with_torch(torch.bernoulli(torch.sigmoid(update * slope)), 1)


class NumpyFamily:
    """A baseline of several levels: code j with probability proportional to w_j e^(y_j u/sigma)."""

    def __init__(
        self, radius: float, stddev: float, points: NDArray[Any], weights: NDArray[Any]
    ) -> None:
        self._radius, self._stddev = radius, stddev
        self._points = points.astype(np.float32)
        self._logs = np.log(np.maximum(weights, np.finfo(np.float32).tiny)).astype(np.float32)
        self._bits = (len(points) - 1).bit_length()

    def payload(self, update: Floats, generator: np.random.Generator) -> bytes:
        slope = np.float32(_clip_factor(update, self._radius) / self._stddev)
        codes = np.empty(len(update), dtype=np.uint8)
        size = max(1, _CELLS // len(self._points))
        for start in range(0, len(update), size):
            tilts = slope * update[start : start + size]
            masses = np.multiply.outer(self._points, tilts) + self._logs[:, None]
            masses -= masses.max(axis=0)
            below = np.cumsum(np.exp(masses, out=masses), axis=0)
            draws = generator.random(len(tilts), dtype=np.float32) * below[-1]
            codes[start : start + size] = (draws >= below[:-1]).sum(axis=0)
        return pack(codes, self._bits)

    def torch_payload(self, update: "torch.Tensor") -> "torch.Tensor":
        import torch

        slope = (self._radius / update.norm()).clamp(max=1.0) / self._stddev
        points, logs = torch.from_numpy(self._points), torch.from_numpy(self._logs)
        parts = [
            torch.multinomial(torch.softmax(tilts[:, None] * points + logs, dim=1), 1)[:, 0]
            for tilts in torch.split(update * slope, max(1, _CELLS // len(points)))
        ]
        return pack_with_torch(torch.cat(parts), self._bits)


class NumpyTable:
    """A table baseline: dither a value in [-1, 1] to one of the inputs and draw from its row."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows = rows.astype(np.float32)
        self._below = np.cumsum(self._rows, axis=1)[:, :-1].T.copy()
        self._bits = (rows.shape[1] - 1).bit_length()

    def payload(self, update: Floats, generator: np.random.Generator) -> bytes:
        places = (np.clip(update, -1.0, 1.0) + np.float32(1.0)) * np.float32(
            (len(self._rows) - 1) / 2.0
        )
        rows = (places + generator.random(len(update), dtype=np.float32)).astype(np.intp)
        rows = np.minimum(rows, len(self._rows) - 1)
        draws = generator.random(len(update), dtype=np.float32)
        codes = np.zeros(len(update), dtype=np.uint8)
        for column in self._below:
            codes += draws >= column[rows]
        return pack(codes, self._bits)

    def torch_payload(self, update: "torch.Tensor") -> "torch.Tensor":
        import torch

        table = torch.from_numpy(self._rows)
        parts = []
        for part in torch.split(update.clamp(-1.0, 1.0), max(1, _CELLS // table.shape[1])):
            places = (part + 1.0) * ((len(table) - 1) / 2.0)
            rows = (places + torch.rand_like(places)).long().clamp(max=len(table) - 1)
            parts.append(torch.multinomial(table[rows], 1)[:, 0])
        return pack_with_torch(torch.cat(parts), self._bits)


class NumpyGrid:
    """A grid baseline: Gaussian noise, rounded to a grid, modulo 2^bits."""

    def __init__(self, radius: float, stddev: float, step: float, bits: int) -> None:
        self._radius, self._stddev, self._step, self._bits = radius, stddev, step, bits

    def payload(self, update: Floats, generator: np.random.Generator) -> bytes:
        noisy = update * np.float32(_clip_factor(update, self._radius) / self._step)
        noisy += generator.standard_normal(len(update), dtype=np.float32) * np.float32(
            self._stddev / self._step
        )
        codes = np.rint(noisy).astype(np.int32) & ((1 << self._bits) - 1)
        return pack(codes, self._bits)

    def torch_payload(self, update: "torch.Tensor") -> "torch.Tensor":
        import torch

        scale = (self._radius / update.norm()).clamp(max=1.0) / self._step
        noisy = update * scale + torch.randn_like(update) * (self._stddev / self._step)
        codes = noisy.round().to(torch.int32) & ((1 << self._bits) - 1)
        return pack_with_torch(codes, self._bits)


Yardstick = NumpyOneBit | NumpyFamily | NumpyTable | NumpyGrid


def _clip_factor(update: Floats, radius: float) -> float:
    """Return the factor that clips an update to the radius."""
    return min(1.0, radius / max(float(np.linalg.norm(update)), math.ulp(0.0)))
