"""Sites in this process: what a server orders goes through bytes, and is computed at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import SottovoceError
from sottovoce.deployment.orders import Order, read_order, refusal_blobs, reply_blobs
from sottovoce.deployment.policy import Policy
from sottovoce.deployment.post import Reply
from sottovoce.deployment.site import Site
from sottovoce.deployment.site_training import compute
from sottovoce.flower.remote import _make_rounds
from sottovoce.ledger.ledger import Ledger
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

MECHANISMS = ("gauss_hermite", "gaussian", "clamped_sign", "bitwise_rr", "stochastic_sign")


def a_policy(level: str, **changes: Any) -> Policy:
    """A policy that allows next to anything, but for its level."""
    given: dict[str, Any] = {
        "mechanisms": MECHANISMS,
        "level": Unit(level),
        "adjacency": Adjacency.ZERO_OUT,
        "epsilon_per_round": 1e12,
        "epsilon_total": 1e12,
        "delta": 1e-5,
        "smallest_cohort": 1,
        "trust_server": True,
        "float_noise": True,
        "seeded_randomness": True,
    }
    return Policy(**(given | changes))


@dataclass
class InProcessPost:
    """Every client is a site of its own, made by `site_of`; orders and refusals are kept."""

    site_of: Callable[[str], Site]
    orders: list[Order] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    _replies: list[Reply] = field(default_factory=list)

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        return frozenset(clients)

    def send(self, orders: Mapping[str, Order], *, expires_seconds: float) -> int:
        for client, order in orders.items():
            self.orders.append(order)
            site = self.site_of(client)
            try:
                messages = compute(read_order(order.blobs()), site)
            except SottovoceError as error:
                self.refusals.append(str(error))
                blobs = refusal_blobs(str(error), site.rounds_charged(order.run))
            else:
                blobs = reply_blobs(messages, site.rounds_charged(order.run))
            self._replies.append(Reply(client=client, blobs=blobs))
        return 0

    def traffic(self) -> None:
        """Ignore the count."""

    def collect(self) -> Iterator[Reply]:
        replies, self._replies = self._replies, []
        yield from replies


def sites_in(folder: Path, level: str, **changes: Any) -> Callable[[str], Site]:
    """Sites without records of their own, each with its ledger."""

    def site_of(name: str) -> Site:
        ledger = folder / f"{name}.sqlite"
        return Site(name=name, policy=a_policy(level, **changes), ledger=ledger)

    return site_of


def run_with_sites(
    spec: RunSpec, folder: Path, post: InProcessPost, *, resume: bool = False
) -> dict[str, Any]:
    """A run whose every message a site has computed from its order alone."""
    runtime = spec.runtime.model_copy(update={"backend": "flower"})
    return run(
        spec.model_copy(update={"runtime": runtime}),
        folder,
        resume=resume,
        make_backend=lambda resolved, ledger: _make_rounds(post, resolved, ledger),
    )


def digests(ledger: Path) -> dict[tuple[Any, ...], bytes]:
    """What was sealed under each charge: digests outlive the messages."""
    with Ledger(ledger) as opened:
        rows = opened._db.all(
            "SELECT run, client, round, uplink, attempt, digest FROM charges "
            "JOIN messages ON messages.charge = charges.id"
        )
    return {tuple(key): digest for *key, digest in rows}
