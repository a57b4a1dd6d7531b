"""Shamir's secret sharing over the integers modulo the prime 2^255 - 19.

A secret of 31 bytes is the value at 0 of a polynomial of degree threshold - 1 whose other
coefficients are uniform; the share with index i = 1, 2, ... is its value at i, 32 bytes. Fewer
shares than the threshold are uniform and independent of the secret. Integers are little-endian.
"""

import operator
import secrets
from collections.abc import Mapping, Sequence

from sottovoce.core import parameter_rules
from sottovoce.core.errors import WireError

PRIME = 2**255 - 19
SECRET_BYTES = 31
SHARE_BYTES = 32


def split_secret(secret: bytes, *, threshold: int, shares: int) -> list[bytes]:
    """Return the shares with the indices 1, 2, ..., `shares` of a secret of 31 bytes.

    Any `threshold` of them determine the secret; fewer say nothing about it.
    """
    parameter_rules.integer("threshold", threshold, low=1, high=shares)
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "little"))
    return [_value_at(index, coefficients) for index in range(1, shares + 1)]


def _value_at(index: int, coefficients: Sequence[int]) -> bytes:
    value = 0
    for coefficient in coefficients:
        value = (value * index + coefficient) % PRIME
    return value.to_bytes(SHARE_BYTES, "little")


def read_share(share: bytes) -> int:
    """Return a share as a number modulo the prime.

    Raises:
        WireError: It has another length, or is not below the prime.
    """
    value = int.from_bytes(share, "little")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise WireError("a share of a secret must be 32 bytes, below 2^255 - 19")
    return value


def weights_at(indices: Sequence[int], point: int = 0) -> list[int]:
    """Return the weights with which values at distinct indices give the value at a point."""
    found = []
    for index in indices:
        top, bottom = 1, 1
        for other in indices:
            if other != index:
                top = top * (point - other) % PRIME
                bottom = bottom * (index - other) % PRIME
        found.append(top * pow(bottom, -1, PRIME) % PRIME)
    return found


def weighted(weights: Sequence[int], values: Sequence[int]) -> int:
    """Return the sum of weights times values modulo the prime."""
    total: int = sum(map(operator.mul, weights, values))
    return total % PRIME


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret that shares by index determine, if they are enough and right.

    Raises:
        WireError: A share is malformed, or they are not the shares of a secret of 31 bytes.
    """
    values = [read_share(share) for share in shares.values()]
    return as_secret(weighted(weights_at(list(shares)), values))


def as_secret(value: int) -> bytes:
    """Return a number as a secret of 31 bytes.

    Raises:
        WireError: It is larger, so the shares were not those of a secret.
    """
    if value >> (8 * SECRET_BYTES):
        raise WireError("the shares are not those of one secret of 31 bytes")
    return value.to_bytes(SECRET_BYTES, "little")
