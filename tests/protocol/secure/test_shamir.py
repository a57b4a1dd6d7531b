"""Tests of secret sharing, against the definition by polynomials."""

import itertools
import secrets

import pytest

from sottovoce.core.errors import ParameterError, WireError
from sottovoce.protocol.secure.shamir import (
    PRIME,
    as_secret,
    combine,
    read_share,
    split_secret,
    weighted,
    weights_at,
)

SECRET = bytes(range(31))


@pytest.mark.parametrize(("threshold", "count"), [(1, 1), (1, 3), (2, 3), (3, 5), (5, 5)])
def test_any_threshold_of_shares_gives_the_secret(threshold: int, count: int) -> None:
    shares = split_secret(SECRET, threshold=threshold, shares=count)
    for chosen in itertools.combinations(range(1, count + 1), threshold):
        assert combine({index: shares[index - 1] for index in chosen}) == SECRET


def test_fewer_shares_fit_every_secret() -> None:
    """Two shares and any value at 0 lie on one polynomial of degree 2."""
    shares = split_secret(SECRET, threshold=3, shares=3)
    values = [read_share(share) for share in shares[:2]]
    for secret in (0, 1, int.from_bytes(b"\xff" * 31, "little")):
        third = weighted(weights_at([1, 2, 0], 3), [*values, secret])
        assert weighted(weights_at([1, 2, 3]), [*values, third]) == secret


def test_coefficients_are_uniform_modulo_the_prime(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def below(limit: int) -> int:
        asked.append(limit)
        return limit - 1

    monkeypatch.setattr(secrets, "randbelow", below)
    (share,) = split_secret(bytes(31), threshold=4, shares=4)[:1]
    assert asked == [PRIME] * 3
    assert read_share(share) == PRIME - 3  # -x^3 - x^2 - x at 1


def test_shares_do_not_repeat() -> None:
    first, second = (split_secret(SECRET, threshold=2, shares=2) for _ in range(2))
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    "share", [b"", bytes(31), bytes(33), PRIME.to_bytes(32, "little"), b"\xff" * 32]
)
def test_what_is_no_number_below_the_prime_is_no_share(share: bytes) -> None:
    with pytest.raises(WireError, match="below"):
        read_share(share)


def test_a_wrong_share_gives_another_secret_or_none() -> None:
    shares = split_secret(SECRET, threshold=2, shares=2)
    try:
        found = combine({1: shares[0], 2: bytes(32)})
    except WireError:
        found = None
    assert found != SECRET
    with pytest.raises(WireError, match="31 bytes"):
        as_secret(2**248)


def test_a_threshold_above_the_number_of_shares_is_refused() -> None:
    with pytest.raises(ParameterError):
        split_secret(SECRET, threshold=3, shares=2)
    with pytest.raises(ValueError, match="31 bytes"):
        split_secret(b"short", threshold=1, shares=1)
