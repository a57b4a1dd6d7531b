"""Sites of a link, and a client over HTTPS, answer a relay's collector: real processes of each."""

import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from command_line import call, printed_json
from federated_runs import as_toml, federated_table, simulated
from federation_faults import eventually
from federations import REAL_PROCESSES, RunningFederation, rehearsal
from specs import LOCAL_STEPS
from two_operators import Operators, create_operators, running_operators

from sottovoce.core.adjacency import Unit
from sottovoce.deployment.machines.site_folder import SiteFolder
from sottovoce.deployment.operators.admission_file import AdmissionFile, admit
from sottovoce.deployment.operators.device import DeviceFolder, create_device
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.runs.folder import RunFolder

pytestmark = REAL_PROCESSES
SITES = ("client-0000", "client-0001")
PHONE = "client-0002"
ROUND_SECONDS, CONFIRM_SECONDS = 50.0, 30
POLICY: dict[str, Any] = {
    "epsilon_per_round": 100.0,
    "epsilon_total": 1000.0,
    "delta": 1e-5,
    "smallest_cohort": 1,
    "honest": 2,
    "colluders": 1,
    "adjacency": "replace-one",
}
TRAINING = {
    "mechanisms": ["clamped_sign", "seeded_step"],
    "level": "client",
    "seeded_randomness": True,
}
QUESTIONS = {"mechanisms": ["mvu"], "level": "sample", "float_noise": True}
AGES = {"client-0000": 20.0, "client-0001": 40.0, "client-0002": 60.0}


def fill_in(file: Path, name: str, link: str, policy: dict[str, Any]) -> None:
    """Write a site's policy and its one person."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in (POLICY | policy).items()]
    column = ["[columns.age]", 'csv = "people.csv"', 'column = "age"']
    file.write_text("\n".join([f'name = "{name}"', link, "[policy]", *lines, *column]))
    (file.parent / "people.csv").write_text(f"age\n{AGES[name]}\n")


def enrolled(
    operators: Operators, sites: Sequence[SiteFolder], policy: dict[str, Any]
) -> DeviceFolder:
    """Enroll and admit the sites of a link, and a client over HTTPS, which is returned."""
    card, digest = operators.relay.folder / "operators.toml", operators.pinned.digest
    phone = create_device(
        operators.folder / PHONE, name=PHONE, operators=card, digest=digest, with_site=True
    )
    requests = [phone.admission_path]
    for site in sites:
        found = printed_json(
            *("deploy", "enroll", str(site.folder), "--as", site.name),
            *("--operators", str(card), "--digest", digest),
        )
        requests.append(Path(found["request"]))
        text = site.file.read_text()
        link = text[text.index("[link]") : text.index("# What this site")]
        fill_in(site.file, site.name, link, policy)
    fill_in(phone.site_file, PHONE, "", policy)
    for operator in (operators.relay, operators.collector):
        admit(operator, requests)
    return phone


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@contextlib.contextmanager
def running_phone(phone: DeviceFolder) -> Iterator[None]:
    command = [sys.executable, "-m", "sottovoce", "deploy", "node", str(phone.folder)]
    subprocess.run([*command, "--background"], check=True, capture_output=True)
    try:
        yield
    finally:
        assert call("deploy", "stop", str(phone.folder)).code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A relay with a link, its collector, two sites of the link, and a client over HTTPS."""

    operators: Operators
    federation: RunningFederation
    phone: DeviceFolder

    @property
    def folders(self) -> list[Path]:
        """The folders of all clients."""
        return [self.phone.folder, *(self.federation.site(name).folder for name in SITES)]

    def charges(self, unit: Unit) -> list[Any]:
        """What each client has charged, with the client over HTTPS first."""
        found = []
        for folder in self.folders:
            with Ledger(folder / LEDGER_NAME) as ledger:
                assert ledger.verify() == []
                found.append(ledger.history_of_all(unit))
        return found


@contextlib.contextmanager
def running_world(folder: Path, policy: dict[str, Any]) -> Iterator[World]:
    operators = create_operators(folder)
    with rehearsal(folder, sites=SITES, start=False) as federation:
        sites = [federation.site(name) for name in SITES]
        phone = enrolled(operators, sites, policy)
        change(operators.relay.folder / "relay.toml", '# link = "', 'link = "')
        collector = operators.collector.folder / "collector.toml"
        change(collector, "confirm_seconds = 60", f"confirm_seconds = {CONFIRM_SECONDS}")
        checks = printed_json("deploy", "check", str(operators.relay.folder))["checks"]
        assert (checks[-1]["name"], checks[-1]["state"]) == ("link", "ok")
        assert "does not run" in checks[-1]["detail"]
        federation.start_link()
        for site in sites:
            federation.start_node(site.name)
        with running_operators(operators), running_phone(phone):
            yield World(operators=operators, federation=federation, phone=phone)


