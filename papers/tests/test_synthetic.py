import numpy as np
import pytest

from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce_papers.features import synthetic
from sottovoce_papers.features.synthetic import DRAWINGS, draw


def images(name: str, count: int = 60, size: int = 28, seed: int = 0) -> synthetic.Images:
    return draw(name, count, size, np.random.default_rng(seed))


@pytest.mark.parametrize("name", DRAWINGS)
def test_images_have_the_scale_of_the_datasets(name: str) -> None:
    drawn = images(name)
    assert drawn.dtype == np.float32
    assert drawn.min() >= -0.5
    assert drawn.max() <= 0.5
    assert drawn.reshape(60, -1).std(axis=1).min() > 0.02  # none is blank


@pytest.mark.parametrize("name", DRAWINGS)
def test_images_follow_from_the_generator_alone(name: str) -> None:
    np.testing.assert_array_equal(images(name), images(name))
    assert not np.array_equal(images(name), images(name, seed=1))


@pytest.mark.parametrize("name", DRAWINGS)
def test_variants_of_one_thing_stand_together_and_are_more_alike_than_others(name: str) -> None:
    drawn = draw(name, 480, 28, np.random.default_rng(0), variants=4).reshape(120, 4, -1)
    within = np.linalg.norm(drawn[:, 0] - drawn[:, 1], axis=1)
    between = np.linalg.norm(drawn[:-1, 0] - drawn[1:, 0], axis=1)
    assert within.min() > 0
    assert within.mean() < 0.93 * between.mean()  # pixels say little about hands


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_two_images_are_alike(name: str) -> None:
    assert len(np.unique(images(name).reshape(60, -1), axis=0)) == 60


def test_more_images_than_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "_CHUNK", 4)
    assert len(np.unique(images("strokes", 10).reshape(10, -1), axis=0)) == 10


def test_strokes_are_bright_on_dark_and_centered() -> None:
    ink = images("strokes", 200)[:, 0] + 0.5
    assert 0.05 < ink.mean() < 0.25
    assert np.median(ink) == 0
    middle = np.arange(28) + 0.5
    mass = ink.sum(axis=(1, 2))
    for axis in (1, 2):
        centre = (ink.sum(axis=axis) * middle).sum(axis=1) / mass
        assert abs(centre.mean() - 14) < 0.5
        assert np.abs(centre - 14).mean() < 2
    assert ink[:, 0].mean() < 0.02  # the border is background


def test_strokes_keep_their_look_at_another_size() -> None:
    small, large = (images("strokes", 200, size).mean() for size in (16, 32))
    assert abs(small - large) < 0.05


def test_dead_leaves_have_edges_of_all_sizes_and_little_color() -> None:
    drawn = images("dead_leaves", 100, 32)
    assert drawn.shape == (100, 3, 32, 32)
    grey = drawn.mean(axis=1)
    # Neighbours are mostly of one leaf, pixels far apart mostly not.
    near = np.corrcoef(grey[:, :, :-1].ravel(), grey[:, :, 1:].ravel())[0, 1]
    far = np.corrcoef(grey[:, :, :16].ravel(), grey[:, :, 16:].ravel())[0, 1]
    assert near > 0.8
    assert far < 0.6
    assert np.std(drawn - grey[:, None]) < np.std(grey)


def test_unknown_images_and_wrong_sizes_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'dead_leaves'"):
        images("deadleaves")
    with pytest.raises(ParameterError, match="size must be an integer from 4"):
        images("strokes", size=2)
    with pytest.raises(ParameterError, match="multiple of the 8 variants, got 60; use 64"):
        draw("strokes", 60, 28, np.random.default_rng(0), variants=8)
    with pytest.raises(ParameterError, match="count must be an integer from 1"):
        images("strokes", count=0)
