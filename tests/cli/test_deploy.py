"""`sottovoce deploy` without processes: folders, certificates, and mistakes."""

import contextlib
import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tls import made_in_the_past, serving

import sottovoce
from sottovoce.deployment.machines.address import free_port

pytest.importorskip("flwr")
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def _init(cli: Any, folder: Path, *more: object) -> Any:
    return cli("deploy", "init", folder, "--rehearsal", "--site", "a", "--site", "b", *more)


def test_a_rehearsal_in_one_command(cli: Any, tmp_path: Path) -> None:
    shown = _init(cli, tmp_path / "fed", "--days", 30, "--json").json
    day = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
    assert shown["sites"] == {"a": "key", "b": "key"}
    assert shown["address"] == "127.0.0.1:9443"
    assert shown["expires"] == f"{day:%Y-%m-%d}"
    assert (tmp_path / "fed" / "sites" / "a" / "site.toml").is_file()
    status = cli("deploy", "status", tmp_path / "fed", "--json").json
    assert status["link"] == "down"
    assert status["sites"] == {"a": "unknown", "b": "unknown"}


def test_a_check_says_what_to_do_and_exits_with_its_verdict(cli: Any, tmp_path: Path) -> None:
    _init(cli, tmp_path / "fed", "--address", f"127.0.0.1:{free_port()}")
    failed = cli("deploy", "check", tmp_path / "fed" / "sites" / "a")
    assert failed.code == 1
    assert "remedy: ask the operator whether the link is up" in failed.out
    ready = cli("deploy", "check", tmp_path / "fed", "--json")
    assert ready.code == 0
    assert ready.json["ok"] is True
    assert cli("deploy", "check", tmp_path).code == 2


