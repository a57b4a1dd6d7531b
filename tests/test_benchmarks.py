"""The scripts in benchmarks/ run, and end with an error where something is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.core import native

ROOT = Path(__file__).parents[1]


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)


def test_no_code_differs_from_the_reference_written_apart() -> None:
    done = run("exactness.py", 200_000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("0 mismatches")
    for level in native.levels():
        assert f"1 bit   {level}" in done.stdout


@pytest.mark.slow
def test_everything_on_one_page(tmp_path: Path) -> None:
    done = run("bench.py", "--quick", "--out", tmp_path / "page.md")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.md").read_text()
    for head in ("## Speed", "### Seeds", "### Peers", "### Designs", "### Accountants"):
        assert head in page
    assert "`sottovoce benchmark aggregate --bits 4" in page
    assert "| OpenDP |" in page  # measured, or said to be absent


def test_relay_and_collector_give_the_sum_and_all_messages() -> None:
    done = run("two_server.py", "--clients", 6)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("both servers") == 3
    assert done.stdout.count("sum of 6 clients") == 2


def test_a_sum_behind_masks_is_the_plain_sum() -> None:
    few = ("--clients", 5, "--threshold", 4, "--dropped", 1, "--dimension", 1000)
    done = run("pairwise.py", *few, "--without-flower")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("| pairwise masks |")
