"""The data set UTKFace: faces with attributes, to study what a model reveals about people."""

import numpy as np

from sottovoce.learning.datasets.dataset import (
    Dataset,
    check_classes,
    check_same_rows,
    read_npz,
    scale_images,
    with_random_test_part,
)
from sottovoce.learning.datasets.register import DataFile, DataSource, LoadRequest, register

_SOURCES = (
    DataSource(files=(DataFile(path="utkface.npz"),)),
    DataSource(files=(DataFile(path="utkface_8k.npz"),)),
)
_GET = (
    "get the aligned faces (susanqq.github.io/UTKFace), average them to 48x48 gray and save bytes "
)
_NOTE = (
    "UTKFace, Zhang, Song and Qi 2017: non-commercial research only. Age, gender and race "
    "were estimated by an algorithm and checked by an annotator, not asked of the people."
)
AGE_GROUPS = (18, 40, 60)  # The ages at which the next group begins.


@register(
    "utkface",
    summary="48x48 gray faces, two classes (gender), a fifth held out",
    sources=_SOURCES,
    remedy=f"{_GET}x (images) and gender (0 or 1) under one of those names",
)
def utkface(request: LoadRequest) -> Dataset:
    """Return UTKFace with the label gender; a random fifth is held out for testing.

    There is no official split. Reference: Zhang, Song and Qi 2017.
    """
    path = request.paths[0]
    data = read_npz(path, {"x": None, "gender": None})
    check_same_rows(path, **data)
    return with_random_test_part(
        "utkface",
        scale_images(path, "x", data["x"]),
        check_classes(path, "gender", data["gender"], 2),
        request.generator,
        num_classes=2,
        note=_NOTE,
    )


@register(
    "utkface-race",
    summary="48x48 gray faces, five classes (race), with gender and age group, a fifth held out",
    sources=_SOURCES,
    remedy=f"{_GET}x (images), race (0 to 4), gender (0 or 1) and age (years) under one of those "
    "names",
)
def utkface_race(request: LoadRequest) -> Dataset:
    """Return UTKFace with the label race, and two attributes that no model is trained on.

    `gender` is 0 or 1; `age_group` is 0 to 3: below 18, 40 and 60 years, and above. A random fifth
    is held out.

    Reference: Zhang, Song and Qi 2017.
    """
    path = request.paths[0]
    data = read_npz(path, {"x": None, "race": None, "gender": None, "age": None})
    check_same_rows(path, **data)
    age = check_classes(path, "age", data["age"], 256)
    return with_random_test_part(
        "utkface-race",
        scale_images(path, "x", data["x"]),
        check_classes(path, "race", data["race"], 5),
        request.generator,
        num_classes=5,
        attributes={
            "gender": check_classes(path, "gender", data["gender"], 2),
            "age_group": np.digitize(age, AGE_GROUPS).astype(np.int64),
        },
        note=_NOTE,
    )