_HOLDER = """
import pathlib, sys, time
from sottovoce.core import files
with files.locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells who holds a lock")
def test_resuming_where_another_process_runs_names_it_and_what_to_do(
    cli: Any, tmp_path: Path
) -> None:
    _init(cli, tmp_path / "fed")
    (out := tmp_path / "run").mkdir()
    (out / "run.json").write_text("{}")
    command = [sys.executable, "-c", _HOLDER, str(out / "run.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        refused = cli(
            "deploy", "run", tmp_path / "fed", EXAMPLES / "federation.toml",
            "--out", out, "--resume",
        )  # fmt: skip
        holder.kill()
    assert refused.code == 2
    assert f"process {holder.pid} ({sys.executable} -c" in refused.err
    assert f"kill {holder.pid}" in refused.err
    assert f"sottovoce deploy stop {tmp_path / 'fed'}" in refused.err


def test_an_operator_and_a_site_on_two_machines(cli: Any, tmp_path: Path) -> None:
    fed, site = tmp_path / "fed", tmp_path / "site"
    made = cli("deploy", "init", fed, "--address", "link.example.org:9443", "--site", "a")
    assert made.code == 0, made.err
    assert "no key yet" in made.out
    assert not (fed / "sites").exists()
    joined = cli(
        "deploy", "join", site, "--link", "link.example.org:9443", "--as", "a",
        "--root-certificate", fed / "certificates" / "ca.crt", "--json",
    ).json  # fmt: skip
    assert joined["public_key"] == str(site / "node.pub")
    refused = cli("deploy", "node", site)
    assert refused.code == 2
    assert "[policy] lacks mechanisms" in refused.err
    taken = cli("deploy", "certificates", fed, "--add", "a", site / "node.pub", "--json")
    added = taken.json
    assert added["sites"] == {"a": "key"}
    assert taken.err == "the link will use the key when it starts\n"
    before = added["expires"]
    renewed = cli("deploy", "certificates", fed, "--renew", "--days", 9, "--json").json
    assert renewed["expires"] < before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--site", "a"], "--address is missing"),
        (["--address", "nowhere", "--site", "a"], "an address must be HOST:PORT"),
        (["--address", "h:1", "--site", "a", "--site", "a"], "listed twice"),
        (["--address", "h:1", "--site", "a/b"], "a site's name must be"),
        (["--address", "h:1", "--site", "a", "--host", "x y"], "a host must be"),
        (["--address", "h:1", "--site", "a", "--days", "0"], "--days"),
        (["--address", "h:1"], "--site"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    cli: Any, tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = cli("deploy", "init", tmp_path / "fed", *arguments)
    assert result.code == 2
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["link", "status", "certificates", "stop"])
def test_a_folder_of_something_else_is_named(cli: Any, tmp_path: Path, command: str) -> None:
    result = cli("deploy", command, tmp_path)
    assert result.code == 2
    assert "is not a federation's folder" in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_node_is_stopped_though_its_file_is_gone_or_bad(cli: Any, tmp_path: Path) -> None:
    fed = tmp_path / "fed"
    _init(cli, fed)
    for folder, file, kept in ((fed / "sites" / "a", "site", "node"), (fed, "federation", "link")):
        (folder / kept / "lock").touch()
        (folder / f"{file}.toml").write_text("name = ")
        assert cli("deploy", "stop", folder).out == f"the {kept} was not running\n"
        (folder / f"{file}.toml").unlink()
        assert cli("deploy", "stop", folder).out == f"the {kept} was not running\n"


def test_a_running_link_takes_an_added_key_at_once(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sottovoce.deployment.machines import processes
    from sottovoce.flower import link

    fed, registered = tmp_path / "fed", []
    _init(cli, fed)
    joined = cli(
        "deploy", "join", tmp_path / "c", "--link", "127.0.0.1:9443", "--as", "c",
        "--root-certificate", fed / "certificates" / "ca.crt", "--json",
    ).json  # fmt: skip
    monkeypatch.setattr(processes, "state_of", lambda _: {"ready": True})
    monkeypatch.setattr(link, "running_link", lambda _: contextlib.nullcontext())

    def register(federation: Any, _: object) -> list[str]:
        registered.extend(federation.sites)
        return []

    monkeypatch.setattr(link, "register_sites", register)
    added = cli("deploy", "certificates", fed, "--add", "c", joined["public_key"])
    assert added.err == "the running link uses the key; it need not be restarted\n"
    assert registered == ["a", "b", "c"]


def test_a_rehearsals_policy_says_what_questions_need(cli: Any, tmp_path: Path) -> None:
    _init(cli, tmp_path / "fed")
    text = (tmp_path / "fed" / "sites" / "a" / "site.toml").read_text()
    assert 'need adjacency = "replace-one"' in text
    assert "before the first charge" in text


def test_a_question_that_cannot_be_asked_says_what_is_missing(cli: Any, tmp_path: Path) -> None:
    about = ("--about", "age", "--epsilon", 2)
    missing = cli("deploy", "ask", tmp_path, "mean", *about, "--upper", 120)
    assert "the mean needs 'lower'; give it (--lower)" in missing.err
    assert "'quantiles' with the level 0.5" in cli("deploy", "ask", tmp_path, "median", *about).err


def test_a_site_without_its_root_certificate_hears_what_to_look_for(
    cli: Any, tmp_path: Path
) -> None:
    _init(cli, tmp_path / "fed")
    site = tmp_path / "fed" / "sites" / "a"
    (site / "ca.crt").unlink()
    said = cli("deploy", "node", site).err
    assert "ca.crt" in said
    assert "check that it exists and that you may read it" in said


def test_the_operators_commands_say_what_a_sites_folder_is(cli: Any, tmp_path: Path) -> None:
    _init(cli, tmp_path / "fed")
    result = cli("deploy", "status", tmp_path / "fed" / "sites" / "a")
    assert result.code == 2
    assert "is a site's folder, but this command needs the operator's" in result.err


def test_what_needs_the_link_says_how_to_start_it(cli: Any, tmp_path: Path) -> None:
    fed = tmp_path / "fed"
    _init(cli, fed)
    example = Path(__file__).parent.parent.parent / "examples" / "one_bit.toml"
    spec = tmp_path / "spec.toml"
    spec.write_text(example.read_text().replace("clients = 10", 'names = ["a", "b"]'))
    for arguments in (["run", fed, spec], ["stop", fed, "--run", "1"]):
        result = cli("deploy", *arguments)
        assert result.code == 2
        assert "the link is not running; start it with 'sottovoce deploy link" in result.err
    assert list((fed / "runs").iterdir()) == []
    assert cli("deploy", "stop", fed).out == "the link was not running\n"
    assert cli("deploy", "stop", fed / "sites" / "a").out == "the node was not running\n"


def test_a_link_does_not_start_with_a_certificate_that_sites_refuse(
    cli: Any, tmp_path: Path
) -> None:
    fed = tmp_path / "fed"
    _init(cli, fed)
    text = (fed / "federation.toml").read_text()
    (fed / "federation.toml").write_text(text.replace("127.0.0.1", "10.0.0.9"))
    result = cli("deploy", "link", fed)
    assert result.code == 2
    assert "not for '10.0.0.9'; run 'sottovoce deploy certificates" in result.err
    assert not (fed / "link" / "link.log").exists()


def test_an_expired_certificate_stops_link_and_node_with_a_sentence(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = tmp_path / "fed"
    with monkeypatch.context() as past:
        made_in_the_past(past, days=20)
        assert _init(cli, fed, "--days", 5).code == 0
    day = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=15)
    certificate = fed.absolute() / "certificates" / "link.crt"
    refused = cli("deploy", "link", fed)
    assert refused.code == 2
    assert f"{certificate} expired on {day:%Y-%m-%d}; run 'sottovoce deploy certif" in refused.err
    status = cli("deploy", "status", fed)
    assert f"warning: {certificate} expired" in status.err
    with serving(certificate, certificate.with_name("link.key")) as port:
        site = fed / "sites" / "a" / "site.toml"
        site.write_text(site.read_text().replace("9443", str(port)))
        refused = cli("deploy", "node", site.parent)
    assert refused.code == 2
    assert "is refused: certificate has expired" in refused.err
    assert not (site.parent / "node" / "node.log").exists()
    assert cli("deploy", "certificates", fed, "--renew").code == 0
    assert cli("deploy", "status", fed, "--json").json["problem"] is None


def test_without_flower_the_command_says_what_to_install(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = tmp_path / "fed"
    _init(cli, fed)
    absent = {"flwr", "httpx", "starlette", "uvicorn"}
    for name in list(sys.modules):
        if name.split(".")[0] in absent or name.startswith("sottovoce.deployment"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(
        sottovoce, "deployment", getattr(sottovoce, "deployment", None), raising=False
    )
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    result = cli("deploy", "link", fed)
    assert result.code == 2
    assert "pip install 'sottovoce[flower]'" in result.err
    assert cli("deploy", "certificates", fed).code == 0


def test_a_spec_for_others_than_the_sites_is_noticed_at_once(cli: Any, tmp_path: Path) -> None:
    fed = tmp_path / "fed"
    _init(cli, fed)
    spec = Path(__file__).parent.parent.parent / "examples" / "one_bit.toml"
    result = cli("deploy", "run", fed, spec)
    assert result.code == 2
    assert "the spec's client 'client-0000' is not a site of the federation" in result.err
    assert "data.names" in result.err


@pytest.mark.parametrize(("connected", "state"), [(True, "connected to"), (False, "waits for")])
def test_a_node_says_whether_it_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connected: bool, state: str
) -> None:
    from typer.testing import CliRunner

    from sottovoce.cli.main import app
    from sottovoce.flower import node

    def keep_node(_: object, *, on_ready: Callable[[bool], None]) -> None:
        on_ready(connected)

    monkeypatch.setattr(node, "keep_node", keep_node)
    runner = CliRunner()
    folder = tmp_path / "fed"
    made = runner.invoke(app, ["deploy", "init", str(folder), "--rehearsal", "--site", "a"])
    assert made.exit_code == 0
    shown = runner.invoke(app, ["deploy", "node", str(folder / "sites" / "a")])
    assert shown.exit_code == 0
    assert (
        f"the node of 'a' is {'running and ' * (not connected)}{state} 127.0.0.1:9443"
        in shown.output
    )


@pytest.mark.parametrize(
    ("state", "details", "failure"),
    [
        ("finished:failed", "No heartbeat received from the task", "the server's process has died"),
        ("finished:failed", "ServerApp failed with exception: no file", "no file"),
        ("finished:failed", "", "for an unknown reason"),
        ("finished:completed", "", None),
    ],
)
def test_why_a_run_failed_is_said_without_flowers_traceback(
    state: str, details: str, failure: str | None
) -> None:
    from sottovoce.deployment.machines.submitted_runs import RunStatus
    from sottovoce.flower.control import plain_details

    found = RunStatus(run_id=1, state=state, details=plain_details(details)).failure
    assert found is None if failure is None else (found or "").startswith(failure)


_FEDERATED = Path(__file__).parent.parent.parent / "examples" / "federation.toml"
_NAMES = 'data.names=["a", "b"]'


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["data.dataset=csv:nothere.csv"], "there is no nothere.csv in"),
        (["data.dataset=csv:/nowhere.csv"], "sites read no data set that a run describes"),
        (["mechanism.kind=mvu"], "unknown parameter of 'mvu' 'levels'"),
        (["privacy.level=client"], "needs 'algorithm.local_learning_rate'"),
        (["data.partition.kind=by_owner"], "'by_owner' needs data that name the owner"),
    ],
)
def test_a_mistake_in_a_spec_is_told_before_the_link_has_the_run(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], reason: str
) -> None:
    from sottovoce.flower import runs

    submitted: list[object] = []
    monkeypatch.setattr(runs, "submit", lambda *order: submitted.append(order))
    _init(cli, tmp_path / "fed")
    settings = [word for text in (_NAMES, *overrides) for word in ("--set", text)]
    refused = cli("deploy", "run", tmp_path / "fed", _FEDERATED, *settings)
    assert refused.code == 2
    assert reason in refused.err
    assert not submitted
    assert list((tmp_path / "fed" / "runs").iterdir()) == []
