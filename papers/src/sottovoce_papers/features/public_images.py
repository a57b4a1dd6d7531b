"""The sources of public images: drawn at random, or a file that the user declares public."""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import files
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce_papers.features import synthetic

Array = NDArray[Any]
FILE_SUFFIX = ".npz"
_ARRAY_NAMES = ("images", "x_train")


def is_file(source: str) -> bool:
    """Return whether `source` names a file rather than a kind of synthetic images."""
    return source.endswith(FILE_SUFFIX)


def check_source(source: str) -> None:
    """Refuse a source that is neither a kind of synthetic images nor the path of an .npz file."""
    if not is_file(source) and source not in synthetic.DRAWINGS:
        known = [*synthetic.DRAWINGS, f"PATH{FILE_SUFFIX}"]
        raise UnknownNameError.among("kind of public images", source, known)


def drawn(
    source: str, count: int, sample_shape: tuple[int, ...], seed: int, *, variants: int
) -> Array:
    """Return synthetic images with the channels, height and width of the data."""
    if (
        len(sample_shape) != 3
        or sample_shape[1] != sample_shape[2]
        or sample_shape[0] not in (1, 3)
    ):
        raise ParameterError(
            f"synthetic images are square with 1 or 3 channels, but the data's samples have shape "
            f"{sample_shape}; name a public file of that shape (PATH{FILE_SUFFIX})"
        )
    generator = np.random.default_rng(seed)
    images = synthetic.draw(source, count, sample_shape[1], generator, variants=variants)
    return _with_channels(images, sample_shape[0])


def read(path: Path, sample_shape: tuple[int, ...]) -> Array:
    """Return the images of a file, scaled and shaped like the samples of the data."""
    images = _scaled(_array_in(path), path)
    if images.ndim == 3 and sample_shape[:1] == (1,):
        images = images[:, None]
    if images.ndim == 4 and images.shape[1] != sample_shape[0] == images.shape[3]:
        images = images.transpose(0, 3, 1, 2)  # The file has channels last.
    if images.shape[1:] != sample_shape:
        raise ParameterError(
            f"{path} has images of shape {images.shape[1:]}, but the data's samples have "
            f"{sample_shape}; resize them"
        )
    return np.ascontiguousarray(images)


def chosen(images: Array, count: int, seed: int, path: Path) -> Array:
    """Return `count` of the images, drawn without replacement."""
    if count > len(images):
        raise ParameterError(
            f"count must be at most the {len(images)} images of {path}, got {count}"
        )
    order = np.random.default_rng(seed).permutation(len(images))
    picked: Array = images[np.sort(order[:count])]
    return picked


def refuse_overlap(public: Array, private: Array, *, whose: str, path: Path) -> None:
    """Refuse public images that are also among the `private` images of this run.

    Images are compared at 8 bits per value, so that a different scaling does not hide a match.
    """
    shared = _fingerprints(public) & _fingerprints(private)
    if shared:
        raise ParameterError(
            f"{len(shared)} of the images in {path} are also {whose} images, so learning from "
            "them costs privacy that is not charged; use synthetic images, or a file without them"
        )


def _array_in(path: Path) -> Array:
    with files.explain_os_errors("read", path):
        content = io.BytesIO(path.read_bytes())  # np.load would leave a damaged file open.
        try:
            with np.load(content, allow_pickle=False) as archive:
                for name in _ARRAY_NAMES:
                    if name in archive:
                        array: Array = archive[name]
                        if not isinstance(array, np.ndarray):  # A member of another format.
                            raise ValueError(f"'{name}' is not an array")
                        return array
                raise ParameterError(
                    f"{path} must have an array called {' or '.join(_ARRAY_NAMES)}, got "
                    f"{', '.join(archive.files) or 'none'}; save the images as 'images'"
                )
        except ParameterError:
            raise
        except files.ARRAY_DAMAGE as error:
            raise ParameterError(
                f"{path} cannot be read as a {FILE_SUFFIX} file of arrays ({error}); "
                "save it with numpy.savez"
            ) from None


def _scaled(images: Array, path: Path) -> NDArray[np.float32]:
    if images.dtype == np.uint8:
        return (images / np.float32(255) - np.float32(0.5)).astype(np.float32)
    inside = (
        np.issubdtype(images.dtype, np.floating) and images.size and np.abs(images).max() <= 0.5
    )
    if not inside:
        raise ParameterError(
            f"{path} must hold bytes, or numbers in [-1/2, 1/2], got {images.dtype} of shape "
            f"{images.shape}; scale them"
        )
    return images.astype(np.float32)


def _with_channels(images: Array, channels: int) -> Array:
    """Return images converted between gray and color, where the data needs it."""
    if images.shape[1] == channels:
        return images
    if channels == 1:
        gray: Array = images.mean(axis=1, keepdims=True, dtype=np.float32)
        return gray
    return np.repeat(images, channels, axis=1)


def _fingerprints(images: Array) -> set[bytes]:
    values = images.reshape(len(images), -1)
    return {
        hashlib.blake2b(np.rint((row + 0.5) * 255).astype(np.uint8).data, digest_size=16).digest()
        for row in values
    }
