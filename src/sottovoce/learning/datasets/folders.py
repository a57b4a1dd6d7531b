"""The data set 'hf:': a Hugging Face data set on disk, or images in one folder for each class."""

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.errors import DataError
from sottovoce.learning.datasets.dataset import (
    TEST_FRACTION,
    Array,
    Dataset,
    Features,
    scale_images,
    with_random_test_part,
)
from sottovoce.learning.datasets.register import LoadRequest, register

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
LABEL_NAMES = ("label", "labels", "target", "y")
IMAGE_NAMES = ("image", "img")

# Features and labels of one split, the labels as integers or names.
Split = tuple[Features, Array]


@register(
    "hf:",
    placeholder="FOLDER",
    summary="your own folder: a Hugging Face dataset (parquet, arrow), or images in class folders",
)
def own_folder(request: LoadRequest) -> Dataset:
    """Load classes from a folder; without a split called 'test' hold out a random fifth.

    Training data are the split 'train', or the first one. Classes are numbered in the order of
    their names. Images must have one size. They are scaled to x/255 - 1/2, and are gray only if all
    of them are. A data set without images has its numeric columns as features, unscaled.

    Raises:
        DataError: The folder is missing or has no such data, a needed package is not installed, or
            a file or column cannot be read.
    """
    folder = Path(request.argument).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder} (the current folder is {Path.cwd()}); check the path"
        )
    splits = _image_splits(folder) or _library_splits(folder)
    names = sorted({name for _, labels in splits.values() for name in labels.tolist()})
    number = {name: position for position, name in enumerate(names)}
    numbered = {
        split: (features, np.array([number[name] for name in labels.tolist()], dtype=np.int64))
        for split, (features, labels) in splits.items()
    }
    train_name = "train" if "train" in numbered else next(iter(numbered))
    features, labels = numbered[train_name]
    num_classes = max(2, len(names))
    note = f"Classes read from the folder, in order: {', '.join(map(str, names))}."
    if "test" not in numbered or train_name == "test":
        if int(TEST_FRACTION * len(labels)) == 0:
            raise DataError(
                f"{folder} has {len(labels)} rows, too few to hold out a fifth for testing; add "
                "rows"
            )
        return with_random_test_part(
            request.name, features, labels, request.generator, num_classes=num_classes, note=note
        )
    test_features, test_labels = numbered["test"]
    return Dataset(
        name=request.name,
        train_features=features,
        train_labels=labels,
        test_features=test_features,
        test_labels=test_labels,
        num_classes=num_classes,
        note=note,
    )


def _import_package(package: str, pip_name: str, folder: Path) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise DataError(
            f"reading {folder} needs the package '{pip_name}', which is not installed; run "
            f"pip install {pip_name}, or save the data as npz and use 'npz:PATH'"
        ) from None


def _image_splits(folder: Path) -> dict[str, Split]:
    """Return the splits of a layout [split/]class/image; none if the layout is another one."""
    split_folders = {child.name: child for child in _folders_in(folder) if _classes_in(child)}
    layout = split_folders or ({"train": folder} if _classes_in(folder) else {})
    if not layout:
        return {}
    image_module = _import_package("PIL.Image", "pillow", folder)
    found = {}
    for split, place in layout.items():
        paths = [path for name in _classes_in(place) for path in _images_in(place / name)]
        images = [_open_image(image_module, path) for path in paths]
        labels = np.array([path.parent.name for path in paths])
        found[split] = images, labels
    channels = _common_mode([image for images, _ in found.values() for image in images])
    return {
        split: (_stack_images(folder, images, channels), labels)
        for split, (images, labels) in found.items()
    }


def _folders_in(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir())


def _images_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)


def _classes_in(folder: Path) -> list[str]:
    return [child.name for child in _folders_in(folder) if _images_in(child)]


