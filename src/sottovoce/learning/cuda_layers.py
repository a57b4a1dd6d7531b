"""Layers of many models on a CUDA device, in Triton: convolutions and group norms.

Values have the channels last: (models * samples, height, width, channels), float32. A convolution
of all models is one batched matrix product with patches, the values that a filter reads at a
position, followed by a column of ones for the bias. A group norm is computed together with the
rectifier and the pooling that follow it, because each of them alone is limited by memory.

All arithmetic is in float32; matrix products follow torch's precision for matrix products, which is
full float32 unless a program changes it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sottovoce.mechanisms.kernels.cuda.place import on_device

_TILE = 4096
_NORM_WARPS = 4
_BUSY = 512  # Tiles of a matrix product that keep a device busy.
_ALIGNMENT = 4  # Rows of patches begin at multiples of 16 bytes.


# -- patches ---------------------------------------------------------------------------------------


@triton.jit
def _gather_patches(
    values, patches, rows,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    out_height: tl.constexpr, out_width: tl.constexpr,
    kernel_width: tl.constexpr, taps: tl.constexpr, length: tl.constexpr,
    stride_h: tl.constexpr, stride_w: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr,
    dilation_h: tl.constexpr, dilation_w: tl.constexpr,
    block_rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Store the patches of some positions: `taps` * `channels` values, a one, and zeros."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    place = tl.program_id(1) * block + tl.arange(0, block)
    column = row % out_width
    line = (row // out_width) % out_height
    sample = row // (out_width * out_height)
    channel, tap = place % channels, place // channels
    h = (line * stride_h - pad_h)[:, None] + ((tap // kernel_width) * dilation_h)[None, :]
    w = (column * stride_w - pad_w)[:, None] + ((tap % kernel_width) * dilation_w)[None, :]
    there = (row < rows)[:, None] & (place < length)[None, :]
    inside = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (tap < taps)[None, :] & there
    index = ((sample * height)[:, None] + h) * width + w
    found = tl.load(values + index * channels + channel[None, :], mask=inside, other=0.0)
    found = tl.where((place == taps * channels)[None, :], 1.0, found)
    tl.store(patches + row[:, None] * length + place[None, :], found, mask=there)


@triton.jit
def _scatter_patches(
    patches, values, rows,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    out_height: tl.constexpr, out_width: tl.constexpr,
    kernel_height: tl.constexpr, kernel_width: tl.constexpr, length: tl.constexpr,
    stride_h: tl.constexpr, stride_w: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr,
    dilation_h: tl.constexpr, dilation_w: tl.constexpr,
    block_rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Store, for some values, the sum of the entries of all patches that contain them."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    column = row % width
    line = (row // width) % height
    sample = row // (width * height)
    there = (row < rows)[:, None] & (channel < channels)[None, :]
    total = tl.zeros((block_rows, block), dtype=tl.float32)
    for i in tl.static_range(kernel_height):
        for j in tl.static_range(kernel_width):
            down = line + pad_h - i * dilation_h
            right = column + pad_w - j * dilation_w
            h, w = down // stride_h, right // stride_w
            hit = (down >= 0) & (right >= 0) & (h < out_height) & (w < out_width)
            hit = hit & (h * stride_h == down) & (w * stride_w == right)
            first = ((sample * out_height + h) * out_width + w) * length
            first = first + (i * kernel_width + j) * channels
            total += tl.load(
                patches + first[:, None] + channel[None, :], mask=hit[:, None] & there, other=0.0
            )
    tl.store(values + row[:, None] * channels + channel[None, :], total, mask=there)


class PatchWindow:
    """The geometry of a convolution: the sizes of its input, its output and its filters."""

    def __init__(self, layer: torch.nn.Conv2d, height: int, width: int) -> None:
        assert not isinstance(layer.padding, str)
        self.size, self.stride = layer.kernel_size, layer.stride
        self.padding, self.dilation = layer.padding, layer.dilation
        self.height, self.width, self.channels = height, width, layer.in_channels
        self.out_height = self._positions(0, height)
        self.out_width = self._positions(1, width)
        self.entries = self.size[0] * self.size[1] * self.channels
        # One more for the column of ones.
        self.length = -(-(self.entries + 1) // _ALIGNMENT) * _ALIGNMENT

    def _positions(self, axis: int, length: int) -> int:
        reach = self.dilation[axis] * (self.size[axis] - 1) + 1
        return (length + 2 * self.padding[axis] - reach) // self.stride[axis] + 1

    def steps(self) -> dict[str, int]:
        """Return the arguments that both kernels take."""
        return {
            "height": self.height,
            "width": self.width,
            "channels": self.channels,
            "out_height": self.out_height,
            "out_width": self.out_width,
            "kernel_width": self.size[1],
            "stride_h": self.stride[0],
            "stride_w": self.stride[1],
            "pad_h": self.padding[0],
            "pad_w": self.padding[1],
            "dilation_h": self.dilation[0],
            "dilation_w": self.dilation[1],
        }

    def gather(self, values: Tensor) -> Tensor:
        """Return the patches of (samples, height, width, channels), (positions, length)."""
        rows = len(values) * self.out_height * self.out_width
        patches = values.new_empty(rows, self.length)
        block = min(128, triton.next_power_of_2(self.length))
        block_rows = _TILE // 2 // block
        grid = (-(-rows // block_rows), -(-self.length // block))
        with on_device(values):
            _gather_patches[grid](
                values, patches, rows, **self.steps(),
                taps=self.size[0] * self.size[1], length=self.length,
                block_rows=block_rows, block=block,
            )  # fmt: skip
        return patches

    def scatter(self, patches: Tensor, samples: int) -> Tensor:
        """Return the sums of the entries of patches without the ones, as `gather` took them."""
        values = patches.new_empty(samples, self.height, self.width, self.channels)
        rows = samples * self.height * self.width
        block = min(128, triton.next_power_of_2(self.channels))
        block_rows = max(1, _TILE // 4 // block)
        grid = (-(-rows // block_rows), -(-self.channels // block))
        with on_device(patches):
            _scatter_patches[grid](
                patches, values, rows, **self.steps(),
                kernel_height=self.size[0], length=patches.shape[-1],
                block_rows=block_rows, block=block,
            )  # fmt: skip
        return values


class Convolution(torch.autograd.Function):
    """The convolutions of several models: (models * samples, height, width, channels)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, filters: Tensor, window: PatchWindow) -> Tensor:
        """Return the outputs; `filters` are (models, window.entries + 1, output channels)."""
        patches = window.gather(values).reshape(len(filters), -1, window.length)
        ctx.save_for_backward(patches, filters)
        ctx.window, ctx.samples = window, len(values)
        outputs = torch.bmm(patches[:, :, : filters.shape[1]], filters)
        return outputs.reshape(len(values), window.out_height, window.out_width, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        """Return the gradients of the values and the filters."""
        patches, filters = ctx.saved_tensors
        given = gradients[0].reshape(len(filters), patches.shape[1], -1)
        of_filters = _products_over_positions(patches, given, ctx.samples // len(filters))
        of_filters = of_filters[:, : filters.shape[1]]
        if not ctx.needs_input_grad[0]:
            return None, of_filters, None
        entries = filters[:, : ctx.window.entries]
        of_patches = torch.bmm(given, entries.transpose(1, 2))
        return ctx.window.scatter(of_patches, ctx.samples), of_filters, None


class SampleConvolution(torch.autograd.Function):
    """The same convolutions, with the gradient of each sample's own filters.

    It is found as the gradient of `probe`, (models * samples, window.length, output channels),
    whose values are not used. Its rows after the first window.entries + 1 are zero.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, filters: Tensor, probe: Tensor, window: PatchWindow
    ) -> Tensor:
        """Return the outputs, as those of `Convolution`."""
        del probe
        return Convolution.forward(ctx, values, filters, window)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor, None]:
        """Return the gradients of the values and of the probe."""
        patches, filters = ctx.saved_tensors
        given = gradients[0].reshape(ctx.samples, -1, filters.shape[2])
        own = patches.reshape(ctx.samples, -1, ctx.window.length)
        of_samples = torch.bmm(own.transpose(1, 2), given)
        if not ctx.needs_input_grad[0]:
            return None, None, of_samples, None
        entries = filters[:, : ctx.window.entries]
        of_patches = torch.bmm(
            given.reshape(len(filters), -1, filters.shape[2]), entries.transpose(1, 2)
        )
        return ctx.window.scatter(of_patches, ctx.samples), None, of_samples, None


def _products_over_positions(patches: Tensor, given: Tensor, samples: int) -> Tensor:
    """Return patches^T given for each model, which sums over the positions of all its samples.

    Where few models with few filters would leave the device idle, the samples of a model are
    divided among several products.
    """
    (models, positions, length), filters = patches.shape, given.shape[2]
    tiles = models * (-(-length // 64)) * (-(-filters // 64))
    parts = next((n for n in range(1, samples) if not samples % n and n * tiles >= _BUSY), samples)
    if parts == 1:
        return torch.bmm(patches.transpose(1, 2), given)
    # Positions of a model follow each other, so that a part of them is a matrix, too.
    strides = (patches.stride(1) * (positions // parts), patches.stride(1), 1)
    left = patches.as_strided((models * parts, positions // parts, length), strides)
    right = given.reshape(models * parts, positions // parts, filters)
    return torch.bmm(left.transpose(1, 2), right).reshape(models, parts, length, filters).sum(1)


# -- group norms, with what follows them -----------------------------------------------------------


@triton.jit
def _over_groups(x, groups: tl.constexpr, channels: tl.constexpr):
    """Return, for each channel, the sum over the channels of its group."""
    sums = tl.sum(tl.reshape(x, (groups, channels // groups)), axis=1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (groups, channels // groups)), (channels,))


@triton.jit
def _normalize(
    values, weights, biases, outputs, choices, means, scales, samples, eps,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, groups: tl.constexpr,
    relu: tl.constexpr, pool: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Store the outputs of a sample, its moments, and the place of each pooled maximum."""
    sample = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, channels)
    count: tl.constexpr = height * width
    here = values + sample * (count * channels) + channel[None, :]
    # Moments of a channel, and then of its group, are combined as Chan et al. (1979) do.
    mean_of_channel = tl.zeros((channels,), dtype=tl.float32)
    squares = tl.zeros((channels,), dtype=tl.float32)
    for start in range(0, count, block):
        place = start + tl.arange(0, block)[:, None]
        x = tl.load(here + place * channels, mask=place < count, other=0.0)
        seen = start * 1.0
        new = tl.minimum(count - start, block) * 1.0
        own = tl.sum(x, axis=0) / new
        apart = tl.where(place < count, x - own[None, :], 0.0)
        delta = own - mean_of_channel
        squares += tl.sum(apart * apart, axis=0) + delta * delta * (seen * new / (seen + new))
        mean_of_channel += delta * (new / (seen + new))
    mean = _over_groups(mean_of_channel, groups, channels) / (channels // groups)
    delta = mean_of_channel - mean
    squares = _over_groups(squares + count * delta * delta, groups, channels)
    size: tl.constexpr = count * (channels // groups)
    scale = 1.0 / tl.sqrt_rn(squares / size + eps)
    tl.store(means + sample * channels + channel, mean)
    tl.store(scales + sample * channels + channel, scale)
    model = sample // samples
    slope = tl.load(weights + model * channels + channel) * scale
    shift = tl.load(biases + model * channels + channel)
    out_width: tl.constexpr = width // pool
    pooled: tl.constexpr = (height // pool) * out_width
    there = sample * (pooled * channels) + channel[None, :]
    for start in range(0, pooled, block):
        q = start + tl.arange(0, block)[:, None]
        first = ((q // out_width) * pool * width + (q % out_width) * pool) * channels
        x = tl.load(here + first, mask=q < pooled, other=0.0)
        best = (x - mean[None, :]) * slope[None, :] + shift[None, :]
        choice = tl.zeros((block, channels), dtype=tl.int32)
        for k in tl.static_range(1, pool * pool):
            x = tl.load(
                here + first + ((k // pool) * width + k % pool) * channels,
                mask=q < pooled, other=0.0,
            )  # fmt: skip
            y = (x - mean[None, :]) * slope[None, :] + shift[None, :]
            larger = y > best
            best = tl.where(larger, y, best)
            choice = tl.where(larger, k, choice)
        if relu:
            choice = tl.where(best <= 0.0, pool * pool, choice)
            best = tl.where(best <= 0.0, 0.0, best)  # NaN stays NaN.
        tl.store(outputs + there + q * channels, best, mask=q < pooled)
        tl.store(choices + there + q * channels, choice.to(tl.uint8), mask=q < pooled)


@triton.jit
def _normalize_back(
    gradients, values, weights, choices, means, scales, found, weight_parts, bias_parts, samples,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, groups: tl.constexpr,
    pool: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Store a sample's gradient of the values, and its parts of those of weights and biases."""
    sample = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, channels)
    count: tl.constexpr = height * width
    out_width: tl.constexpr = width // pool
    out_height: tl.constexpr = height // pool
    pooled: tl.constexpr = out_height * out_width
    here = sample * (count * channels) + channel[None, :]
    there = sample * (pooled * channels) + channel[None, :]
    mean = tl.load(means + sample * channels + channel)
    scale = tl.load(scales + sample * channels + channel)
    weight = tl.load(weights + (sample // samples) * channels + channel)
    with_ones = tl.zeros((channels,), dtype=tl.float32)
    with_values = tl.zeros((channels,), dtype=tl.float32)
    for start in range(0, pooled, block):
        q = start + tl.arange(0, block)[:, None]
        choice = tl.load(choices + there + q * channels, mask=q < pooled, other=pool * pool)
        choice = choice.to(tl.int32)
        taken = (choice < pool * pool) & (q < pooled)
        g = tl.load(gradients + there + q * channels, mask=taken, other=0.0)
        h = (q // out_width) * pool + choice // pool
        w = (q % out_width) * pool + choice % pool
        x = tl.load(values + here + (h * width + w) * channels, mask=taken, other=0.0)
        normal = tl.where(taken, (x - mean[None, :]) * scale[None, :], 0.0)
        with_ones += tl.sum(g, axis=0)
        with_values += tl.sum(g * normal, axis=0)
    tl.store(bias_parts + sample * channels + channel, with_ones)
    tl.store(weight_parts + sample * channels + channel, with_values)
    size: tl.constexpr = count * (channels // groups)
    level = _over_groups(weight * with_ones, groups, channels) / size
    slope = _over_groups(weight * with_values, groups, channels) / size
    for start in range(0, count, block):
        place = start + tl.arange(0, block)[:, None]
        h, w = place // width, place % width
        ph, pw = h // pool, w // pool
        covered = (place < count) & (ph < out_height) & (pw < out_width)
        q = ph * out_width + pw
        choice = tl.load(choices + there + q * channels, mask=covered, other=pool * pool)
        taken = covered & (choice.to(tl.int32) == (h % pool) * pool + w % pool)
        g = tl.load(gradients + there + q * channels, mask=taken, other=0.0)
        x = tl.load(values + here + place * channels, mask=place < count, other=0.0)
        normal = (x - mean[None, :]) * scale[None, :]
        g = scale[None, :] * (weight[None, :] * g - level[None, :] - normal * slope[None, :])
        tl.store(found + here + place * channels, g, mask=place < count)


class Normalization(torch.autograd.Function):
    """Group norms of several models, each followed by a rectifier and a max pooling, or neither."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weights: Tensor,
        biases: Tensor,
        groups: int,
        eps: float,
        relu: bool,
        pool: int,
    ) -> Tensor:
        """Return the outputs of (models * samples, height, width, channels)."""
        total, height, width, channels = values.shape
        outputs = values.new_empty(total, height // pool, width // pool, channels)
        choices = torch.empty_like(outputs, dtype=torch.uint8)
        means, scales = values.new_empty(2, total, channels)
        ctx.shape = {
            "height": height,
            "width": width,
            "channels": channels,
            "groups": groups,
            "pool": pool,
            "block": max(1, _TILE // channels),
            "num_warps": _NORM_WARPS,
        }
        weights, biases = weights.contiguous(), biases.contiguous()
        with on_device(values):
            _normalize[(total,)](
                values, weights, biases, outputs, choices, means, scales,
                total // len(weights), eps, relu=relu, **ctx.shape,
            )  # fmt: skip
        ctx.save_for_backward(values, weights, choices, means, scales)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the values, the weights and the biases."""
        values, weights, choices, means, scales = ctx.saved_tensors
        found, given = torch.empty_like(values), gradients[0].contiguous()
        of_weights, of_biases = values.new_empty(2, *means.shape)
        samples = len(values) // len(weights)
        with on_device(values):
            _normalize_back[(len(values),)](
                given, values, weights, choices, means, scales, found, of_weights, of_biases,
                samples, **ctx.shape,
            )  # fmt: skip
        parts = (
            part.reshape(-1, samples, part.shape[1]).sum(1) for part in (of_weights, of_biases)
        )
        return found, *parts, None, None, None, None
