"""The real worker of a site, but for the rounds in which a test wants it to misbehave.

A test writes MISCHIEF into a site's folder: a kind for each round, such as {"2": "replayed"}.
Stands in for the package's own worker: what that is about to send is changed on its way.
"""

import copy
import json
import os
import re
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body
from flwr.supernode.runtime import run_clientapp

import sottovoce
from sottovoce.flower import site_worker
from sottovoce.ledger import records

MISCHIEF = "mischief.json"
SENT = "sent.log"  # digests of all messages that were about to leave
SENT_STEPS = "steps.log"  # round, step and digest of each message of a secure sum, likewise


class _Garbled(ConfigRecord):
    """Says that it is a ConfigRecord."""

    def deflate(self) -> bytes:
        return add_header_to_object_body(b"\xff" * 50, self)


_Garbled.__qualname__ = "ConfigRecord"


def _record(value: Any) -> RecordDict:
    return RecordDict({"sottovoce": ConfigRecord({"uplink0": value})})


def _many_arrays() -> RecordDict:
    arrays = {f"array{i}": Array(np.full(100, i + np.nan)) for i in range(20)}
    return RecordDict({f"sottovoce{i}": ArrayRecord(arrays) for i in range(3)})


# What a site may send in place of its sealed message: each is dropped.
HOSTILE: dict[str, Callable[[bytes, bytes], RecordDict]] = {
    "malformed": lambda sealed, _: _record(bytes(len(sealed))),
    "truncated": lambda sealed, _: _record(sealed[:-1]),
    "replayed": lambda _, earlier: _record(earlier),
    "oversized": lambda sealed, _: _record(sealed + bytes(30_000)),
    "not_a_number": lambda *_: _record(float("nan")),
    "wrong_type": lambda *_: RecordDict({"sottovoce": MetricRecord({"uplink0": float("nan")})}),
    "nested": lambda *_: _many_arrays(),
    "empty": lambda *_: RecordDict(),
    "garbled": lambda *_: RecordDict({"sottovoce": _Garbled({})}),
}


class Mischief:
    """Pushes a worker's replies, each as its round's kind says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._push = run_clientapp.push_message
        self._first: bytes | None = None  # what was sent in earnest, for a replay

    def __call__(self, client: Any, reply: Message, context: Context) -> None:
        kind = self._kind(reply.metadata.group_id)
        sealed: Any = None
        if reply.has_content():
            sealed = reply.content["sottovoce"].get("uplink0")  # none in a refusal
            self._write_down(reply.content["sottovoce"], reply.metadata.group_id)
        self._first = self._first or sealed
        match kind:
            case "exit":
                os._exit(3)
            case "stopped":  # until it is continued
                os.kill(os.getpid(), signal.SIGSTOP)
            case "slow":
                time.sleep(6.0)
            case "withheld":  # announced, and never sent
                vars(run_clientapp)["push_objects"] = lambda *_, **__: None
            case "twice":
                again = copy.deepcopy(reply)
                again.content = _record(bytes(90))
                self._push(client, again, context)
            case "flood":  # more than the gate lets through
                reply.content = _record(bytes(30_000_000))
            case str() if kind in HOSTILE:
                reply.content = HOSTILE[kind](sealed, self._first or b"")
        self._push(client, reply, context)

    def _write_down(self, record: Any, group: str) -> None:
        """Before anything leaves, so that a kill cannot come between."""
        messages = [value for key, value in record.items() if key.startswith("uplink")]
        with (self._folder / SENT).open("a") as file:
            file.writelines(f"{records.digest(message).hex()}\n" for message in messages)
        if "answer" in record:  # a message of a secure sum, which names its step
            step = re.search(rb"sottovoce/pairwise/1 message (\w+)", record["answer"])
            assert step is not None
            with (self._folder / SENT_STEPS).open("a") as file:
                digest = records.digest(record["answer"]).hex()
                file.write(f"{group} {step[1].decode()} {digest}\n")

    def _kind(self, group: str) -> str | None:
        file = self._folder / MISCHIEF
        kinds = json.loads(file.read_text()) if file.exists() else {}
        kind = kinds.get(group)
        print(f"round {group}: {kind}", flush=True)
        return None if kind is None else str(kind)


if __name__ == "__main__":
    vars(site_worker)["push_message"] = Mischief(Path(sys.argv[2]).parent)
    runpy.run_path(str(Path(sottovoce.__file__).parent / "flower/worker.py"), run_name="__main__")
