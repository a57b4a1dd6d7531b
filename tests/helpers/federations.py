"""Rehearsal federations of real processes on this machine: a link with TLS, and its sites."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sottovoce.deployment.machines.address import Address, free_port
from sottovoce.deployment.machines.federation import Federation, create_federation
from sottovoce.deployment.machines.site_folder import SiteFolder, create_rehearsal_sites

# Of a test file: one federation at a time, each keeps a dozen processes busy.
REAL_PROCESSES = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc"),
    pytest.mark.xdist_group("federation"),
    pytest.mark.slow,
]
SRC = Path(__file__).parent.parent.parent / "src"
_COMMAND_SECONDS = 240.0

# Puts the modules in its own folder before those of the package: stubs for what a test leaves out.
_SITECUSTOMIZE = """\
import importlib
from pathlib import Path
for stubs in (Path(__file__).parent / "sottovoce_stubs").iterdir():
    importlib.import_module(f"sottovoce.{stubs.name}").__path__.insert(0, str(stubs))
"""
_IDLE_WORKER = """\
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("idle worker of", *sys.argv[1:], flush=True)
while True:
    time.sleep(0.2)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFederation:
    """A federation whose link and nodes run in the background."""

    federation: Federation
    environment: dict[str, str]

    @property
    def folder(self) -> Path:
        return self.federation.folder

    def site(self, name: str) -> SiteFolder:
        return SiteFolder.read(self.folder / "sites" / name)

    def command(self, *arguments: object) -> list[str]:
        """The command line of `sottovoce deploy ...`."""
        return [sys.executable, "-m", "sottovoce", "deploy", *map(str, arguments)]

    def deploy(self, *arguments: object, code: int = 0, folder: Path | None = None) -> str:
        """Run `sottovoce deploy ...` in `folder`; gives what it printed if it exits with `code`."""
        found = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=folder,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        assert found.returncode == code, f"exit {found.returncode}: {found.stdout}{found.stderr}"
        return found.stdout if code == 0 else found.stderr

    def status(self) -> Any:
        return json.loads(self.deploy("status", self.folder, "--json"))

    def start_link(self) -> None:
        self.deploy("link", self.folder, "--background")

    def stop_link(self) -> None:
        self.deploy("stop", self.folder)

    def start_node(self, name: str) -> None:
        self.deploy("node", self.site(name).folder, "--background")

    def stop_node(self, name: str) -> None:
        self.deploy("stop", self.site(name).folder)


@contextlib.contextmanager
def rehearsal(
    folder: Path,
    *,
    sites: Sequence[str] = ("hospital-a", "hospital-b"),
    stubs: dict[str, str] | None = None,
    start: bool = True,
) -> Iterator[RunningFederation]:
    """A federation in `folder` on free ports; link and nodes are stopped at the end.

    `stubs` maps paths under the package (such as flower/worker.py) to a text that stands in for
    them.
    """
    federation = create_federation(
        folder / "federation",
        address=Address(host="127.0.0.1", port=free_port()),
        sites=sites,
    )
    create_rehearsal_sites(federation)
    running = RunningFederation(
        federation=federation, environment=_environment(folder, stubs or {})
    )
    try:
        if start:
            running.start_link()
            for name in sites:
                running.start_node(name)
        yield running
    finally:
        for name in sites:
            running.stop_node(name)
        running.stop_link()


def idle_worker() -> dict[str, str]:
    """A stub for the node's worker, which takes no task."""
    return {"flower/worker.py": _IDLE_WORKER}


def mischievous_worker() -> dict[str, str]:
    """A stub for the node's worker: the real one, but for the rounds that a test names."""
    text = (Path(__file__).parent / "mischievous_worker.py").read_text(encoding="utf-8")
    return {"flower/worker.py": text}


def processes_of(folder: Path) -> list[str]:
    """The command lines of all processes that name `folder` (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line and int(process.name) != os.getpid():
                found.append(line)
    return found


def _environment(folder: Path, stubs: dict[str, str]) -> dict[str, str]:
    home, folder = folder / "home", folder / "stubs"
    home.mkdir()
    paths = [str(SRC)]
    if stubs:
        for name, text in {f"sottovoce_stubs/{k}": v for k, v in stubs.items()}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
        paths.insert(0, str(folder))
    return {
        **os.environ,
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
    }


def in_flowers_simulation(folder: Path, *arguments: str) -> str:
    """What a Python program prints that runs Flower's simulation engine."""
    pytest.importorskip("ray", reason="Flower's simulation needs ray: install sottovoce[flower]")
    done = subprocess.run(
        [sys.executable, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(SRC), str(Path(__file__).parent)]),
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
