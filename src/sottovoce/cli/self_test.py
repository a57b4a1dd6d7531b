"""A quick self test of the parts on whose correctness every result depends."""

import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.core import native
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import BudgetExhaustedError
from sottovoce.core.randomness import Keystream, SystemRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget, Release
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.release import release_event
from sottovoce.privacy.accounting import privacy_spent

_DIMENSION = 5000
_KEY = bytes(range(32))


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestCheck:
    """The result of one check.

    Attributes:
        name: What was checked.
        ok: Whether it works.
        detail: What was found, or what went wrong.
    """

    name: str
    ok: bool
    detail: str


def self_test() -> tuple[SelfTestCheck, ...]:
    """Run all checks of an installation and return their results.

    A check that fails or raises is a result with `ok` false, and does not stop the others.
    """
    return tuple(_tried(name, check) for name, check in _checks())


def _checks() -> Iterator[tuple[str, Callable[[], str]]]:
    yield "accounting", _accounting
    for level in native.levels():
        yield f"encode and decode ({level})", lambda level=level: _encoding(level)  # type: ignore[misc]
    yield "system randomness", _randomness
    yield "shipped designs", _designs
    yield "ledger", _ledger
    yield "certificates", _certificates


def _tried(name: str, check: Callable[[], str]) -> SelfTestCheck:
    try:
        return SelfTestCheck(name=name, ok=True, detail=check())
    except Exception as error:  # any error is the result of this check; the next one runs
        reason = " ".join(str(error).split()) or "no reason given"
        return SelfTestCheck(name=name, ok=False, detail=f"{type(error).__name__}: {reason}")


def _require(holds: bool | np.bool_, otherwise: str) -> None:
    """Raise an AssertionError unless `holds`; unlike `assert`, -O does not remove it."""
    if not holds:
        raise AssertionError(otherwise)


def _mechanism(levels: int) -> GaussHermite:
    ball = L2Ball(dimension=_DIMENSION, radius=1.0)
    return GaussHermite(input_domain=ball, levels=levels, noise_multiplier=1.0)


def _accounting() -> str:
    """Check epsilon of 100 Gaussian releases, noise 10, delta 1e-5: 4.37718 (Balle, Wang 2018)."""
    from sottovoce.mechanisms.gaussian import Gaussian
    from sottovoce.privacy.events import Repeated

    ball = L2Ball(dimension=1, radius=1.0)
    mechanism = Gaussian(input_domain=ball, noise_multiplier=10.0)
    event = release_event(mechanism, adjacency=Adjacency.ZERO_OUT)
    spent = privacy_spent(Repeated(event=event, count=100), 1e-5)
    _require(4.3771 < spent.epsilon < 4.3773, f"epsilon {spent.epsilon}, expected 4.37718")
    return str(spent)


def _encoding(level: str) -> str:
    """Check that a kernel gives the codes that numpy gives, and that they can be decoded."""
    update = np.random.default_rng(0).normal(size=_DIMENSION)
    for levels in (2, 8):
        mechanism = _mechanism(levels)
        values = mechanism.input_domain.project(update)
        with native.using("numpy"):
            expected = mechanism.encode(values, Keystream(_KEY))
        with native.using(level):
            codes = mechanism.encode(values, Keystream(_KEY))
        _require(np.array_equal(codes, expected), f"codes of {levels} levels differ from numpy's")
        decoded = mechanism.decode(codes)
        _require(decoded.shape == (_DIMENSION,), f"the decoded vector has shape {decoded.shape}")
        _require(np.isfinite(decoded).all(), "decoded values are not finite")
    return f"{_DIMENSION} coordinates in 1 and 3 bits, the same codes as numpy"


def _randomness() -> str:
    mechanism = _mechanism(2)
    zero = np.zeros(_DIMENSION)
    first, second = (mechanism.encode(zero, SystemRandomness().stream()) for _ in range(2))
    _require(not np.array_equal(first, second), "the system's randomness repeats itself")
    return "two encodings of one vector differ"


def _designs() -> str:
    design = store.find(store.spec_of(3.0, 3, 3))
    certificate = design.certificate()
    _require(certificate["table_epsilon"] <= 3.0, "a table spends more than its certificate says")
    return f"a table of 3 bits, certified at epsilon {certificate['table_epsilon']:.6g}"


def _ledger() -> str:
    """Check that a charge is kept and that one beyond the budget is refused."""
    event = release_event(_mechanism(2), adjacency=Adjacency.ZERO_OUT)
    cost = privacy_spent(event, 1e-5).epsilon
    budget = Budget(epsilon=1.5 * cost, delta=1e-5, adjacency=Adjacency.ZERO_OUT, unit=Unit.CLIENT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        with Ledger(path, create=True) as ledger:
            ledger.set_budget("client", budget)
            ledger.charge(_release(1), 1, event)
        with Ledger(path) as ledger:
            refused = False
            try:
                for number in range(2, 10):
                    ledger.charge(_release(number), 1, event)
            except BudgetExhaustedError:
                refused = True
            _require(refused, "a charge beyond the budget was accepted")
            problems = ledger.verify()
            _require(not problems, f"a new ledger is damaged: {problems[:1]}")
            charges = ledger.num_charges
    return f"{charges} charge(s) kept, the next refused, the chain verified"


def _certificates() -> str:
    """Check that an authority can sign a link's certificate, as TLS of a federation needs."""
    from sottovoce.deployment.machines import certificates

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority, authority_key = folder / "authority.pem", folder / "authority.key"
        certificate, key = folder / "link.pem", folder / "link.key"
        certificates.create_authority(authority, authority_key, name="self test", days=1)
        certificates.issue_certificate(
            certificate,
            key,
            authority=authority,
            authority_key=authority_key,
            hosts=["localhost"],
            days=1,
        )
        problem = certificates.link_problem(certificate, key, authority=authority, host="localhost")
    _require(problem is None, str(problem))
    return f"signed and verified with {ssl.OPENSSL_VERSION}"


def _release(number: int) -> Release:
    return Release(unit=Unit.CLIENT, run="self test", client="client", round=number, uplink=0)
