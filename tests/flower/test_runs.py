"""`deploy run` with Flower's real programs and a stub for the server's side."""

import json
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from federations import REAL_PROCESSES, RunningFederation, idle_worker, processes_of, rehearsal

from sottovoce.deployment.machines.processes import program
from sottovoce.deployment.machines.submitted_runs import RunSubmission
from sottovoce.flower.runs import write_app
from sottovoce.runs.loading import load, parse, parse_text

pytest.importorskip("flwr")
pytestmark = REAL_PROCESSES
ROOT = Path(__file__).parent.parent.parent
SPEC = ROOT / "examples" / "one_bit.toml"
TEXT = SPEC.read_text().replace("clients = 10", 'names = ["only"]')

# Tells what it was told; the spec's name says how it ends.
_SERVER = """\
import json, time
from pathlib import Path
from flwr.serverapp import ServerApp
from sottovoce.core.errors import ConfigError

app = ServerApp()

def _header(plain):
    # The real one: --resume holds the spec against it before the link hears of the run.
    from sottovoce.runs.loading import parse
    from sottovoce.runs.outcome import header
    from sottovoce.flower.remote import load_inputs, with_flower_backend, resolve

    return header(resolve(load_inputs(with_flower_backend(parse(plain, "the spec")))))

@app.main()
def main(grid, context):
    told = dict(context.run_config)
    given = told["spec"]
    name = json.loads(given)["name"] if given.startswith("{") else "example"
    if name == "fails":
        raise ConfigError("no site allows this; ask for less")
    out = Path(told["out"])
    out.mkdir(parents=True, exist_ok=True)
    begun = _header(json.loads(given)) if given.startswith("{") else {}
    (out / "run.json").write_text(json.dumps(begun))
    (out / "told.json").write_text(json.dumps(told))
    row = {"round": 1, "accuracy": 0.5, "loss": 1.0, "epsilon": 1.0, "clients_asked": 1,
           "clients_received": 1, "clients_out_of_budget": 0, "payload_bytes_up": 1,
           "total_bytes_up": 1, "payload_bytes_down": 1, "total_bytes_down": 1}
    (out / "metrics.jsonl").write_text(json.dumps(row) + "\\n")
    while name == "endless":
        time.sleep(0.2)
    result = {"name": name, "epsilon": 1.0, "private": True, "warnings": [], "groups": [{}],
              "clients": []}
    (out / "result.json").write_text(json.dumps(result))
"""
_CLIENT = "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n"
STUBS = {**idle_worker(), "flower/app_server.py": _SERVER, "flower/app_client.py": _CLIENT}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFederation]:
    folder = tmp_path_factory.mktemp("runs")
    with rehearsal(folder, sites=["only"], stubs=STUBS) as federation:
        yield federation


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(TEXT)
    return path


def _named(spec: Path, name: str) -> Path:
    spec.write_text(TEXT.replace('name = "one-bit"', f'name = "{name}"'))
    assert f'name = "{name}"' in spec.read_text()
    return spec


