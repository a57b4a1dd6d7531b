"""MNIST and Fashion-MNIST, from their idx files or an npz of bytes."""

import gzip
import math
from pathlib import Path

import numpy as np

from sottovoce.learning.datasets.dataset import (
    DAMAGE,
    Array,
    Dataset,
    Owners,
    check_classes,
    check_same_rows,
    damaged_file_error,
    read_npz,
    scale_images,
)
from sottovoce.learning.datasets.register import DataFile, DataSource, Digest, LoadRequest, register

SHAPE = (28, 28)
NUM_CLASSES = 10
WRITERS_FILE = "mnist_writers.npz"
_PARTS = ("x_train", "y_train", "x_test", "y_test")
_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
# As published together with the files, in their order.
_MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)


def _sources(name: str, base_url: str, digests: tuple[str, ...]) -> tuple[DataSource, ...]:
    idx = tuple(
        DataFile(
            path=f"{name}/{file}",
            url=f"{base_url}/{file}",
            digest=Digest(algorithm="md5", hexadecimal=digest),
        )
        for file, digest in zip(_IDX_FILES, digests, strict=True)
    )
    return DataSource(files=(DataFile(path=f"{name}.npz"),)), DataSource(files=idx)


@register(
    "mnist",
    summary="28x28 handwritten digits, 10 classes, 60,000 + 10,000",
    sources=_sources("mnist", "https://ossci-datasets.s3.amazonaws.com/mnist", _MNIST_MD5),
)
def mnist(request: LoadRequest) -> Dataset:
    """Load MNIST, pixels scaled to x/255 - 1/2.

    Owners are the writers, from the array `writer_train` of `mnist_writers.npz`, if that file is in
    the data folder. DataError is raised for a damaged file.
    """
    note = "MNIST, LeCun, Cortes and Burges 1998, CC BY-SA 3.0."
    return _dataset(request, "mnist", note, _writers(request.folder / WRITERS_FILE))


@register(
    "fashion_mnist",
    summary="28x28 articles of clothing, 10 classes, 60,000 + 10,000",
    sources=_sources(
        "fashion_mnist",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        _FASHION_MD5,
    ),
)
def fashion_mnist(request: LoadRequest) -> Dataset:
    """Load Fashion-MNIST, pixels scaled to x/255 - 1/2, without owners.

    DataError is raised for a damaged file.
    """
    note = "Fashion-MNIST, Xiao, Rasul and Vollgraf 2017, MIT license."
    return _dataset(request, "fashion_mnist", note, None)


def _dataset(request: LoadRequest, name: str, note: str, owners: Owners | None) -> Dataset:
    if len(request.paths) == 1:
        shapes = {"x_train": 3, "y_train": None, "x_test": 3, "y_test": None}
        parts = read_npz(request.paths[0], shapes)
        paths = dict.fromkeys(_PARTS, request.paths[0])
    else:
        paths = dict(zip(_PARTS, request.paths, strict=True))
        parts = {part: read_idx(path) for part, path in paths.items()}
    for side in ("train", "test"):
        x, y = f"x_{side}", f"y_{side}"
        check_same_rows(paths[x], **{x: parts[x], y: parts[y]})
    if owners is not None:
        check_same_rows(
            request.folder / WRITERS_FILE, writer_train=owners, y_train=parts["y_train"]
        )
    return Dataset(
        name=name,
        train_features=scale_images(paths["x_train"], "x_train", parts["x_train"], SHAPE),
        train_labels=check_classes(paths["y_train"], "y_train", parts["y_train"], NUM_CLASSES),
        test_features=scale_images(paths["x_test"], "x_test", parts["x_test"], SHAPE),
        test_labels=check_classes(paths["y_test"], "y_test", parts["y_test"], NUM_CLASSES),
        num_classes=NUM_CLASSES,
        train_owners=owners,
        note=note if owners is None else f"{note} Writers: QMNIST, Yadav and Bottou 2019.",
    )


def _writers(path: Path) -> Owners | None:
    if not path.is_file():
        return None
    return read_npz(path, {"writer_train": 1})["writer_train"].astype(np.int64)


def read_idx(path: Path) -> Array:
    """Return the array of bytes (uint8) in a gzipped idx file; raise DataError if it is damaged.

    The format is a magic number 0x0000 08 d, then d sizes (big endian), then the data.
    """
    try:
        with gzip.open(path) as file:
            content = file.read()
    except DAMAGE as error:
        raise damaged_file_error(path, error) from None
    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if not dimensions or len(content) < start:
        raise damaged_file_error(path, "it is not an idx file of bytes")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != math.prod(shape):
        raise damaged_file_error(
            path, f"it announces an array of shape {shape} but has {len(content) - start} bytes"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
