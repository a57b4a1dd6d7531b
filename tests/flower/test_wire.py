"""What a round really takes on the wire, counted by a relay that both sites dial through."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from federations import RunningFederation, rehearsal
from relay import Relay, relay_to

pytest.importorskip("flwr")
pytestmark = [pytest.mark.xdist_group("federation"), pytest.mark.slow]

SITES = ("client-0000", "client-0001")
SPEC = """
name = "wire"
seed = 1
rounds = 3

[data]
dataset = "digits"
clients = 2

[model]
kind = "mlp"
hidden_units = 13333

[algorithm]
kind = "fedavg"
server_learning_rate = 1.0
local_learning_rate = 0.1

[privacy]
level = "client"
clip_norm = 1.0
epsilon = 20.0
delta = 1e-5

[mechanism]
kind = "gauss_hermite"
levels = 2

[runtime]
downlink = "int8"
"""


def _allow(running: RunningFederation, name: str, relay: Relay) -> None:
    """A policy for whole clients, and a way over the relay."""
    path = running.site(name).file
    text = path.read_text()
    for old, new in (
        ('level = "sample"', 'level = "client"'),
        ("epsilon_per_round = 2.0", "epsilon_per_round = 20.0"),
        ("epsilon_total = 10.0", "epsilon_total = 20.0"),
        (str(running.federation.address), f"127.0.0.1:{relay.port}"),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def _counted_by_round(
    running: RunningFederation, relay: Relay, folder: Path
) -> list[tuple[int, int]]:
    """The relay's count, up and down, at the end of each round."""
    spec, out = folder / "spec.toml", folder / "run"
    spec.write_text(SPEC)
    run = subprocess.Popen(
        running.command("run", running.folder, spec, "--out", out, "--json"),
        env=running.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    marks: list[tuple[int, int]] = []
    while run.poll() is None:
        metrics = out / "metrics.jsonl"
        if metrics.exists() and metrics.read_bytes().count(b"\n") > len(marks):
            marks.append((relay.up, relay.down))
        time.sleep(0.02)
    assert run.stderr is not None
    said = run.stderr.read()
    assert run.returncode == 0, said
    run.stderr.close()
    return marks


def test_a_million_bits_take_little_more_than_their_payload(tmp_path: Path) -> None:
    with (
        rehearsal(tmp_path, sites=SITES, start=False) as running,
        relay_to(running.federation.address.port) as relay,
    ):
        for name in SITES:
            _allow(running, name, relay)
        running.start_link()
        for name in SITES:
            running.start_node(name)
        marks = _counted_by_round(running, relay, tmp_path)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["clients_received"] for row in rows] == [2, 2, 2]
    payload = (999_985 + 7) // 8
    steps = -(-999_985 // 256)
    for row in rows:
        assert row["payload_bytes_up"] == 2 * payload
        assert row["payload_bytes_down"] == 2 * (999_985 + 4 * steps)
    # Rounds 2 and 3 together: where a round ends is known to a moment, not to a byte.
    up, down = (after - before for before, after in zip(marks[0], marks[2], strict=True))
    assert 4 * payload < up <= 1.25 * 4 * payload
    assert down <= 1.25 * 4 * (999_985 + 4 * steps)
    # The link's own count has everything but TLS and the polls between rounds.
    reported = [sum(row[f"total_bytes_{way}"] for row in rows[1:]) for way in ("up", "down")]
    assert reported == pytest.approx([up, down], rel=0.05)
