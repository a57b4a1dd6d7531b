"""The data set CIFAR-10, from the binary archive or an npz file of bytes.

The archive for Python is not read: it holds pickled objects, which can run code when loaded.
"""

import tarfile
from pathlib import Path

import numpy as np

from sottovoce.learning.datasets.dataset import (
    DAMAGE,
    Array,
    Dataset,
    check_classes,
    check_same_rows,
    damaged_file_error,
    read_npz,
    scale_images,
)
from sottovoce.learning.datasets.register import DataFile, DataSource, Digest, LoadRequest, register

SHAPE = (32, 32, 3)
NUM_CLASSES = 10
_ARCHIVE = DataFile(
    path="cifar-10-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    digest=Digest(algorithm="md5", hexadecimal="c32a1d4ab5d03f1284b67883e8d87530"),
)
_RECORD_BYTES = 1 + 3 * 32 * 32  # The label, then the red, green and blue planes.
_TRAIN_MEMBERS = tuple(f"cifar-10-batches-bin/data_batch_{batch}.bin" for batch in range(1, 6))
_TEST_MEMBERS = ("cifar-10-batches-bin/test_batch.bin",)


@register(
    "cifar10",
    summary="32x32 color photographs, 10 classes, 50,000 + 10,000",
    sources=(DataSource(files=(DataFile(path="cifar10.npz"),)), DataSource(files=(_ARCHIVE,))),
    remedy="do not use cifar-10-python.tar.gz: it holds pickled objects, which can run code",
)
def cifar10(request: LoadRequest) -> Dataset:
    """Return CIFAR-10 with images of shape (3, 32, 32)."""
    path = request.paths[0]
    if path.suffix == ".npz":
        shapes = {"x_train": 4, "y_train": None, "x_test": 4, "y_test": None}
        parts = read_npz(path, shapes)
    else:
        parts = {}
        parts["x_train"], parts["y_train"] = _read_members(path, _TRAIN_MEMBERS)
        parts["x_test"], parts["y_test"] = _read_members(path, _TEST_MEMBERS)
    check_same_rows(path, x_train=parts["x_train"], y_train=parts["y_train"])
    check_same_rows(path, x_test=parts["x_test"], y_test=parts["y_test"])
    return Dataset(
        name="cifar10",
        train_features=scale_images(path, "x_train", parts["x_train"], SHAPE),
        train_labels=check_classes(path, "y_train", parts["y_train"], NUM_CLASSES),
        test_features=scale_images(path, "x_test", parts["x_test"], SHAPE),
        test_labels=check_classes(path, "y_test", parts["y_test"], NUM_CLASSES),
        num_classes=NUM_CLASSES,
        note="CIFAR-10, Krizhevsky 2009.",
    )


def _read_members(path: Path, members: tuple[str, ...]) -> tuple[Array, Array]:
    """Return images (channels last) and labels of some batches, without unpacking to the disk."""
    records = []
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in members:
                file = archive.extractfile(member)
                content = file.read() if file else b""
                if not content or len(content) % _RECORD_BYTES:
                    raise damaged_file_error(path, f"{member} does not hold whole records")
                records.append(np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD_BYTES))
    except (*DAMAGE, tarfile.TarError) as error:
        raise damaged_file_error(path, error) from None
    rows = np.concatenate(records)
    return np.moveaxis(rows[:, 1:].reshape(-1, 3, 32, 32), 1, -1), rows[:, 0]