def table_of(name: str, channel: str, mechanism: dict[str, Any]) -> dict[str, Any]:
    table = federated_table(
        name,
        clients=3,
        rounds=1,
        channel={"kind": channel, "protocol": "two_server", "minimum_clients": 2},
        mechanism=mechanism,
        algorithm=LOCAL_STEPS,
        privacy={
            "level": "client",
            "adjacency": "replace-one",
            "clip_norm": 1.0,
            "epsilon": 40.0,
            "delta": 1e-5,
        },
        deployment={"deadline_seconds": ROUND_SECONDS, "idle_rounds": 1},
    )
    return table | {"runtime": {"deterministic": True, "backend": "relay"}}


def train(operators: Operators, table: dict[str, Any]) -> RunFolder:
    spec, out = operators.folder / "spec.toml", operators.folder / table["name"]
    spec.write_text(as_toml(table))
    ended = call("deploy", "run", str(operators.collector.folder), str(spec), "--out", str(out))
    assert ended.code == 0, ended.text
    return RunFolder(out)


def kept_anywhere(folder: Path, secrets: Sequence[bytes]) -> list[Path]:
    """The files of a folder that contain one of some bytes."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(secret in path.read_bytes() for secret in secrets)
    ]


def reports_of(ledger: Path) -> list[bytes]:
    """The bytes that a client's journal keeps of what it has sent."""
    with contextlib.closing(sqlite3.connect(ledger)) as found:
        rows = found.execute("SELECT record FROM attempts WHERE record IS NOT NULL").fetchall()
    return [row[0][32:] for row in rows]


def assert_nothing_is_kept(world: World) -> None:
    """Nothing that a site has sent is in a file of the link a while after its run."""
    secrets = [report for one in world.folders for report in reports_of(one / LEDGER_NAME)]
    secrets += [
        AdmissionFile.read(folder / "relay" / "admission.toml")
        .certificate(world.operators.pinned.keys)
        .to_bytes()
        for folder in world.folders[1:]
    ]
    assert len(secrets) >= 2 * len(SITES)
    deadline = time.monotonic() + 30.0
    while kept := kept_anywhere(world.federation.federation.link_folder, secrets):
        assert time.monotonic() < deadline, kept
        time.sleep(1.0)


def assert_same_model(found: RunFolder, expected: RunFolder, *, atol: float) -> None:
    models = [folder.load_checkpoint() for folder in (found, expected)]
    assert models[0] is not None
    assert models[1] is not None
    np.testing.assert_allclose(models[0].model, models[1].model, rtol=0.0, atol=atol)


def test_sites_of_a_link_and_a_client_over_https_train_together(tmp_path: Path) -> None:
    sums = table_of("summed", "secure_sum", {"kind": "clamped_sign", "logit_bound": 0.5})
    found_by_plan = dict.fromkeys(("length", "generator", "timing"), "auto")
    seeds = table_of("shuffled", "shuffler", {"kind": "seeded_step", **found_by_plan})
    with running_world(tmp_path, TRAINING) as world:
        for table in (sums, seeds):
            found = train(world.operators, table)
            assert [row["clients_received"] for row in found.metrics()] == [3]
            # The order of a list is that of its bytes, and sums of floats depend on it.
            expected = simulated(table, tmp_path / f"{table['name']}-here")
            assert_same_model(found, expected, atol=0.0 if table is sums else 1e-12)
            assert_nothing_is_kept(world)
        over_https, *over_the_link = world.charges(Unit.CLIENT)
    assert len(over_https) == 2
    assert over_the_link == [over_https, over_https]


def state_at(folder: Path) -> str:
    """The state of a client's newest attempt; empty without one."""
    with contextlib.closing(sqlite3.connect(folder / LEDGER_NAME)) as found:
        tables = found.execute("SELECT name FROM sqlite_master WHERE name = 'attempts'").fetchall()
        rows = found.execute("SELECT state FROM attempts").fetchall() if tables else []
    return str(rows[-1][0]) if rows else ""


def test_a_site_that_restarts_after_its_report_confirms_and_so_does_a_relay(
    tmp_path: Path,
) -> None:
    """A question about people, in a shuffle."""
    with running_world(tmp_path, QUESTIONS) as world:
        relay, collector = world.operators.relay.folder, world.operators.collector.folder
        bounds = ["--lower", "0", "--upper", "100", "--epsilon", "2", "--channel", "shuffler"]
        asking = subprocess.Popen(
            world.federation.command(
                *("ask", collector, "mean", "--about", "age", *bounds, "--deadline", "75", "--json")
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        eventually(
            lambda: {state_at(folder) for folder in world.folders} == {"reported"}, seconds=60.0
        )
        world.federation.stop_node(SITES[0])
        world.federation.deploy("stop", relay)
        world.federation.deploy("relay", relay, "--background")
        world.federation.start_node(SITES[0])
        printed, _ = asking.communicate(timeout=180.0)
        assert asking.returncode == 0
        found = json.loads(printed)
        assert found["clients"] == {"admitted": 3, "answered": 3, "dropped": 0}
        assert [state_at(folder) for folder in world.folders] == ["confirmed"] * 3
        assert_nothing_is_kept(world)
        over_https, *over_the_link = world.charges(Unit.SAMPLE)
    assert len(over_https) == 1
    assert over_the_link == [over_https, over_https]
