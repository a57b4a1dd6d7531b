import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sottovoce.core.errors import OutputError, ParameterError, UnknownNameError
from sottovoce.learning import features
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.features import Flatten, StepProgress
from sottovoce_papers.features import public_images, scattering_step
from sottovoce_papers.features.precondition_step import Precondition
from sottovoce_papers.features.scattering import (
    Geometry,
    Scattering2d,
    group_normalize,
    logarithms,
    opponent_colors,
)
from sottovoce_papers.features.scattering_step import Scattering

SCATTERING = Scattering(scales=1, angles=4, groups=5)
STROKES = Precondition(images="strokes", count=40, components=6)


def pixels(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size=shape, dtype=np.uint8)


def scaled(values: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (values / 255 - 0.5).astype(np.float32)


def dataset(channels: int = 1, side: int = 8, seed: int = 0) -> Dataset:
    return Dataset(
        name="noise",
        train_features=scaled(pixels(30, channels, side, side, seed=seed)),
        train_labels=np.zeros(30, dtype=np.int64),
        test_features=scaled(pixels(7, channels, side, side, seed=seed + 1)),
        test_labels=np.zeros(7, dtype=np.int64),
        num_classes=2,
    )


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[StepProgress] = []

    def __call__(self, progress: StepProgress) -> None:
        self.heard.append(progress)


def array_file(folder: Path) -> Path:
    """The largest array in a cache: the training data's."""
    return max(folder.glob("*.npy"), key=lambda path: path.stat().st_size)


def test_no_steps_change_nothing(tmp_path: Path) -> None:
    data = dataset()
    assert features.apply((), data, tmp_path / "cache") is data
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("channels", [1, 3])
def test_scattering_is_the_normalized_transform_in_float16(tmp_path: Path, channels: int) -> None:
    data = dataset(channels)
    found = features.apply((SCATTERING,), data, tmp_path).test_features
    transform = Scattering2d(Geometry(height=8, width=8, scales=1, angles=4))
    maps = transform(torch.from_numpy(data.test_features)).flatten(start_dim=1, end_dim=2)
    assert found.dtype == np.float16
    assert isinstance(found, np.memmap)
    assert found.shape == (7, 5 * channels, 4, 4)
    np.testing.assert_allclose(found, group_normalize(maps, 5).numpy(), rtol=2e-3, atol=2e-3)


def test_views_are_normalized_by_themselves_one_after_the_other(tmp_path: Path) -> None:
    data = dataset(channels=3)
    step = Scattering(scales=1, angles=4, groups=5, views=("opponent", "log", "plain"))
    found = features.apply((step,), data, tmp_path).test_features
    transform = Scattering2d(Geometry(height=8, width=8, scales=1, angles=4))
    images = torch.from_numpy(data.test_features)
    plain = transform(images)
    wanted = [
        group_normalize(maps.flatten(start_dim=1, end_dim=2), 5).numpy()
        for maps in (transform(opponent_colors(images)), logarithms(plain), plain)
    ]
    assert found.shape == (7, 3 * 15, 4, 4)
    np.testing.assert_allclose(found, np.concatenate(wanted, axis=1), rtol=2e-3, atol=2e-3)


def test_a_view_alone_is_that_view_among_others(tmp_path: Path) -> None:
    steps = [
        Scattering(scales=1, angles=4, groups=5, views=views)
        for views in (("log",), ("opponent",), ("log", "opponent"))
    ]
    log, opponent, both = (
        features.apply((step,), dataset(channels=3), tmp_path).train_features for step in steps
    )
    np.testing.assert_array_equal(both, np.concatenate([log, opponent], axis=1))


def test_naming_the_plain_view_is_the_same_entry(tmp_path: Path) -> None:
    features.apply((SCATTERING,), dataset(), tmp_path)
    before = set(tmp_path.iterdir())
    named = Scattering(scales=1, angles=4, groups=5, views=("plain",))
    features.apply((named,), dataset(), tmp_path)
    assert set(tmp_path.iterdir()) == before


def test_entries_made_before_there_were_views_are_found() -> None:
    assert features.step_identity(SCATTERING) == {"scales": 1, "angles": 4, "groups": 5}


def test_public_images_are_seen_in_the_same_views(tmp_path: Path) -> None:
    scattering = Scattering(scales=1, angles=4, groups=5, views=("opponent", "log"))
    leaves = Precondition(images="dead_leaves", count=40, variants=2, components=6)
    found = features.apply((scattering, leaves), dataset(channels=3), tmp_path)
    assert found.train_features.shape == (30, 7)


def test_flatten_makes_rows_and_keeps_the_map(tmp_path: Path) -> None:
    found = features.apply((SCATTERING, Flatten()), dataset(), tmp_path)
    assert found.train_features.shape == (30, 80)
    assert isinstance(found.train_features, np.memmap)
    assert found.train_labels is not None


def test_the_second_time_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (SCATTERING, STROKES)
    first, again = Listener(), Listener()
    made = features.apply(steps, dataset(), tmp_path, first)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(public_images, "drawn", never)
    mapped = features.apply(steps, dataset(), tmp_path, again)
    assert first.heard
    assert not again.heard
    np.testing.assert_array_equal(mapped.train_features, made.train_features)
    np.testing.assert_array_equal(mapped.test_features, made.test_features)


def test_progress_counts_the_samples_of_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scattering_step, "CHUNK_SAMPLES", 8)
    listener = Listener()
    features.apply((SCATTERING,), dataset(), tmp_path, listener)
    heard = [(one.part, one.samples_done, one.samples_total) for one in listener.heard]
    assert heard == [
        *[("train", done, 30) for done in (8, 16, 24, 30)],
        ("test", 7, 7),
    ]


