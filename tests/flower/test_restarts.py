"""A link that is killed under a server which is deaf to signals: real processes."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation_faults import eventually, family_of, pids_of
from federations import RunningFederation, idle_worker, rehearsal

from sottovoce.core import files
from sottovoce.core.errors import OutputError
from sottovoce.deployment.machines.guard import identify
from sottovoce.deployment.machines.processes import state_of
from sottovoce.deployment.machines.submitted_runs import RunSubmission
from sottovoce.flower.runs import submit

pytest.importorskip("flwr")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc"),
    pytest.mark.slow,  # test_guard has the quick cases
    pytest.mark.xdist_group("federation"),  # one at a time: each keeps a dozen processes busy
]

# Holds the run's lock, is deaf to requests to end, and has a child with a session of its own.
_SERVER = """\
import os, signal, time
from pathlib import Path
from flwr.serverapp import ServerApp
from sottovoce.core import files

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
STUBS = {
    **idle_worker(),
    "flower/app_server.py": _SERVER,
    "flower/app_client.py": "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    with rehearsal(tmp_path_factory.mktemp("restarts"), sites=["only"], stubs=STUBS) as federation:
        yield federation


def test_a_killed_link_takes_all_with_it_and_link_and_site_start_again_at_once(
    running: RunningFederation, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text("{}")
    order = RunSubmission(name="endless", task={"spec": "{}"}, rounds=1, out=tmp_path)
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
