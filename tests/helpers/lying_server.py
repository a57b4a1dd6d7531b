"""The real server of masked rounds, but in each round it lies to one site, its victim.

Stands in for deployment/masked_conversation.py. The test fills in LIES, each of which is (what it
is called, the step), and the file TOLD, to which the victim's replies go.
"""

import dataclasses
import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sottovoce.deployment
from sottovoce.deployment.masked_orders import Action, Step
from sottovoce.deployment.orders import read_refusal
from sottovoce.protocol.secure.pairwise_messages import BoxMessage, KeyList, Quorum, Survivors

_REAL = next(
    path
    for folder in sottovoce.deployment.__path__
    if (path := Path(folder) / "masked_conversation.py") != Path(__file__)
)
_spec = importlib.util.spec_from_file_location(
    "sottovoce.deployment.real_masked_conversation", _REAL
)
assert _spec is not None
assert _spec.loader is not None
_real: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_real)
Conversation = _real.Conversation
_ask, _step = Conversation._ask, Conversation._step

LIES: list[tuple[str, str]] = []
VICTIM = ""
TOLD = ""
Change = Callable[[bytes, dict[str, bytes]], bytes]


def _listed(content: bytes, change: Callable[[list[Any]], list[Any]]) -> bytes:
    return KeyList(entries=tuple(change(list(KeyList.read(content).entries)))).to_bytes()


def _boxed(content: bytes, **changes: Any) -> bytes:
    return dataclasses.replace(BoxMessage.read(content), **changes).to_bytes()


def _flipped(sealed: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, bytes([data[0] ^ 1]) + data[1:]) for name, data in sealed)


def _signed(content: bytes, change: Callable[[list[Any]], list[Any]]) -> bytes:
    return Quorum(signatures=tuple(change(list(Quorum.read(content).signatures)))).to_bytes()


# What the victim gets in place of the message of a step. `kept` has those of earlier rounds.
CHANGED: dict[str, Change] = {
    "list without the victim": lambda m, _: _listed(
        m, lambda entries: [one for one in entries if one.name != VICTIM]
    ),
    "list with another key of a peer": lambda m, _: _listed(
        m, lambda e: [*e[:-1], dataclasses.replace(e[-1], mask_key=os.urandom(32))]
    ),
    "list with a key copied from a peer": lambda m, _: _listed(
        m, lambda e: [*e[:-1], dataclasses.replace(e[-1], mask_key=e[-2].mask_key)]
    ),
    "list with a stranger": lambda m, _: _listed(
        m, lambda e: [*e, dataclasses.replace(e[-1], name="stranger", mask_key=os.urandom(32))]
    ),
    "list of an earlier round": lambda m, kept: _listed(
        m,
        lambda e: [
            now if now.name == VICTIM else old
            for now, old in zip(e, KeyList.read(kept["share"]).entries, strict=True)
        ],
    ),
    "list that is garbage": lambda m, _: os.urandom(len(m)),
    "list that is cut off": lambda m, _: m[:-1],
    "box without the victim": lambda m, _: _boxed(
        m, members=tuple(one for one in BoxMessage.read(m).members if one != VICTIM)
    ),
    "box with a stranger": lambda m, _: _boxed(
        m, members=(*BoxMessage.read(m).members, "stranger")
    ),
    "box of too few": lambda m, _: _boxed(
        m, members=BoxMessage.read(m).members[:2], sealed=BoxMessage.read(m).sealed[:1]
    ),
    "box with changed shares": lambda m, _: _boxed(m, sealed=_flipped(BoxMessage.read(m).sealed)),
    "box with shares of another peer": lambda m, _: _boxed(
        m,
        sealed=tuple(
            (name, data)
            for (name, _), (_, data) in zip(
                BoxMessage.read(m).sealed, reversed(BoxMessage.read(m).sealed), strict=True
            )
        ),
    ),
    "survivors without the victim": lambda m, _: Survivors(
        names=tuple(one for one in Survivors.read(m).names if one != VICTIM)
    ).to_bytes(),
    "survivors with a stranger": lambda m, _: Survivors(
        names=(*Survivors.read(m).names, "stranger")
    ).to_bytes(),
    "survivors below the threshold": lambda m, _: Survivors(
        names=Survivors.read(m).names[:2]
    ).to_bytes(),
    "survivors with a duplicate": lambda m, _: Survivors(
        names=(Survivors.read(m).names[0], *Survivors.read(m).names)
    ).to_bytes(),
    "quorum with a site twice": lambda m, _: _signed(m, lambda s: [s[0], s[0], *s[1:]]),
    "quorum of too few": lambda m, _: _signed(m, lambda s: s[:-1]),
    "quorum of other signatures": lambda m, _: _signed(
        m, lambda s: [*s[:-1], (s[-1][0], os.urandom(64))]
    ),
    "quorum of an earlier round": lambda _, kept: kept["answer"],
}
# What the victim gets after it has answered a step as it should.
AFTERWARDS: dict[str, tuple[Action, Change]] = {
    "second list": ("share", CHANGED["list with another key of a peer"]),
    "second box": ("contribute", CHANGED["box with changed shares"]),
    "box after the survivors": ("contribute", CHANGED["box without the victim"]),
    "second survivors": ("sign", CHANGED["survivors below the threshold"]),
    "answer before the signature": ("answer", lambda *_: Quorum(signatures=()).to_bytes()),
    "second quorum": ("answer", CHANGED["quorum of too few"]),
}