def test_a_run_reaches_its_end(running: RunningFederation, spec: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = json.loads(running.deploy("run", running.folder, spec, "--out", out, "--json"))
    assert result["folder"] == str(out)
    assert result["epsilon"] == 1.0
    told = json.loads((out / "told.json").read_text())
    assert parse(json.loads(told.pop("spec"))) == load(spec)
    assert told == {
        "allow_code": False,
        "out": str(out),
        "resume": False,
        "sites": str(running.folder / "federation.toml"),
    }
    row = running.status()["runs"][-1]
    assert (row["state"], row["rounds_done"], row["folder"]) == ("finished:completed", 1, str(out))


def test_a_folder_that_holds_a_run_is_left_alone_unless_resumed(
    running: RunningFederation, spec: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert "nothing to resume" in running.deploy(
        "run", running.folder, spec, "--out", out, "--resume", code=2
    )
    running.deploy("run", running.folder, spec, "--out", out, "--json")  # a stub has no summary
    runs = len(running.status()["runs"])
    assert "is not an empty folder" in running.deploy(
        "run", running.folder, spec, "--out", out, code=2
    )
    assert len(running.status()["runs"]) == runs
    again = subprocess.run(
        running.command("run", running.folder, spec, "--out", out, "--resume", "--json"),
        capture_output=True,
        text=True,
        env=running.environment,
        check=True,
    )
    assert "no checkpoint yet: starting again at round 1; its charges stay" in again.stderr
    assert json.loads((out / "told.json").read_text())["resume"] is True


def test_the_servers_error_is_one_line(running: RunningFederation, spec: Path) -> None:
    error = running.deploy("run", running.folder, _named(spec, "fails"), code=2)
    last = error.splitlines()[-1]
    assert last.startswith(
        "error: the run failed: no site allows this; ask for less; to read its log run: FLWR_HOME="
    )


def test_a_bad_spec_never_reaches_the_link(running: RunningFederation, spec: Path) -> None:
    runs = len(running.status()["runs"])
    spec.write_text(spec.read_text().replace("rounds =", "round ="))
    assert "did you mean 'rounds'" in running.deploy("run", running.folder, spec, code=2)
    assert len(running.status()["runs"]) == runs


def test_an_interrupted_command_leaves_the_run_going_and_stop_ends_it(
    running: RunningFederation, spec: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = running.command("run", running.folder, _named(spec, "endless"), "--out", out)
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=running.environment, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (out / "metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    run_id = running.status()["runs"][-1]["run"]
    assert error.splitlines()[-1] == (
        f"the run continues; to see it run: sottovoce deploy status {running.folder}; "
        f"to stop it run: sottovoce deploy stop {running.folder} --run {run_id}"
    )
    assert running.status()["runs"][-1]["state"] == "running"
    running.deploy("stop", running.folder, "--run", run_id)
    assert running.status()["runs"][-1]["state"] == "finished:stopped"
    assert "refused" in running.deploy("stop", running.folder, "--run", 1, code=2)


def test_stopping_the_link_ends_its_run_too(spec: Path, tmp_path: Path) -> None:
    with rehearsal(tmp_path / "link", sites=["only"], stubs=STUBS) as federation:
        out = tmp_path / "out"
        command = federation.command(
            "run", federation.folder, _named(spec, "endless"), "--out", out
        )
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=federation.environment
        )
        deadline = time.monotonic() + 60
        while not (out / "metrics.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        federation.stop_link()
        _, error = process.communicate(timeout=60)
        assert process.returncode in (130, 2)  # it saw the end of the run, or that of the link
        assert "the run was stopped" in error or "the link does not answer" in error
        assert processes_of(federation.folder / "certificates") == []
        federation.start_link()
        assert federation.status()["runs"][-1]["state"] == "finished:stopped"


def test_the_example_app_runs_with_flowers_own_command(
    running: RunningFederation, tmp_path: Path
) -> None:
    app = ROOT / "examples" / "flower" / "app"
    sites = running.folder / "federation.toml"
    subprocess.run(
        [program("flwr"), "run", app, "sottovoce", "--run-config",
         f'out="{tmp_path / "out"}" sites="{sites}"'],
        env={**running.environment, "FLWR_HOME": str(running.folder / "link" / "flower")},
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while running.status()["runs"][-1]["state"] != "finished:completed":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert list(Path(running.environment["HOME"]).iterdir()) == []
    told = json.loads((tmp_path / "out" / "told.json").read_text())
    spec = parse(parse_text(told["spec"], "spec"))
    assert spec.data.clients == 2
    assert running.status()["runs"][-1]["rounds"] is None  # nobody told us about it


def test_the_app_holds_a_spec_and_no_code(running: RunningFederation, tmp_path: Path) -> None:
    text = "name = \"x\"\n\n# ü 'quotes' \"and\" \\ more\nlong = '''\na\n'''\n"
    order = RunSubmission(
        name="x", task={"spec": text, "resume": True}, rounds=3, out=tmp_path / "out"
    )
    write_app(tmp_path, order, running.federation)
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]
    app = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"]["spec"] == text
    assert app["config"]["resume"] is True
    assert app["components"] == {
        "serverapp": "sottovoce.flower.app_server:app",
        "clientapp": "sottovoce.flower.app_client:app",
    }
