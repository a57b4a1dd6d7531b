"""Round overhead of a federation, compared with Flower's stock loop, and bytes on the wire.

Two federations of real processes on this machine, one after the other, with the same number of
nodes and a model of a few numbers: what remains is the overhead of a round. Ours
has TLS, keys, a policy, ledgers and a gate; the stock one has none of these.

    python benchmarks/deployment.py [--nodes 2] [--rounds 6]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

import itertools

from federations import RunningFederation, rehearsal
from relay import Relay, relay_to

from sottovoce.deployment.machines import processes
from sottovoce.deployment.machines.address import free_port
from sottovoce.deployment.machines.processes import (
    Child,
    program,
    stop_children_at_exit,
    wait_until,
)
from sottovoce.protocol.message import HEADER_BYTES

_TINY = """
name = "overhead"
seed = 1
rounds = {rounds}
[data]
dataset = "digits"
clients = {nodes}
[model]
{model}
[algorithm]
kind = "fedavg"
server_learning_rate = 1.0
local_learning_rate = 0.1
[privacy]
level = "client"
clip_norm = 1.0
epsilon = 50.0
delta = 1e-5
[mechanism]
kind = "gauss_hermite"
levels = 2
[runtime]
downlink = "{downlink}"
"""
_STOCK_PROJECT = """
[project]
name = "stock"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "stock.server_app:app"
clientapp = "stock.client_app:app"
[tool.flwr.app.config]
rounds = {rounds}
out = "{out}"
"""
_STOCK_CLIENT = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    arrays = message.content["arrays"]
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
"""
_STOCK_SERVER = """
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    path = Path(str(context.run_config["out"]))

    def evaluate(number, arrays):
        with path.open("a") as file:
            file.write(f"{number} {time.time()}\\n")

    FedAvg(fraction_evaluate=0.0, min_available_nodes=%d).start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(650, dtype=np.float32)]),
        num_rounds=int(context.run_config["rounds"]),
        evaluate_fn=evaluate,
    )
"""


def stock_rounds(folder: Path, nodes: int, rounds: int) -> list[float]:
    """Return the seconds of each round of Flower's own FedAvg on its own link and nodes."""
    folder.mkdir()
    out = folder / "times"
    app = folder / "app" / "stock"
    app.mkdir(parents=True)
    (app / "__init__.py").touch()
    (app / "client_app.py").write_text(_STOCK_CLIENT)
    (app / "server_app.py").write_text(_STOCK_SERVER % nodes)
    (app.parent / "pyproject.toml").write_text(_STOCK_PROJECT.format(rounds=rounds, out=out))
    home = folder / "home"
    home.mkdir()
    port = free_port()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    environment = processes.environment(home)
    with stop_children_at_exit() as children:
        commands = [
            [
                *(program("flower-superlink"), "--insecure", "--port", str(port)),
                "--disable-runtime-dependency-installation",
            ]
        ]
        commands += [
            [
                *(program("flower-supernode"), "--insecure"),
                *("--superlink", f"127.0.0.1:{port}", "--port", str(free_port())),
            ]
            for _ in range(nodes)
        ]
        for number, command in enumerate(commands):
            log = folder / f"{number}.log"
            children.append(Child.start("stock", command, log=log, environment=environment))
            time.sleep(5.0)
        subprocess.run(
            [program("flwr"), "run", str(app.parent), "here"],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        wait_until(
            lambda: out.exists() and len(out.read_text().splitlines()) > rounds,
            children,
            what="the stock run did not end",
            timeout_seconds=60.0 + 20.0 * rounds,
        )
    times = [float(line.split()[1]) for line in out.read_text().splitlines()]
    return [after - before for before, after in itertools.pairwise(times)]


def our_rounds(
    folder: Path, nodes: int, rounds: int, *, model: str, downlink: str
) -> tuple[list[float], list[tuple[int, int]], list[dict[str, int]]]:
    """Return seconds, one node's bytes on the wire (up, down) by round, and the report."""
    folder.mkdir()
    names = [f"client-{number:04d}" for number in range(nodes)]
    with (
        rehearsal(folder, sites=names, start=False) as running,
        relay_to(running.federation.address.port) as relay,
    ):
        for name in names:
            _prepare(running, name, relay if name == names[0] else None)
        running.start_link()
        for name in names:
            running.start_node(name)
        spec = folder / "spec.toml"
        spec.write_text(_TINY.format(rounds=rounds, nodes=nodes, model=model, downlink=downlink))
        run = subprocess.Popen(
            running.command("run", running.folder, spec, "--out", folder / "run", "--json"),
            env=running.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        marks = _watch(folder / "run" / "metrics.jsonl", relay, run)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    seconds = [after[0] - before[0] for before, after in itertools.pairwise(marks)]
    wire = [
        (after[1] - before[1], after[2] - before[2]) for before, after in itertools.pairwise(marks)
    ]
    return seconds, wire, rows


def _prepare(running: RunningFederation, name: str, relay: Relay | None) -> None:
    """Give the site a policy with a large budget, and connect it over the relay."""
    path = running.site(name).file
    text = path.read_text()
    for old, new in (
        ('level = "sample"', 'level = "client"'),
        ("epsilon_per_round = 2.0", "epsilon_per_round = 50.0"),
        ("epsilon_total = 10.0", "epsilon_total = 500.0"),
    ):
        assert old in text
        text = text.replace(old, new)
    if relay:
        text = text.replace(str(running.federation.address), f"127.0.0.1:{relay.port}")
    path.write_text(text)


def _watch(
    metrics: Path, relay: Relay, run: subprocess.Popen[bytes]
) -> list[tuple[float, int, int]]:
    """Record the time and the relay's count at the end of each round."""
    marks: list[tuple[float, int, int]] = []
    while run.poll() is None:
        rows = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if rows > len(marks):
            marks.append((time.time(), relay.up, relay.down))
        time.sleep(0.02)
    assert run.returncode == 0, "the run failed"
    return marks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="sottovoce-bench-") as name:
        folder = Path(name)
        ours, _, _ = our_rounds(
            folder / "ours",
            given.nodes,
            given.rounds,
            model='kind = "linear"',
            downlink="float32",
        )
        stock = stock_rounds(folder / "stock", given.nodes, given.rounds)
        ratio = statistics.median(ours) / statistics.median(stock)
        print(f"seconds a round, ours    {statistics.median(ours):6.2f}  {_shown(ours)}")
        print(f"seconds a round, stock   {statistics.median(stock):6.2f}  {_shown(stock)}")
        print(f"ratio                    {ratio:6.2f}")
        for downlink in ("float32", "int8"):
            _, wire, rows = our_rounds(
                folder / downlink,
                2,
                3,
                model='kind = "mlp"\nhidden_units = 13333',
                downlink=downlink,
            )
            payload = rows[-1]["payload_bytes_up"] // rows[-1]["clients_received"]
            down = rows[-1]["payload_bytes_down"] // rows[-1]["clients_asked"]
            up_wire, down_wire = wire[-1]
            print(f"one bit of 999,985 coordinates, downlink {downlink}:")
            print(f"  up    payload {payload:9,}  sealed {payload + HEADER_BYTES:9,}", end="")
            print(f"  wire {up_wire:9,}  ratio {up_wire / payload:.3f}")
            print(f"  down  payload {down:9,}  wire {down_wire:9,}  ratio {down_wire / down:.3f}")


def _shown(seconds: list[float]) -> str:
    return " ".join(f"{one:.2f}" for one in seconds)


if __name__ == "__main__":
    main()
