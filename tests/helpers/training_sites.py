"""Sites of masked sums in this process, each with its key, its pinned roster and its ledger."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from in_process import a_policy
from masked_federations import masked_table

from sottovoce.core.errors import SottovoceError
from sottovoce.deployment.exchanges import Exchanges
from sottovoce.deployment.machines.trust_files import (
    KEY_NAME,
    ROSTER_NAME,
    create_trust_key,
    read_trust_key,
    write_roster,
)
from sottovoce.deployment.masked_orders import Step, read_step, step_blobs
from sottovoce.deployment.masked_site import opening_of_order
from sottovoce.deployment.orders import Order, read_order, refusal_blobs
from sottovoce.deployment.post import OutgoingRequest, Reply
from sottovoce.deployment.site import Site, Trust
from sottovoce.flower.remote import _make_rounds
from sottovoce.protocol.secure.roster import Roster
from sottovoce.runs.loading import parse
from sottovoce.runs.runner import run

NAMES = ("client-0000", "client-0001", "client-0002")


def pin(folder: Path, *, version: int = 1) -> tuple[Roster, dict[str, Trust]]:
    """Write a roster for all sites, each of which pins it; keys are made once."""
    keys = {}
    for name in NAMES:
        own = folder / name
        if not own.exists():
            own.mkdir()
            create_trust_key(own, name=name)
        keys[name] = read_trust_key(own / KEY_NAME).public
    roster = Roster(federation=b"f" * 16, version=version, keys=keys)
    for name in NAMES:
        write_roster(folder / name / ROSTER_NAME, roster)
    return roster, {
        name: Trust(
            key=folder / name / KEY_NAME,
            roster=folder / name / ROSTER_NAME,
            digest=roster.digest.hex(),
        )
        for name in NAMES
    }


@dataclass
class MaskedPost:
    """Every site answers at once; `change` may replace a request, or drop it with None."""

    sites: dict[str, Site]
    change: Callable[[str, OutgoingRequest], OutgoingRequest | None] = lambda _, request: request
    exchanges: dict[str, Exchanges] = field(default_factory=dict)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    sent: list[tuple[str, OutgoingRequest]] = field(default_factory=list)
    _replies: list[Reply] = field(default_factory=list)

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        return frozenset(clients)

    def ask(self, name: str, request: OutgoingRequest) -> bytes:
        """Return what a site answers to one request."""
        mine = self.exchanges.setdefault(name, Exchanges())
        blobs = request.blobs()
        if isinstance(request, Step):
            return mine.step(read_step(blobs), self.sites[name])
        site = self.sites[name]
        return mine.begin(opening_of_order(read_order(blobs), site), site)

    def send(self, orders: Mapping[str, OutgoingRequest], *, expires_seconds: float) -> int:
        for name, order in orders.items():
            request = self.change(name, order)
            if request is None:
                continue
            self.sent.append((name, request))
            try:
                blobs = step_blobs(self.ask(name, request))
            except SottovoceError as error:
                self.refusals.append((name, str(error)))
                blobs = refusal_blobs(str(error))
            self._replies.append(Reply(client=name, blobs=blobs))
        return 0

    def traffic(self) -> None:
        """Ignore the count."""

    def collect(self) -> Iterator[Reply]:
        replies, self._replies = self._replies, []
        yield from replies

    def of(self, name: str, action: str) -> Step:
        """Return the newest step of this kind that a site was sent."""
        return next(
            one
            for site, one in reversed(self.sent)
            if site == name and isinstance(one, Step) and one.action == action
        )


def training_sites(folder: Path, **policy: Any) -> tuple[Roster, dict[str, Site]]:
    """Return the roster, and sites that allow sums over two honest sites and one that colludes."""
    roster, trusts = pin(folder)
    given = {"trust_server": False, "honest": 2, "colluders": 1, **policy}
    return roster, {
        name: Site(
            name=name,
            policy=a_policy("client", **given),
            ledger=folder / name / "ledger.sqlite",
            trust=trusts[name],
        )
        for name in NAMES
    }


def run_masked(
    folder: Path, post: MaskedPost, roster: Roster, *, rounds: int = 1, resume: bool = False
) -> dict[str, Any]:
    """Run rounds of a small model over these sites."""
    table = masked_table("masked", rounds=rounds, sites=NAMES)
    table["deployment"] = {"deadline_seconds": 1.0, "idle_rounds": 1000}
    # A budget for more attempts than there are rounds.
    table["mechanism"] = {"kind": "clamped_sign", "logit_bound": 0.5, "noise_multiplier": 1.0}
    table["privacy"] = {"level": "client", "clip_norm": 1.0, "epsilon": 900.0, "delta": 1e-5}
    return run(
        parse(table),
        folder,
        resume=resume,
        make_backend=lambda resolved, ledger: _make_rounds(post, resolved, ledger, roster),
    )


def opening(post: MaskedPost, name: str) -> Order:
    """Return the newest order that a site was sent."""
    return next(one for site, one in reversed(post.sent) if site == name and isinstance(one, Order))


def again(order: Order, **changes: Any) -> Order:
    """Return an order with changes."""
    return dataclasses.replace(order, **changes)
