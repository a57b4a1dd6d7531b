"""The commands that README and docs/how-to/deploy.md show, as they stand there, in a shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from federations import REAL_PROCESSES

from sottovoce.deployment.machines.address import free_port

pytest.importorskip("flwr")
pytestmark = REAL_PROCESSES

ROOT = Path(__file__).parent.parent.parent


def _block(page: str, heading: str) -> list[str]:
    """The first indented block under a heading."""
    lines = (ROOT / page).read_text().split(f"\n{heading}\n", 1)[1].splitlines()
    indented = [number for number, line in enumerate(lines) if line.startswith("    ")]
    first = indented[0]
    last = next(number for number in range(first, len(lines)) if not lines[number].strip())
    return [line.strip() for line in lines[first:last]]


@pytest.mark.parametrize(
    ("page", "heading", "command"),
    [
        ("README.md", "## On several machines", ".venv/bin/sottovoce"),
        ("docs/how-to/deploy.md", "## A rehearsal on one machine", "sottovoce"),
    ],
)
def test_a_rehearsal_goes_as_the_page_says(
    page: str, heading: str, command: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    ours = tmp_path / "sottovoce"
    ours.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sottovoce "$@"\n')
    ours.chmod(0o755)
    lines = [line.replace(f"{command} ", f"{ours} ") for line in _block(page, heading)]
    # The page's port may be taken here, and ten rounds take longer than this needs.
    lines = [line.replace("--rehearsal", _rehearsal()) for line in lines]
    (script := tmp_path / "script.sh").write_text("set -e\n" + "\n".join(lines) + "\n")
    home = tmp_path / "home"
    home.mkdir()
    shown = subprocess.run(
        ["bash", str(script)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "the link is stopped" in shown.stdout
    assert shown.stdout.count("the node is stopped") == 3
    assert "10 of 10" in shown.stdout or "epsilon" in shown.stdout
    assert not any(home.iterdir())  # nothing is written to anybody's home


def _rehearsal() -> str:
    return f"--address 127.0.0.1:{free_port()} --rehearsal"