@pytest.mark.parametrize(
    "other", [Scattering(scales=1, angles=4, groups=1), Scattering(scales=1, angles=9, groups=5)]
)
def test_other_parameters_are_another_entry(tmp_path: Path, other: Scattering) -> None:
    features.apply((SCATTERING,), dataset(), tmp_path)
    before = set(tmp_path.iterdir())
    features.apply((other,), dataset(), tmp_path)
    assert len(set(tmp_path.iterdir()) - before) == 4


def test_other_data_is_another_entry(tmp_path: Path) -> None:
    first = features.apply((SCATTERING,), dataset(), tmp_path).train_features
    second = features.apply((SCATTERING,), dataset(seed=5), tmp_path).train_features
    assert not np.array_equal(first, second)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _blank(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:128] + bytes(path.stat().st_size - 128))


def _another_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"<f2", b"<i2"))


def _no_description(path: Path) -> None:
    path.with_suffix(".json").unlink()


def _broken_description(path: Path) -> None:
    path.with_suffix(".json").write_text("{")


def _absent(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "damage", [_cut, _blank, _another_header, _no_description, _broken_description, _absent]
)
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: object) -> None:
    good = np.array(features.apply((SCATTERING,), dataset(), tmp_path).train_features)
    assert callable(damage)
    damage(array_file(tmp_path))
    listener = Listener()
    again = features.apply((SCATTERING,), dataset(), tmp_path, listener).train_features
    assert {one.part for one in listener.heard} == {"train"}
    np.testing.assert_array_equal(again, good)


