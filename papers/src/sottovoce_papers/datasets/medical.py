"""Data sets of medical images: Medical MNIST and the MedMNIST collection."""

from dataclasses import dataclass
from pathlib import Path

from sottovoce.core.errors import DataError, UnknownNameError
from sottovoce.learning.datasets.dataset import (
    Array,
    Dataset,
    check_classes,
    check_same_rows,
    names_in_npz,
    read_npz,
    scale_images,
)
from sottovoce.learning.datasets.register import DataFile, DataSource, Digest, LoadRequest, register

_OUR_NAMES = ("x_train", "y_train", "x_test", "y_test")
_MEDMNIST_NAMES = ("train_images", "train_labels", "test_images", "test_labels")
_MEDMNIST_URL = "https://zenodo.org/records/10519652/files"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """One data set of MedMNIST at 28 pixels: its number of classes and the published MD5."""

    num_classes: int
    md5: str
    license: str = "CC BY 4.0"


_MEDMNIST = {
    "pathmnist": _Member(num_classes=9, md5="a8b06965200029087d5bd730944a56c1"),
    "dermamnist": _Member(
        num_classes=7, md5="0744692d530f8e62ec473284d019b0c7", license="CC BY-NC 4.0"
    ),
    "octmnist": _Member(num_classes=4, md5="c68d92d5b585d8d81f7112f81e2d0842"),
    "pneumoniamnist": _Member(num_classes=2, md5="28209eda62fecd6e6a2d98b1501bb15f"),
    "retinamnist": _Member(num_classes=5, md5="bd4c0672f1bba3e3a89f0e4e876791e4"),
    "breastmnist": _Member(num_classes=2, md5="750601b1f35ba3300ea97c75c52ff8f6"),
    "bloodmnist": _Member(num_classes=8, md5="7053d0359d879ad8a5505303e11de1dc"),
    "tissuemnist": _Member(num_classes=8, md5="ebe78ee8b05294063de985d821c1c34b"),
    "organamnist": _Member(num_classes=11, md5="68e3f8846a6bd62f0c9bf841c0d9eacc"),
    "organcmnist": _Member(num_classes=11, md5="b9ceb9546e10131b32923c5bbeaea2b1"),
    "organsmnist": _Member(num_classes=11, md5="9ab87b696fb54e2a387ebe992d6ed5f1"),
    "organmnist3d": _Member(num_classes=11, md5="a0c5a1ff56af4f155c46d46fbb45a2fe"),
    "nodulemnist3d": _Member(num_classes=2, md5="8755a7e9e05a4d9ce80a24c3e7a256f3"),
    "adrenalmnist3d": _Member(num_classes=2, md5="bbd3c5a5576322bc4cdfea780653b1ce"),
    "fracturemnist3d": _Member(num_classes=3, md5="6aa7b0143a6b42da40027a9dda61302f"),
    "vesselmnist3d": _Member(num_classes=2, md5="b41fd4f7e7e2feedddb201585ecafa1b"),
    "synapsemnist3d": _Member(num_classes=2, md5="1235b78a3cd6280881dd7850a78eadb6"),
}


def _medmnist_sources(member: str) -> tuple[DataSource, ...]:
    if member == "chestmnist":
        raise DataError(
            "'chestmnist' has fourteen yes-or-no labels per image, but one class per image is "
            f"needed; choose one of {', '.join(_MEDMNIST)}"
        )
    if member not in _MEDMNIST:
        raise UnknownNameError.among("MedMNIST dataset", member, _MEDMNIST)
    file = DataFile(
        path=f"{member}.npz",
        url=f"{_MEDMNIST_URL}/{member}.npz?download=1",
        digest=Digest(algorithm="md5", hexadecimal=_MEDMNIST[member].md5),
    )
    return (DataSource(files=(file,)),)


@register(
    "medmnist:",
    placeholder="NAME",
    summary="any of MedMNIST's datasets with one label per image, such as medmnist:bloodmnist",
    sources=_medmnist_sources,
)
def medmnist(request: LoadRequest) -> Dataset:
    """Return a MedMNIST data set at 28 pixels; volumes get a channel axis in front.

    Its validation part is not used. Reference: Yang et al. 2023, MedMNIST v2.
    """
    return _medmnist(request, request.argument)


@register(
    "pneumonia_mnist",
    summary="28x28 chest X-rays of children, pneumonia or normal, 4,708 + 624",
    sources=_medmnist_sources("pneumoniamnist"),
)
def pneumonia_mnist(request: LoadRequest) -> Dataset:
    """Return PneumoniaMNIST, from MedMNIST's file or an npz file with our names of arrays."""
    return _medmnist(request, "pneumoniamnist")


def _medmnist(request: LoadRequest, member: str) -> Dataset:
    about = _MEDMNIST[member]
    note = (
        f"{member} of MedMNIST v2, Yang et al. 2023, {about.license}; not for clinical use. Its "
        "validation part is not used."
    )
    return _dataset(request.paths[0], request.name, about.num_classes, note)


@register(
    "medical_mnist",
    summary="32x32 X-rays, CTs and MRIs of six body regions, 10,000 + 2,000",
    sources=(DataSource(files=(DataFile(path="medical_mnist.npz"),)),),
    remedy=(
        "get Medical MNIST (kaggle.com/datasets/andrewmvd/medical-mnist), average its images to "
        "32x32 and save bytes x_train, y_train, x_test, y_test under that name"
    ),
)
def medical_mnist(request: LoadRequest) -> Dataset:
    """Return Medical MNIST, whose classes are six kinds of images."""
    note = "Medical MNIST (MedNIST), CC BY-SA 4.0; images averaged to 32x32."
    return _dataset(request.paths[0], "medical_mnist", 6, note)


def _dataset(path: Path, name: str, num_classes: int, note: str) -> Dataset:
    x_train, y_train, x_test, y_test = _parts(path)
    return Dataset(
        name=name,
        train_features=scale_images(path, "training images", x_train),
        train_labels=check_classes(path, "training labels", y_train, num_classes),
        test_features=scale_images(path, "test images", x_test),
        test_labels=check_classes(path, "test labels", y_test, num_classes),
        num_classes=num_classes,
        note=note,
    )


def _parts(path: Path) -> tuple[Array, Array, Array, Array]:
    """Return images and labels for training and testing, under either set of names."""
    theirs = "train_images" in names_in_npz(path)
    names = _MEDMNIST_NAMES if theirs else _OUR_NAMES
    data = read_npz(path, dict.fromkeys(names))
    x_train, y_train, x_test, y_test = (data[name] for name in names)
    check_same_rows(path, train_images=x_train, train_labels=y_train)
    check_same_rows(path, test_images=x_test, test_labels=y_test)
    return x_train, y_train, x_test, y_test
