"""Sites and links of a rehearsal federation that misbehave, die and come back, as a test says."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from federations import RunningFederation, mischievous_worker, rehearsal
from mischievous_worker import MISCHIEF

from sottovoce.core import files
from sottovoce.deployment.machines.processes import state_of
from sottovoce.flower.executor import SERVER_APP

# Generous: the machine may be busy, and a test that waits in vain has failed anyway.
PATIENCE_SECONDS = 180.0


def site_names(count: int) -> list[str]:
    """What the clients of a spec with `data.clients = count` are called."""
    return [f"client-{number:04d}" for number in range(count)]


@contextlib.contextmanager
def training_federation(folder: Path, sites: Sequence[str]) -> Iterator[RunningFederation]:
    """A link and nodes of real processes, whose policies allow many runs."""
    with rehearsal(folder, sites=sites, stubs=mischievous_worker(), start=False) as running:
        running.start_link()
        for site in sites:
            allow(running, site)
            running.start_node(site)
        yield running


def allow(running: RunningFederation, site: str, **changes: Any) -> None:
    """Write a site's policy; a running node reads it again for each task."""
    policy = {
        "mechanisms": ["gauss_hermite"],
        "level": "sample",
        "adjacency": "zero-out",
        "epsilon_per_round": 100.0,
        "epsilon_total": 1000.0,
        "delta": 1e-5,
        "smallest_cohort": 1,
        "seeded_randomness": True,
    } | changes
    file = running.site(site).file
    before = file.read_text().partition("[policy]")[0]
    lines = [f"{key} = {json.dumps(value)}" for key, value in policy.items()]
    file.write_text("\n".join([before + "[policy]", *lines]) + "\n")


def misbehave(running: RunningFederation, site: str, kinds: Mapping[int, str]) -> None:
    """From now on: what a site does in which round of any run."""
    files.write_json(running.site(site).folder / MISCHIEF, kinds)


def calm_down(running: RunningFederation) -> None:
    """All sites as they should be."""
    for site in running.federation.sites:
        (running.site(site).folder / MISCHIEF).unlink(missing_ok=True)
        allow(running, site)


def eventually(
    true: Callable[[], bool], *, seconds: float = PATIENCE_SECONDS, pause_seconds: float = 0.2
) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {seconds:.0f} seconds"
        time.sleep(pause_seconds)


def pids_of(*words: str) -> list[int]:
    """Processes whose command lines hold all of these words (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if all(word in line for word in words) and int(process.name) != os.getpid():
                found.append(int(process.name))
    return sorted(found)


def worker_of(running: RunningFederation, site: str) -> int:
    (pid,) = workers_of(running, site)
    return pid


def workers_of(running: RunningFederation, site: str) -> list[int]:
    return pids_of("sottovoce.flower.worker", str(running.site(site).file))


def server_of(running: RunningFederation) -> int:
    """The process of the only run's server."""
    family = family_of(running.federation.link_folder)
    (pid,) = set(pids_of(SERVER_APP)) & set(family)
    return pid


def wait_for_mischief(running: RunningFederation, site: str, number: int, kind: str) -> None:
    """Until the site's worker is about to do it."""
    log = running.site(site).node_folder / "worker.log"
    eventually(lambda: f"round {number}: {kind}\n" in log.read_text())


def replace_worker(running: RunningFederation, site: str) -> None:
    """Kill a site's worker; its keeper starts it again, with Flower's node."""
    before = worker_of(running, site)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: before not in (found := workers_of(running, site)) and bool(found))


def cut_power(keeper_folder: Path) -> None:
    """Kill the processes of a link or a node as if its machine had lost its power."""
    for pid in family_of(keeper_folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: state_of(keeper_folder) is None)


def family_of(keeper_folder: Path) -> list[int]:
    """Return the processes of a link or a node and all that they have started."""
    state = state_of(keeper_folder)
    return [state["pid"], *_children_of(state["pid"])] if state else []


def _children_of(pid: int) -> list[int]:
    """All descendants of a process (Linux)."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            for child in (task / "children").read_text().split():
                found += [int(child), *_children_of(int(child))]
    return found
