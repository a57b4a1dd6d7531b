"""The digits that come with scikit-learn: no file, no network."""

import numpy as np

from sottovoce.learning.datasets.dataset import Dataset, with_random_test_part
from sottovoce.learning.datasets.register import Request, register

_THICK = -0.195  # mean brightness that about half of the digits exceed


@register("digits", summary="8x8 handwritten digits, 10 classes, bundled with scikit-learn")
def digits(request: Request) -> Dataset:
    """scikit-learn's bundled 8x8 digits, pixels 0..16 mapped to [-1/2, 1/2]; a fifth held out.

    The attribute `thick` says whether a digit was drawn with much ink: something to infer where
    no other data are at hand.
    """
    from sklearn.datasets import load_digits  # slow to import, and only this loader needs it

    bundle = load_digits()
    features = (bundle.data / 16.0 - 0.5).astype(np.float32)
    labels = bundle.target.astype(np.int64)
    return with_random_test_part(
        "digits",
        features,
        labels,
        request.generator,
        num_classes=10,
        attributes={"thick": (features.mean(axis=1) > _THICK).astype(np.int64)},
        note="Optical recognition of handwritten digits, Alpaydin and Kaynak 1998, CC BY 4.0.",
    )
