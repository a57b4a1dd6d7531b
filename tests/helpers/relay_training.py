"""A spec for the clients of a relay, and clients that answer it from threads of a test."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from federated_runs import federated_table
from specs import LOCAL_STEPS
from two_operators import Operators

from sottovoce.core.errors import DeploymentError, SottovoceError
from sottovoce.deployment.operators.admission_file import admit
from sottovoce.deployment.operators.calls import RelayCalls
from sottovoce.deployment.operators.device import DeviceFolder, RelayLink, create_device
from sottovoce.deployment.operators.participant import Participant
from sottovoce.deployment.operators.routes import Route
from sottovoce.deployment.site import read_site

NAMES = ["client-0000", "client-0001", "client-0002"]
POLICY = {
    "mechanisms": ["clamped_sign"],
    "level": "client",
    "adjacency": "zero-out",
    "epsilon_per_round": 100.0,
    "epsilon_total": 1000.0,
    "delta": 1e-5,
    "smallest_cohort": 1,
    "seeded_randomness": True,
    "honest": 2,
    "colluders": 1,
}


def table_of(name: str, **changes: Any) -> dict[str, Any]:
    table = federated_table(
        name,
        clients=len(NAMES),
        rounds=2,
        channel={"kind": "secure_sum", "protocol": "two_server", "minimum_clients": 2},
        mechanism={"kind": "clamped_sign", "logit_bound": 0.5},
        algorithm=LOCAL_STEPS,
        privacy={"level": "client", "clip_norm": 1.0, "epsilon": 40.0, "delta": 1e-5},
        deployment={"deadline_seconds": 4.0, "idle_rounds": 1},
    )
    return table | {"runtime": {"deterministic": True, "backend": "relay"}} | changes


def nodes_of(operators: Operators, **changes: Any) -> list[DeviceFolder]:
    """Make admitted clients with a policy."""
    made = [
        create_device(
            operators.folder / name,
            name=name,
            operators=operators.relay.folder / "operators.toml",
            digest=operators.pinned.digest,
            with_site=True,
        )
        for name in NAMES
    ]
    for operator in (operators.relay, operators.collector):
        admit(operator, [one.admission_path for one in made])
    lines = [f"{key} = {json.dumps(value)}" for key, value in (POLICY | changes).items()]
    for one in made:
        one.site_file.write_text("\n".join([f'name = "{one.name}"', "[policy]", *lines]))
    return made


class BrokenOnce:
    """The calls of a client whose connection breaks after its first report was made."""

    def __init__(self, calls: RelayCalls) -> None:
        self._calls, self.breaks = calls, 1

    def ask(self, route: Route, body: bytes = b"", **more: str) -> bytes:
        if route is Route.REPORT and self.breaks:
            self.breaks -= 1
            raise DeploymentError("the cable is out")
        return self._calls.ask(route, body, **more)

    def close(self) -> None:
        self._calls.close()


@contextmanager
def answering(nodes: list[DeviceFolder]) -> Iterator[list[str]]:
    """Let nodes answer from threads of this process; yield what they tell."""
    stop, told = threading.Event(), list[str]()

    def work(node: DeviceFolder) -> None:
        with RelayLink(node) as link:
            if node is nodes[0]:
                link._calls = cast(RelayCalls, BrokenOnce(link._calls))
            participant = Participant(link, partial(read_site, node.site_file))
            while not stop.is_set():
                try:
                    done = participant.look()
                except SottovoceError as error:
                    done = f"refused: {error}"
                if done:
                    told.append(done)
                time.sleep(0.2)

    threads = [threading.Thread(target=work, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield told
    finally:
        stop.set()
        for thread in threads:
            thread.join()
