"""Runs this app with and without its marked lines in Flower's simulation, and prints both.

    python examples/flower/own_app/compare.py --clients 100 --seeds 2

Everything is made in a folder that is removed afterwards: sites, Flower's home, and a copy of the
app from which every line marked '# sottovoce' is gone. The link listens on this machine only.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sottovoce.ledger import seal

APP = Path(__file__).parent
MARK = "# sottovoce"
SITE = """
name = "client-{number}"

[policy]
mechanisms = ["gauss_hermite"]
level = "client"
adjacency = "zero-out"
epsilon_per_round = 10.0
epsilon_total = 50.0    # over all runs: two of this app's
delta = 1e-5
smallest_cohort = 10
"""
CONNECTION = '[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{}"\ninsecure = true\n'


def plain_copy(folder: Path) -> Path:
    """The app as it was before; how many lines that takes is printed."""
    copy = folder / "plain"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("__pycache__", Path(__file__).name))
    removed = 0
    for path in copy.rglob("*"):
        if path.suffix in (".py", ".toml"):
            lines = path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if MARK not in line]
            removed += len(lines) - len(kept)
            path.write_text("".join(kept))
    print(f"lines that make the app private: {removed}")
    return copy


def flower(*command: str, environment: dict[str, str]) -> None:
    program = str(Path(sys.executable).parent / "flwr")
    done = subprocess.run(  # noqa: S603  (our own list, and no shell)
        [program, *command], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"flwr {' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def start_link(port: int, log: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    program = str(Path(sys.executable).parent / "flower-superlink")
    options = ["--insecure", "--simulation", "--disable-runtime-dependency-installation"]
    with log.open("wb") as output:
        link = subprocess.Popen(  # noqa: S603  (our own list, and no shell)
            [program, *options, "--port", str(port)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    for _ in range(120):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return link
        time.sleep(0.5)
    link.terminate()
    sys.exit(f"Flower's link did not start:\n{log.read_text()}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--clients", type=int, default=100)
    options.add_argument("--seeds", type=int, default=2)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        environment = {
            **os.environ,
            # The link starts programs of Flower's by name.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "SOTTOVOCE_SITE": str(folder / "sites" / "{partition-id}" / "site.toml"),
        }
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(CONNECTION.format(f"127.0.0.1:{port}"))
        for number in range(chosen.clients):
            site = folder / "sites" / str(number)
            site.mkdir(parents=True)
            (site / "site.toml").write_text(SITE.format(number=number))
            seal.create(site)  # its ledger: 'sottovoce ledger create'
        apps = {"plain": plain_copy(folder), "private": APP}
        link = start_link(port, folder / "link.log", environment)
        try:
            clients = str(chosen.clients)
            flower(
                "federation",
                "simulation-config",
                "--num-supernodes",
                clients,
                environment=environment,
            )
            for seed in range(chosen.seeds):
                for kind, app in apps.items():
                    compare(kind, app, seed, folder / f"{kind}-{seed}.json", environment)
        finally:
            link.terminate()
            link.wait(timeout=60)


def compare(kind: str, app: Path, seed: int, output: Path, environment: dict[str, str]) -> None:
    config = f'seed={seed} output="{output}"'
    start = time.perf_counter()
    # With --stream it returns when the run has ended.
    flower("run", str(app), "here", "--stream", "--run-config", config, environment=environment)
    if not output.exists():
        sys.exit(f"the {kind} run with seed {seed} did not end well")
    found = json.loads(output.read_text())
    last = list(found["training"].values())[-1] if found["training"] else {}
    sent = (
        last["bytes-up"] / last["clients-answered"] if "epsilon" in last else found["model_bytes"]
    )
    print(
        f"{kind:8} seed {seed}: accuracy {found['accuracy']['accuracy']:.3f}, "
        f"{sent:.0f} bytes a client and round, epsilon {last.get('epsilon', float('inf')):.4g}, "
        f"{time.perf_counter() - start:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
