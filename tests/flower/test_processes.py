"""Flower's real programs: a link and its sites come up, know each other, and end."""

import os
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from federations import REAL_PROCESSES, RunningFederation, idle_worker, processes_of, rehearsal

from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.processes import state_of
from sottovoce.deployment.machines.site_folder import SiteFolder, create_site
from sottovoce.flower.link import register_sites, running_link

pytest.importorskip("flwr")
pytestmark = REAL_PROCESSES
SITES = ("hospital-a", "hospital-b")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    with rehearsal(tmp_path_factory.mktemp("processes"), stubs=idle_worker()) as federation:
        yield federation


def _eventually(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _join(running: RunningFederation, name: str) -> SiteFolder:
    """A site's folder, as its own machine would have it."""
    return create_site(
        running.folder / name,
        name=name,
        address=running.federation.address,
        root_certificate=running.federation.authority,
    )


def test_registered_sites_come_online(running: RunningFederation) -> None:
    status = running.status()
    assert status["link"] == "up"
    assert status["sites"] == dict.fromkeys(SITES, "online")
    assert status["runs"] == []
    assert status["problem"] is None


def test_two_nodes_on_one_machine_have_runtimes_of_their_own(running: RunningFederation) -> None:
    states = [state_of(running.site(name).node_folder) for name in SITES]
    runtimes = [state["runtime"] for state in states if state]
    assert len(set(runtimes)) == 2
    for name, runtime in zip(SITES, runtimes, strict=True):
        said = (running.site(name).node_folder / "worker.log").read_text()
        assert said == f"idle worker of {runtime} {running.site(name).file}\n"


def test_a_key_that_is_not_registered_is_refused(running: RunningFederation) -> None:
    site = _join(running, "stranger")
    policy = running.site("hospital-a").file.read_text().partition("[policy]")[2]
    text = site.file.read_text().partition("[policy]")[0]
    site.file.write_text(text + "[policy]" + policy)
    error = running.deploy("node", site.folder, "--background", code=2)
    assert error.startswith(f"error: the link at {running.federation.address} refuses 'stranger'")
    assert "--add stranger node.pub" in error
    assert state_of(site.node_folder) is None
    assert processes_of(site.folder) == []


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", "/v1/control/list-nodes", 403),
        ("POST", "/v1/control/start-run", 403),
        ("POST", "/v1/runtime/acquire-task", 403),
        ("POST", "/v1/fleet/../control/list-nodes", 403),
        ("POST", "/v1/fleet/%2e%2e/control/list-nodes", 403),
        ("POST", "//v1/control/list-nodes", 403),
        ("GET", "/docs", 405),
        ("POST", "/v1/fleet/activate-node", 401),  # nobody has signed it
    ],
)
def test_from_outside_only_sites_calls_reach_the_link(
    running: RunningFederation, method: str, path: str, code: int
) -> None:
    context = ssl.create_default_context(cafile=str(running.federation.authority))
    request = urllib.request.Request(
        f"https://{running.federation.address}{path}",
        method=method,
        data=b"" if method == "POST" else None,
        headers={"content-type": "application/protobuf"},
    )
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(request, context=context)
    answer.value.close()
    assert answer.value.code == code


def test_a_second_link_or_node_is_refused(running: RunningFederation) -> None:
    assert "already running" in running.deploy("link", running.folder, code=2)
    assert "already running" in running.deploy("node", running.site(SITES[0]).folder, code=2)
    assert running.status()["sites"] == dict.fromkeys(SITES, "online")


def test_a_site_that_joins_later_is_known_at_once(running: RunningFederation) -> None:
    site = _join(running, "late")
    running.deploy("certificates", running.folder, "--add", "late", site.folder / "node.pub")
    assert running.status()["sites"]["late"] == "never seen"


def test_a_stopped_node_is_offline_and_comes_back(running: RunningFederation) -> None:
    running.stop_node("hospital-b")
    assert running.status()["sites"]["hospital-b"] == "offline"
    assert processes_of(running.site("hospital-b").folder) == []
    running.start_node("hospital-b")
    assert running.status()["sites"]["hospital-b"] == "online"


def test_children_end_with_a_keeper_that_is_killed(running: RunningFederation) -> None:
    state = state_of(running.site("hospital-b").node_folder)
    assert state
    os.kill(state["pid"], signal.SIGKILL)
    _eventually(lambda: processes_of(running.site("hospital-b").folder) == [])
    running.start_node("hospital-b")
    assert running.status()["sites"]["hospital-b"] == "online"


def test_a_node_that_was_cut_off_waits_until_the_link_has_noticed(
    running: RunningFederation,
) -> None:
    site = str(running.site("hospital-b").folder).encode()
    for process in Path("/proc").glob("[0-9]*"):
        command = (process / "cmdline").read_bytes() if process.exists() else b""
        if b"sottovoce" in command and site in command:  # keeper, node and worker
            os.kill(int(process.name), signal.SIGKILL)  # as a machine that loses power
    _eventually(lambda: processes_of(running.site("hospital-b").folder) == [])
    assert running.status()["sites"]["hospital-b"] == "online"  # so the link believes
    running.start_node("hospital-b")
    assert state_of(running.site("hospital-b").node_folder) is not None
    assert running.status()["sites"]["hospital-b"] == "online"


def test_sites_find_a_link_that_was_started_again(running: RunningFederation) -> None:
    running.stop_link()
    assert processes_of(running.folder / "certificates") == []
    assert running.status()["link"] == "down"
    running.start_link()
    _eventually(lambda: running.status()["sites"]["hospital-a"] == "online")


def test_a_site_that_was_taken_out_comes_back_with_its_key(
    running: RunningFederation,
) -> None:
    key = _join(running, "leaver").folder / "node.pub"
    federation = Federation.read(running.folder)
    with running_link(federation) as control:
        joined = federation.add_site("leaver", key)
        assert register_sites(joined, control) == []
        federation.write()
        assert register_sites(federation, control) == []
        assert "leaver" not in running.status()["sites"]
        assert register_sites(joined, control) == []


def test_stop_leaves_no_process_and_nothing_in_the_home_folder(tmp_path: Path) -> None:
    with rehearsal(tmp_path, sites=["only"], stubs=idle_worker()) as federation:
        assert len(processes_of(tmp_path)) >= 6  # two keepers, link, its helper, gate, node, worker
        federation.stop_node("only")
        federation.stop_link()
        assert processes_of(tmp_path) == []
        assert "was not running" in federation.deploy("stop", federation.folder)
        assert list(Path(federation.environment["HOME"]).iterdir()) == []
