"""The scripts in benchmarks/ run, and end with an error where something is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
import relay_shuffle
import shuffled_mnist

from sottovoce.core import native
from sottovoce.runs.loading import parse

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


SHUFFLED_BLOBS = {
    "name": "blobs",
    "seed": 1,
    "rounds": 1,
    "randomness": "seeded",
    "data": {"dataset": "blobs:30x4x3", "partition": {"kind": "one_sample"}},
    "model": {"kind": "linear"},
    "sampling": {"kind": "everyone"},
    "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0, "local_learning_rate": 1.0},
    "privacy": {
        "level": "client",
        "adjacency": "replace-one",
        "clip_norm": 1.0,
        "epsilon": 8.0,
        "delta": 1e-3,
    },
    "mechanism": {
        "kind": "seeded_step",
        "length": "kept",
        "generator": "auto",
        "timing": "auto",
    },
    "channel": {"kind": "shuffler", "minimum_clients": 20},
    "runtime": {"messages": "packed", "device": "cpu"},
}


def test_a_round_half_through_a_relay_has_the_bits_of_the_simulation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(relay_shuffle, "SPARE_SECONDS", 1)
    shuffled_mnist.train(parse(SHUFFLED_BLOBS), 12, connections=2)
    printed = capsys.readouterr().out
    assert "round 1: 12 opened payloads are the simulator's" in printed
    assert "of 24 clients are honest" in printed


def test_the_benchmark_trains_the_row_of_the_experiment() -> None:
    spec = shuffled_mnist.grid_spec(3, fast=False)
    found = spec.channel.kind, spec.privacy.epsilon, spec.seed, spec.data.dataset
    assert found == ("shuffler", 1.0, 3, "mnist")


def test_a_sum_behind_masks_is_the_plain_sum() -> None:
    few = ("--clients", 5, "--threshold", 4, "--dropped", 1, "--dimension", 1000)
    done = run("pairwise.py", *few, "--without-flower")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("| pairwise masks |")