def test_a_stopped_run_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    def stop(_: StepProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        features.apply((SCATTERING,), dataset(), tmp_path, stop)
    assert list(tmp_path.iterdir()) == []


def test_entries_are_the_owners_alone(tmp_path: Path) -> None:
    features.apply((SCATTERING,), dataset(), tmp_path)
    assert array_file(tmp_path).stat().st_mode & 0o077 == 0
    description = json.loads(array_file(tmp_path).with_suffix(".json").read_text())
    assert description["shape"] == [30, 5, 4, 4]


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot create"):
        features.apply((SCATTERING,), dataset(), tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    "step",
    [STROKES, Precondition(images="dead_leaves", count=40, variants=4, components=6, exponent=0.0)],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_preconditioned_samples_are_few_coordinates_and_a_bias(
    tmp_path: Path, step: Precondition, channels: int
) -> None:
    found = features.apply((SCATTERING, step), dataset(channels), tmp_path).train_features
    assert found.dtype == np.float32
    assert found.shape == (30, 7)
    np.testing.assert_allclose(np.linalg.norm(found[:, :6], axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(found[:, 6], np.float32(0.1))


def test_more_coordinates_of_the_same_public_images_are_learned_once(tmp_path: Path) -> None:
    """Discriminants are sought among many directions, so those of fewer are the first of more."""
    few = Precondition(images="strokes", count=60, variants=3, components=3, exponent=0.0)
    more = dataclasses.replace(few, components=6)
    first, second = Listener(), Listener()
    small = features.apply((SCATTERING, few), dataset(), tmp_path, first).train_features
    large = features.apply((SCATTERING, more), dataset(), tmp_path, second).train_features
    assert "public" in {progress.part for progress in first.heard}
    assert "public" not in {progress.part for progress in second.heard}
    lengths = np.linalg.norm(large[:, :3], axis=1, keepdims=True)
    np.testing.assert_allclose(small[:, :3], large[:, :3] / lengths, rtol=1e-4)
    other = dataclasses.replace(few, seed=1)
    third = Listener()
    features.apply((SCATTERING, other), dataset(), tmp_path, third)
    assert "public" in {progress.part for progress in third.heard}


def test_more_discriminants_than_public_things_are_refused(tmp_path: Path) -> None:
    step = Precondition(images="strokes", count=60, variants=3, components=10)
    with pytest.raises(ParameterError, match="components must be an integer from 1 to 4"):
        features.apply((Flatten(), step), dataset(side=2), tmp_path)


def test_a_sample_is_preconditioned_alike_whichever_client_else_takes_part(tmp_path: Path) -> None:
    data = dataset()
    alone = Dataset(
        name="one",
        train_features=data.train_features[3:4],
        train_labels=data.train_labels[3:4],
        test_features=data.test_features,
        test_labels=data.test_labels,
        num_classes=2,
    )
    steps = (SCATTERING, STROKES)
    together = features.apply(steps, data, tmp_path / "a").train_features[3]
    np.testing.assert_allclose(
        features.apply(steps, alone, tmp_path / "b").train_features[0], together, atol=1e-3
    )


def save(path: Path, images: NDArray[np.uint8]) -> Precondition:
    np.savez(path, images=images)
    return Precondition(images=str(path), count=10, components=3)


@pytest.mark.parametrize("shape", [(12, 8, 8), (12, 1, 8, 8), (12, 8, 8, 1)])
def test_public_images_come_from_a_file(tmp_path: Path, shape: tuple[int, ...]) -> None:
    step = save(tmp_path / "public.npz", pixels(*shape, seed=9))
    found = features.apply((step,), dataset(), tmp_path / "cache").train_features
    assert found.shape == (30, 4)


@pytest.mark.parametrize(("part", "whose"), [("train", "training"), ("test", "test")])
def test_private_images_passed_as_public_are_refused(tmp_path: Path, part: str, whose: str) -> None:
    private = pixels(30, 1, 8, 8, seed=0) if part == "train" else pixels(7, 1, 8, 8, seed=1)
    step = save(tmp_path / "public.npz", np.concatenate([pixels(20, 1, 8, 8, seed=9), private[:1]]))
    with pytest.raises(ParameterError, match=f"1 of the images in .* are also {whose} images"):
        features.apply((step,), dataset(), tmp_path / "cache")


def test_the_training_file_itself_is_refused_also_when_features_are_cached(tmp_path: Path) -> None:
    step = save(tmp_path / "public.npz", pixels(12, 1, 8, 8, seed=9))
    features.apply((step,), dataset(), tmp_path / "cache")
    save(tmp_path / "public.npz", pixels(30, 1, 8, 8, seed=0))
    with pytest.raises(ParameterError, match="30 of the images"):
        features.apply((step,), dataset(), tmp_path / "cache")


def test_wrong_public_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "public.npz"
    with pytest.raises(OutputError, match="cannot read"):
        features.apply(
            (Precondition(images=str(path), count=9, components=2),), dataset(), tmp_path
        )
    step = save(path, pixels(12, 9, 9))
    with pytest.raises(ParameterError, match=r"shape \(1, 9, 9\)"):
        features.apply((step,), dataset(), tmp_path)
    step = save(path, pixels(4, 8, 8, seed=9))
    with pytest.raises(ParameterError, match="count must be at most the 4 images"):
        features.apply((step,), dataset(), tmp_path)
    np.savez(path, pictures=pixels(12, 8, 8))
    with pytest.raises(
        ParameterError, match="must have an array called images or x_train, got pictures"
    ):
        features.apply((step,), dataset(), tmp_path)
    np.savez(path, images=np.ones((12, 8, 8)))
    with pytest.raises(ParameterError, match=r"numbers in \[-1/2, 1/2\]"):
        features.apply((step,), dataset(), tmp_path)
    path.write_bytes(b"not an archive")
    with pytest.raises(ParameterError, match=r"cannot be read as a \.npz file"):
        features.apply((step,), dataset(), tmp_path)


def test_wrong_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'strokes'"):
        Precondition(images="stroks", count=40, components=6)
    with pytest.raises(ParameterError, match="components must be an integer from 1 to 9, got 10"):
        Precondition(images="strokes", count=40, variants=4, components=10)
    with pytest.raises(ParameterError, match="variants must be 1 with images from a file"):
        Precondition(images="public.npz", count=40, variants=4, components=6)
    with pytest.raises(ParameterError, match="make it the first step"):
        features.apply((Flatten(), SCATTERING), dataset(), tmp_path)
    with pytest.raises(ParameterError, match="groups must divide the 5 channels, got 2"):
        features.apply((Scattering(scales=1, angles=4, groups=2),), dataset(), tmp_path)
    colours = Scattering(scales=1, angles=4, groups=5, views=("opponent",))
    with pytest.raises(ParameterError, match="takes images of 3 colors, got 1"):
        features.apply((colours,), dataset(), tmp_path)
    with pytest.raises(ParameterError, match="none twice"):
        Scattering(views=("log", "log"))
    with pytest.raises(ParameterError, match="at least one"):
        Scattering(views=())
    with pytest.raises(UnknownNameError, match="did you mean 'opponent'"):
        Scattering(views=("oponent",))  # type: ignore[arg-type]
