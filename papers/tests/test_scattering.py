import re
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.core.errors import ParameterError
from sottovoce_papers.features.scattering import (
    Geometry,
    Scattering2d,
    group_normalize,
    logarithms,
    opponent_colors,
)

KYMATIO = np.load(Path(__file__).parent / "kymatio_0_3_0.npz")
CASES = sorted(name.removesuffix("_maps") for name in KYMATIO if name.endswith("_maps"))


def transform(height: int, width: int, scales: int = 2, angles: int = 8) -> Scattering2d:
    return Scattering2d(Geometry(height=height, width=width, scales=scales, angles=angles))


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.uniform(-0.5, 0.5, size=shape).astype(np.float32))


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_kymatio_0_3_0(case: str) -> None:
    found = re.fullmatch(r"scales(\d+)_angles(\d+)_(\d+)x(\d+)", case)
    assert found is not None
    scales, angles, height, width = map(int, found.groups())
    maps = transform(height, width, scales, angles)(torch.from_numpy(KYMATIO[f"{case}_image"]))
    expected = KYMATIO[f"{case}_maps"]
    channels = KYMATIO[f"{case}_channels"].astype(np.int64)
    np.testing.assert_allclose(
        maps.numpy()[channels], expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max()
    )


@pytest.mark.parametrize(
    ("shape", "angles", "output"),
    [
        ((5, 1, 28, 28), 8, (5, 1, 81, 7, 7)),
        ((2, 3, 32, 32), 8, (2, 3, 81, 8, 8)),
        ((2, 28, 28), 11, (2, 144, 7, 7)),
    ],
)
def test_shapes_of_mnist_and_cifar(
    shape: tuple[int, ...], angles: int, output: tuple[int, ...]
) -> None:
    assert transform(shape[-2], shape[-1], angles=angles)(images(*shape)).shape == output


def test_an_image_has_the_same_features_whatever_stands_next_to_it() -> None:
    batch = images(130, 8, 8)  # more than a chunk
    scatter = transform(8, 8)
    alone = torch.stack([scatter(batch[n]) for n in (0, 63, 64, 129)])
    torch.testing.assert_close(scatter(batch)[[0, 63, 64, 129]], alone, rtol=1e-5, atol=1e-6)


def test_a_constant_image_has_its_average_and_no_edges() -> None:
    maps = transform(16, 16)(torch.full((16, 16), 0.25))
    torch.testing.assert_close(maps[0], torch.full((4, 4), 0.25), rtol=1e-4, atol=0)
    assert maps[1:].abs().max() < 1e-6


def test_edges_do_not_depend_on_the_sign_but_the_average_does() -> None:
    scatter, image = transform(16, 16), images(16, 16)
    maps, negated = scatter(image), scatter(-image)
    torch.testing.assert_close(negated[0], -maps[0])
    torch.testing.assert_close(negated[1:], maps[1:], rtol=1e-4, atol=1e-6)


def test_a_wave_answers_most_at_its_own_angle() -> None:
    rows = torch.arange(32.0)[:, None].expand(32, 32)
    vertical = torch.cos(0.75 * torch.pi * rows)  # varies down the rows: angle 0
    first_scale = transform(32, 32)(vertical)[1:9].mean(dim=(1, 2))
    assert int(first_scale.argmax()) == 3  # angles run (3 - n) pi / 8


def test_images_of_another_size_or_too_small_are_refused() -> None:
    with pytest.raises(ParameterError, match="images must be 8 x 8"):
        transform(8, 8)(images(2, 9, 8))
    with pytest.raises(ParameterError, match="larger than 4 pixels a side, got 4 x 28"):
        Geometry(height=4, width=28, scales=2, angles=8)


def test_group_normalization_sets_each_samples_groups_to_mean_0_and_variance_1() -> None:
    features = 3 + 5 * images(4, 81, 7, 7)
    groups = group_normalize(features, 27).reshape(4, 27, -1)
    torch.testing.assert_close(groups.mean(dim=2), torch.zeros(4, 27), rtol=0, atol=1e-5)
    torch.testing.assert_close(groups.var(dim=2, correction=0), torch.ones(4, 27))


def test_group_normalization_mixes_no_samples() -> None:
    features = images(4, 144, 7, 7)
    torch.testing.assert_close(group_normalize(features, 6)[1:2], group_normalize(features[1:2], 6))


def test_groups_that_do_not_divide_the_channels_are_refused_with_those_that_do() -> None:
    with pytest.raises(ParameterError, match="got 24; choose one of 1, 3, 9, 27, 81"):
        group_normalize(images(1, 81, 2, 2), 24)


def test_logarithms_keep_the_averages_and_compress_edges() -> None:
    maps = transform(8, 8, scales=1, angles=4)(images(2, 3, 8, 8))
    found = logarithms(maps)
    assert found.shape == maps.shape
    torch.testing.assert_close(found[:, :, 0], maps[:, :, 0])
    torch.testing.assert_close(found[:, :, 1:], torch.log1p(100 * maps[:, :, 1:].clamp_min(0)))


def test_opponent_colors_turn_and_do_not_stretch() -> None:
    colours = images(2, 3, 4, 4)
    found = opponent_colors(colours)
    torch.testing.assert_close(found.square().sum(dim=1), colours.square().sum(dim=1))
    grey = opponent_colors(colours[:, :1].expand(2, 3, 4, 4))
    torch.testing.assert_close(grey[:, 0], 3**0.5 * colours[:, 0])
    torch.testing.assert_close(grey[:, 1:], torch.zeros(2, 2, 4, 4), rtol=0, atol=1e-6)
