"""Links and nodes that are killed, stopped in any order, or have the wrong time: real processes."""

import datetime
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation_faults import eventually, family_of, pids_of
from federations import RunningFederation, idle_worker, rehearsal

from sottovoce import files
from sottovoce.deployment.machines import certificates, fleet
from sottovoce.deployment.machines.guard import identify
from sottovoce.deployment.machines.keeper import state_of
from sottovoce.deployment.machines.runs import Order, submit
from sottovoce.errors import OutputError

pytest.importorskip("flwr")
from flwr.supercore import date
from flwr.supernode import node_auth_http_interceptor

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc"),
    pytest.mark.xdist_group("federation"),  # one at a time: each keeps a dozen processes busy
]

AHEAD_SECONDS = 8.0
# Holds the run's lock, is deaf to requests to end, and has a child with a session of its own.
_SERVER = """\
import os, signal, time
from pathlib import Path
from flwr.serverapp import ServerApp
from sottovoce import files

app = ServerApp()

@app.main()
def main(grid, context):
    out = Path(context.run_config["out"])
    with files.locked(out / "run.json"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        (out / "server").write_text(str(os.getpid()))
        if os.fork() == 0:
            os.setsid()
            files.write_json(out / "child", os.getpid())
        while True:
            time.sleep(0.2)
"""
# Flower signs with this time, and the time is what the program reads.
_CLOCK = f"""\
import datetime, time
import flwr.supercore.date as date
real, now = time.time, date.now
time.time = lambda: real() + {AHEAD_SECONDS}
date.now = lambda: now() + datetime.timedelta(seconds={AHEAD_SECONDS})
"""
STUBS = {
    **idle_worker(),
    "flower_app/server.py": _SERVER,
    "flower_app/client.py": "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    with rehearsal(tmp_path_factory.mktemp("restarts"), sites=["only"], stubs=STUBS) as federation:
        yield federation


def test_a_killed_link_takes_all_with_it_and_link_and_site_start_again_at_once(
    running: RunningFederation, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text("{}")
    order = Order(name="endless", task={"spec": "{}"}, rounds=1, out=tmp_path)
    submit(order, running.federation)
    eventually(lambda: (tmp_path / "child").exists())
    server, child = (int((tmp_path / name).read_text()) for name in ("server", "child"))

    # Whoever resumes is told who is in the way, and the token is nobody's to read.
    with (
        pytest.raises(OutputError, match=rf"process {server} \(.*: kill {server}"),
        files.locked(tmp_path / "run.json"),
    ):
        pass
    assert not set(pids_of("--token")) & set(family_of(running.federation.link_folder))
    database = running.federation.link_folder / "flower.sqlite"
    assert database.stat().st_mode & 0o077 == 0

    family = [identify(pid) for pid in family_of(running.federation.link_folder)]
    assert {server, child} <= {process.pid for process in family if process}
    state = state_of(running.federation.link_folder)
    assert state
    os.kill(state["pid"], signal.SIGKILL)
    eventually(lambda: not any(process.is_alive() for process in family if process))
    with files.locked(tmp_path / "run.json"):
        pass
    assert json.loads(running.deploy("stop", running.folder, "--json"))["stopped"] is None

    running.stop_node("only")  # its goodbye reaches nobody, as after a link that was stopped
    running.start_link()
    running.start_node("only")
    assert running.status()["sites"] == {"only": "online"}
    log = (running.site("only").node_folder / "keeper.log").read_text()
    assert "trying again" not in log


def test_a_site_that_is_ready_passes_all_checks_and_the_link_knows_its_key(
    running: RunningFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = running.site("only")
    found = json.loads(running.deploy("check", site.folder, "--json"))
    assert {check["state"] for check in found["checks"]} == {"ok"}
    assert {"clock", "key at the link", "ledger", "data"} <= {
        one["name"] for one in found["checks"]
    }
    assert json.loads(running.deploy("check", running.folder, "--json"))["ok"]
    assert running.status()["sites"] == {"only": "online"}  # nothing was changed

    address, authority, key = site.address, site.root_certificate, site.private_key
    assert authority is not None
    assert key is not None
    certificates.create_node_key(tmp_path / "new.key", tmp_path / "new.pub", comment="new")
    assert fleet.link_verdict(address, authority, tmp_path / "new.key") is fleet.LinkVerdict.UNKNOWN
    ahead, real = datetime.timedelta(seconds=AHEAD_SECONDS), time.time
    monkeypatch.setattr(node_auth_http_interceptor, "now", lambda: date.now() + ahead)
    monkeypatch.setattr(time, "time", lambda: real() + AHEAD_SECONDS)
    assert fleet.link_verdict(address, authority, key) is fleet.LinkVerdict.CLOCK


def test_a_clock_that_is_ahead_is_named_as_the_reason(
    running: RunningFederation, tmp_path: Path
) -> None:
    site = running.site("only")
    running.stop_node("only")
    (tmp_path / "sitecustomize.py").write_text(_CLOCK)
    paths = [str(tmp_path), *running.environment["PYTHONPATH"].split(os.pathsep)]
    skewed = RunningFederation(
        federation=running.federation,
        environment={**running.environment, "PYTHONPATH": os.pathsep.join(paths)},
    )
    error = skewed.deploy("node", site.folder, code=2)
    assert f"clock is {AHEAD_SECONDS:.0f} s ahead" in error or "clock is 7 s ahead" in error
    assert "NTP" in error