def _tell(conversation: Any, text: str) -> None:
    path = Path(TOLD)
    told = json.loads(path.read_text()) if path.exists() else {}
    lie, _ = LIES[conversation.attempt.round - 1]
    told[lie] = text
    path.write_text(json.dumps(told, indent=1))


def _reply(conversation: Any, requests: Any) -> str:
    """Send the victim one request, and return what it says."""
    post = conversation.post
    post.send(requests, expires_seconds=30.0)
    ends = time.monotonic() + 30.0
    while time.monotonic() < ends:
        for reply in post.collect():
            if reply.blobs is None:
                return f"refused: {reply.failure}"
            refusal = read_refusal(reply.blobs)
            return f"refused: {refusal}" if refusal else "answered"
        time.sleep(0.1)
    return "silent"


_KEPT: dict[str, dict[str, bytes]] = {}  # messages of the newest attempt, by run and step


def lying_ask(self: Any, action: str, sites: Any, content: Any, take: Any, most_bytes: int) -> None:
    lie, step = LIES[self.attempt.round - 1] if self.attempt.round <= len(LIES) else ("", "")
    kept = _KEPT.setdefault(self.attempt.run, {})
    before = dict(kept)

    def lying_content(site: str) -> bytes:
        true: bytes = content(site)
        if site == VICTIM:
            kept[action] = true
            if step == action and lie in CHANGED:
                return CHANGED[lie](true, before)
        return true

    _ask(self, action, sites, lying_content, take, most_bytes)
    if step == action and lie in CHANGED:
        _tell(self, f"refused: {self.failed[VICTIM]}" if VICTIM in self.failed else "answered")
    if step == action and lie in AFTERWARDS:
        again, change = AFTERWARDS[lie]
        request = Step(
            run=self.attempt.run,
            client=VICTIM,
            cohort=self.attempt.most_clients,
            round=self.attempt.round,
            attempt=self.attempt.attempt,
            action=again,
            content=change(kept.get(again, b""), before),
        )
        _tell(self, _reply(self, {VICTIM: request}))


def lying_step(self: Any, name: str, requests: Any, take: Any, most_bytes: int) -> None:
    lie, step = LIES[self.attempt.round - 1] if self.attempt.round <= len(LIES) else ("", "")
    if name != "open" or step != "open":
        _step(self, name, requests, take, most_bytes)
        return
    order = requests[VICTIM]
    channel = {**order.spec["channel"]}
    lies = {
        "the same attempt again": order,
        "an earlier round": dataclasses.replace(order, round=1),
        "a lower threshold": dataclasses.replace(
            order, spec={**order.spec, "channel": {**channel, "minimum_clients": 1}}
        ),
        "another protocol": dataclasses.replace(
            order, spec={**order.spec, "channel": {**channel, "protocol": "simulated"}}
        ),
        "less noise": dataclasses.replace(
            order, mechanism={**order.mechanism, "noise_multiplier": 0.3}
        ),
        "an attempt on another channel": dataclasses.replace(
            order, spec={**order.spec, "channel": {"kind": "direct"}}
        ),
        "a message without masks": dataclasses.replace(order, attempt=0),
    }
    if lie in ("the same attempt again", "a message without masks"):
        _step(self, name, requests, take, most_bytes)
        _tell(self, _reply(self, {VICTIM: lies[lie]}))
        return
    _step(self, name, {**requests, VICTIM: lies[lie]}, take, most_bytes)
    _tell(self, f"refused: {self.failed[VICTIM]}" if VICTIM in self.failed else "answered")


Conversation._ask, Conversation._step = lying_ask, lying_step
