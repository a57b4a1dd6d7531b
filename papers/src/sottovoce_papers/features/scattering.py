"""The scattering transform of images: fixed wavelets in place of learned convolutions.

    S0 x = x * phi                              averages
    S1 x = |x * psi_1| * phi                    edges, by scale and angle
    S2 x = ||x * psi_1| * psi_2| * phi          edges of edges, psi_2 at a larger scale than psi_1

with Morlet wavelets psi at scales 2^0 ... 2^(J-1) and L angles, and a Gaussian phi of scale 2^J,
sampled every 2^J pixels. Nothing is learned, so the transform costs no privacy.

References: Bruna and Mallat 2013, sections 2.1 and 2.2; Oyallon and Mallat 2015, section 2. The
sampling of wavelets, the padding and the order of channels follow Andreux et al. 2020 (Kymatio).
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import group_norm, pad

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError

# Few enough to stay in the processor's cache through the second order.
CHUNK_IMAGES = 64
_WAVELET_WIDTH = 0.8  # Standard deviation at scale 2^0, in pixels.
_WAVELET_FREQUENCY = 0.75 * math.pi  # Center frequency at scale 2^0, in radians per pixel.
_PI_OF_NORMS = 3.1415  # The value that Kymatio uses, so that results can be compared.
# For pixels in [-1/2, 1/2], about the strongest seventh of the coefficients exceeds its inverse.
_LOG_SCALE = 100.0
_WRAPS = 2  # Periods on either side over which a wavelet is summed; beyond, it is 0 in float64.
_OPPONENTS = (
    (3**-0.5, 3**-0.5, 3**-0.5),
    (2**-0.5, 0.0, -(2**-0.5)),
    (-(6**-0.5), 2 * 6**-0.5, -(6**-0.5)),
)

Complex = NDArray[np.complex128]
Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The sizes of a transform: of the image, of the padded image, and of each output map."""

    height: int
    width: int
    scales: int
    angles: int

    def __post_init__(self) -> None:
        parameter_rules.integer("scales", self.scales, low=1, high=8)
        parameter_rules.integer("angles", self.angles, low=1, high=64)
        smallest = min(self.height, self.width)
        if smallest <= 2**self.scales:
            raise ParameterError(
                f"scattering over {self.scales} scales needs images larger than "
                f"{2**self.scales} pixels a side, got {self.height} x {self.width}; "
                "use fewer scales"
            )

    @property
    def num_channels(self) -> int:
        """1 + L J + L^2 J (J-1)/2 maps for one image channel."""
        j, l = self.scales, self.angles  # noqa: E741
        return 1 + l * j + l * l * (j * (j - 1) // 2)

    @property
    def padded(self) -> tuple[int, int]:
        """Multiples of 2^J that include a border of at least 2^J, half of it on either side."""
        stride = 2**self.scales
        height, width = ((n // stride + 2) * stride for n in (self.height, self.width))
        return height, width

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of an output map: a sample every 2^J pixels, without the border."""
        stride = 2**self.scales
        return self.height // stride, self.width // stride


class Scattering2d:
    """The transform for images of one size, on one device, in float32."""

    def __init__(self, geometry: Geometry, device: str | torch.device = "cpu") -> None:
        self.geometry = geometry
        self._device = torch.device(device)
        rows, columns = geometry.padded
        scales = range(geometry.scales)
        wavelets = [_wavelets(rows, columns, scale, geometry.angles) for scale in scales]
        # The first index r is the resolution: of an image sampled every 2^r pixels, only the low
        # frequencies of a wavelet apply.
        self._wavelets = {
            (resolution, scale): self._float(_low_frequencies(wavelets[scale], resolution))
            for scale in scales
            for resolution in scales
            if resolution == 0 or resolution < scale
        }
        self._averages = {
            resolution: tuple(
                self._float(_averaging(length, geometry.scales, resolution))
                for length in (rows, columns)
            )
            for resolution in scales
        }

    def __call__(self, images: Tensor) -> Tensor:
        """Return maps (..., channels, height / 2^J, width / 2^J) of images (..., height, width)."""
        geometry = self.geometry
        if images.shape[-2:] != (geometry.height, geometry.width):
            raise ParameterError(
                f"images must be {geometry.height} x {geometry.width}, got shape "
                f"{tuple(images.shape)}; build the transform for their size"
            )
        flat = images.reshape(-1, geometry.height, geometry.width)
        maps = torch.empty((len(flat), geometry.num_channels, *geometry.output))
        for start in range(0, len(flat), CHUNK_IMAGES):
            part = slice(start, start + CHUNK_IMAGES)
            maps[part] = self._scatter(flat[part].to(self._device, torch.float32)).to(maps.device)
        return maps.reshape(*images.shape[:-2], *maps.shape[1:]).to(images.device)

    def _scatter(self, images: Tensor) -> Tensor:
        padded = self._pad(images)
        spectrum = torch.fft.fft2(padded)[:, None]
        first, second = [], []
        for scale in range(self.geometry.scales):
            edges = self._edges(spectrum, 0, scale)
            first.append(self._average(edges, scale))
            second.append(self._second_order(edges, scale))
        return torch.cat([self._average(padded[:, None], 0), *first, *second], dim=1)

    def _second_order(self, edges: Tensor, scale: int) -> Tensor:
        """Return the maps of |edges * psi_2|, by scale and angle of psi_2."""
        maps = [edges.new_empty((*edges.shape[:2], 0, *self.geometry.output))]
        if scale + 1 < self.geometry.scales:
            spectrum = torch.fft.fft2(edges)[:, :, None]
            maps += [
                self._average(self._edges(spectrum, scale, larger), larger)
                for larger in range(scale + 1, self.geometry.scales)
            ]
        return torch.cat(maps, dim=2).flatten(start_dim=1, end_dim=2)

    def _edges(self, spectrum: Tensor, resolution: int, scale: int) -> Tensor:
        """Return |x * psi| for all angles of one scale, at 2^-scale of the pixels.

        The angles are the third-last axis. Keeping one pixel in k corresponds, in frequency, to
        averaging k blocks along each axis.
        """
        wavelets = self._wavelets[resolution, scale]
        factor = 2 ** (scale - resolution)
        blocks = zip(_blocks(spectrum, factor), _blocks(wavelets, factor), strict=True)
        # Summing block by block needs a quarter of the memory traffic of folding the product.
        folded = functools.reduce(torch.add, (part * wavelet for part, wavelet in blocks))
        waves = torch.fft.ifft2(folded)
        squares = waves.real.square() + waves.imag.square()  # abs() is four times slower.
        edges: Tensor = squares.sqrt_().div_(factor**2)
        return edges

    def _average(self, maps: Tensor, resolution: int) -> Tensor:
        """Return maps * phi, sampled, without the border: two products, as phi is separable."""
        rows, columns = self._averages[resolution]
        # Two flat products with a transposition: many small products are three times slower.
        narrow = (maps @ columns.T).transpose(-2, -1).contiguous()
        return (narrow @ rows.T).transpose(-2, -1)

    def _pad(self, images: Tensor) -> Tensor:
        geometry = self.geometry
        rows, columns = geometry.padded
        extra_rows, extra_columns = rows - geometry.height, columns - geometry.width
        top, left = extra_rows // 2, extra_columns // 2
        border = (left, extra_columns - left, top, extra_rows - top)
        return pad(images[:, None], border, mode="reflect")[:, 0]

    def _float(self, values: Real) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)


def _blocks(spectrum: Tensor, factor: int) -> list[Tensor]:
    """Return the factor x factor blocks of the last two axes."""
    rows, columns = (length // factor for length in spectrum.shape[-2:])
    return [
        spectrum[..., r * rows : (r + 1) * rows, c * columns : (c + 1) * columns]
        for r in range(factor)
        for c in range(factor)
    ]


def group_normalize(features: Tensor, num_groups: int) -> Tensor:
    """Return each sample's channels, normalized in groups to mean 0 and variance 1.

    Only the sample's own values are used, so that no data reaches the features of another sample.

    Reference: Wu and He 2018, section 3.1, without the learned scale and shift.
    """
    channels = features.shape[1]
    if not 1 <= num_groups <= channels or channels % num_groups:
        raise ParameterError(
            f"groups must divide the {channels} channels, got {num_groups}; "
            f"choose one of {', '.join(str(n) for n in _divisors(channels))}"
        )
    return group_norm(features, num_groups)


def logarithms(maps: Tensor) -> Tensor:
    """Return log(1 + 100 S) of maps (..., channels, height, width).

    S0, which has a sign, is unchanged. The strongest edges then dominate less. Values of different
    samples are not mixed.
    """
    average, edges = maps[..., :1, :, :], maps[..., 1:, :, :]
    # Because of rounding, a few averages of moduli are slightly below 0.
    return torch.cat([average, torch.log1p(_LOG_SCALE * edges.clamp_min(0.0))], dim=-3)


def opponent_colors(images: Tensor) -> Tensor:
    """Return brightness, red against blue, and green against both, of (samples, 3, height, width).

    This is an orthonormal change of colors; |x * psi| of a difference of colors is not a linear
    function of those of red, green and blue.
    """
    colors = torch.tensor(_OPPONENTS, dtype=images.dtype, device=images.device)
    return torch.einsum("ij,njhw->nihw", colors, images)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _wavelets(rows: int, columns: int, scale: int, angles: int) -> Real:
    """Return the Fourier transforms of the Morlet wavelets of one scale: (angles, rows, columns).

        psi(u) = (e^(i xi u.e) - K) exp(-((u.e)^2 + s^2 (u.e')^2) / (2 sigma^2)) s / (2 pi sigma^2)

    with sigma = 0.8 2^j, xi = 3 pi / 4 2^-j, slant s = 4/L, the direction e at its angle, e'
    orthogonal to it, and K such that the wavelet sums to 0. Reference: Bruna and Mallat 2013,
    section 2.1.
    """
    sigma, frequency = _WAVELET_WIDTH * 2**scale, _WAVELET_FREQUENCY / 2**scale
    slant = 4 / angles
    middle = int(angles - angles / 2 - 1)  # The index of angle 0; angles fall with the index.
    found = []
    for number in range(angles):
        direction = (middle - number) * math.pi / angles
        wave = _wrapped_gabor((rows, columns), sigma, direction, frequency, slant)
        envelope = _wrapped_gabor((rows, columns), sigma, direction, 0.0, slant)
        morlet = wave - wave.sum() / envelope.sum() * envelope
        found.append(np.fft.fft2(morlet).real)  # The envelope is even: no imaginary part.
    return np.stack(found)


def _wrapped_gabor(
    shape: tuple[int, int], sigma: float, direction: float, frequency: float, slant: float
) -> Complex:
    """Return a Gaussian envelope times a wave, summed over the periods of the grid."""
    rows, columns = shape
    y = np.arange(-_WRAPS * rows, (_WRAPS + 1) * rows)[:, None]
    x = np.arange(-_WRAPS * columns, (_WRAPS + 1) * columns)[None, :]
    along = y * math.cos(direction) + x * math.sin(direction)
    across = x * math.cos(direction) - y * math.sin(direction)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    values: NDArray[Any] = envelope * np.exp(1j * frequency * along)
    periods = 2 * _WRAPS + 1
    folded: Complex = values.reshape(periods, rows, periods, columns).sum(axis=(0, 2))
    return folded * slant / (2 * _PI_OF_NORMS * sigma**2)


def _low_frequencies(spectra: Real, resolution: int) -> Real:
    """Return the spectra of the same filters on a grid 2^resolution times coarser."""
    for axis in (-2, -1):
        length = spectra.shape[axis]
        half = length >> (resolution + 1)
        kept = np.r_[0:half, length - half : length]
        spectra = np.take(spectra, kept, axis=axis)
    return spectra


def _averaging(padded_length: int, scales: int, resolution: int) -> Real:
    """Return one axis of averaging by phi, sampling and removing the border, as a matrix.

    phi is a Gaussian of standard deviation 0.8 2^(J-1); the grid has one pixel in 2^resolution.
    """
    sigma = _WAVELET_WIDTH * 2 ** (scales - 1)
    u = np.arange(-_WRAPS * padded_length, (_WRAPS + 1) * padded_length)
    gaussian = np.exp(-(u**2) / (2 * sigma**2)) / (math.sqrt(2 * _PI_OF_NORMS) * sigma)
    wrapped = gaussian.reshape(2 * _WRAPS + 1, padded_length).sum(axis=0)
    spectrum = np.fft.fft(wrapped).real
    half = padded_length >> (resolution + 1)
    spectrum = spectrum[np.r_[0:half, padded_length - half : padded_length]]
    columns = np.fft.ifft(spectrum[:, None] * np.fft.fft(np.eye(2 * half), axis=0), axis=0).real
    sampled: Real = columns[:: 2 ** (scales - resolution)]
    return sampled[1:-1]
