"""UTKFace: faces with an attribute, for studying what a model gives away about people."""

from sottovoce.learning.datasets.arrays import (
    classes,
    pixels,
    read_npz,
    same_rows,
    with_random_test_part,
)
from sottovoce.learning.datasets.dataset import Dataset
from sottovoce.learning.datasets.register import Request, register
from sottovoce.learning.datasets.sources import DataFile, Source


@register(
    "utkface",
    summary="48x48 grey faces, two classes (gender), a fifth held out",
    sources=(
        Source(files=(DataFile(path="utkface.npz"),)),
        Source(files=(DataFile(path="utkface_8k.npz"),)),
    ),
    remedy=(
        "get the aligned faces (susanqq.github.io/UTKFace), average them to 48x48 grey and save "
        "bytes x (images) and gender (0 or 1) under one of those names"
    ),
)
def utkface(request: Request) -> Dataset:
    """UTKFace with the label gender; no official split, so a random fifth is held out.

    Reference: Zhang, Song and Qi 2017.
    """
    path = request.paths[0]
    data = read_npz(path, {"x": None, "gender": None})
    same_rows(path, **data)
    features = pixels(path, "x", data["x"])
    labels = classes(path, "gender", data["gender"], 2)
    return with_random_test_part(
        "utkface",
        features,
        labels,
        request.generator,
        num_classes=2,
        note=(
            "UTKFace, Zhang, Song and Qi 2017: non-commercial research only. Age, gender and race "
            "were estimated by an algorithm and checked by an annotator, not asked of the people."
        ),
    )