def _open_image(image_module: Any, path: Path) -> Any:
    try:
        with image_module.open(path) as image:
            image.load()
            return image.copy()
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}; remove it") from None


def _common_mode(images: Sequence[Any]) -> str:
    return "L" if all(image.mode in ("1", "L") for image in images) else "RGB"


def _stack_images(folder: Path, images: Sequence[Any], mode: str) -> Features:
    arrays = [np.asarray(image.convert(mode), dtype=np.uint8) for image in images]
    shapes = sorted({array.shape[:2] for array in arrays})
    if len(shapes) > 1:
        raise DataError(
            f"the images of {folder} have several sizes, such as {shapes[0]} and {shapes[-1]} "
            "(height, width); convert them to one size first"
        )
    return scale_images(folder, "images", np.stack(arrays))


def _library_splits(folder: Path) -> dict[str, Split]:
    """Return the splits of a Hugging Face data set; run no code of it and use no network."""
    saved = (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()
    parquet = sorted(folder.rglob("*.parquet"))
    if not saved and not parquet:
        raise DataError(
            f"{folder} is not a saved Hugging Face dataset, and has neither parquet files nor one "
            "folder of images for each class; check the path"
        )
    library = _import_package("datasets", "datasets", folder)
    with tempfile.TemporaryDirectory() as cache:
        try:
            loaded = (
                library.load_from_disk(str(folder))
                if saved
                else library.load_dataset("parquet", data_files=_by_split(parquet), cache_dir=cache)
            )
        except Exception as error:  # The library raises errors of many packages.
            raise DataError(
                f"{folder} cannot be read as a dataset: {error}; check its files"
            ) from None
        splits = dict(loaded) if hasattr(loaded, "values") else {"train": loaded}
        return {str(name): _library_split(folder, split) for name, split in splits.items()}


def _by_split(paths: Sequence[Path]) -> dict[str, list[str]]:
    """Group parquet files by the split in their names, as in train-00000-of-00001.parquet."""
    found: dict[str, list[str]] = {}
    for path in paths:
        split = next((name for name in ("test", "validation") if name in path.stem), "train")
        found.setdefault(split, []).append(str(path))
    return found


def _library_split(folder: Path, split: Any) -> Split:
    columns = list(split.column_names)
    label = next((name for name in LABEL_NAMES if name in columns), None)
    if label is None:
        raise DataError(
            f"{folder} has no column called {', '.join(LABEL_NAMES)} (it has "
            f"{', '.join(columns)}); rename the column of the label"
        )
    labels = np.asarray(split[label][:])
    if labels.dtype.kind not in "iuU" or labels.ndim != 1:
        raise DataError(
            f"column '{label}' of {folder} does not contain classes; use integers or names"
        )
    image = next((name for name in IMAGE_NAMES if name in columns), None)
    if image is None:
        return _numeric(folder, split, [name for name in columns if name != label]), labels
    _import_package("PIL.Image", "pillow", folder)
    images = list(split[image][:])
    return _stack_images(folder, images, _common_mode(images)), labels


def _numeric(folder: Path, split: Any, columns: Sequence[str]) -> Features:
    parts: list[NDArray[Any]] = []
    for column in columns:
        try:
            values = np.asarray(split[column][:])
            # Whole numbers stay as they are: tokens, if the model takes them.
            values = values.astype(np.int64 if values.dtype.kind in "iu" else np.float32)
        except (TypeError, ValueError):
            raise DataError(
                f"column '{column}' of {folder} is not numeric, or its rows differ in length; "
                "remove it"
            ) from None
        parts.append(values.reshape(len(values), -1))
    if any(part.dtype == np.float32 for part in parts):
        parts = [part.astype(np.float32) for part in parts]
    features = np.concatenate(parts, axis=1) if parts else np.empty((0, 0), np.float32)
    if not features.size or not np.isfinite(features).all():
        raise DataError(
            f"{folder} has no features, or some that are not finite numbers; correct the data"
        )
    return features
