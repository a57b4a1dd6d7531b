"""A channel, a sampling and a partition of another distribution, each in one file."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distributions import install
from specs import CLIENT_LEVEL, small_spec

pytest.importorskip("torch")

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box
from sottovoce.core.errors import ConfigError, PluginError, PolicyError, UnknownNameError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.deployment import site_training
from sottovoce.federated.cohorts import SAMPLINGS, ClientSampling, draw
from sottovoce.learning.partition import PARTITIONS
from sottovoce.mechanisms.registry import find
from sottovoce.mechanisms.release import ShuffledMessages
from sottovoce.privacy import events
from sottovoce.protocol.channels.channel import CHANNELS, Channel, register_channel, terms_of
from sottovoce.reporting.words import facts
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.record import read_record
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run

PIGEONS = """
from dataclasses import dataclass, field
from sottovoce.core.sections import whole
from sottovoce.mechanisms import NoisySums, ShuffledMessages
from sottovoce.protocol import Channel, register_channel

@register_channel("pigeons", summary="a flock, in which nobody knows whose pigeon is whose")
@dataclass(frozen=True, slots=True, kw_only=True)
class Pigeons(Channel):
    flock: int = field(default=4, metadata=whole(2, 100))

    @property
    def visibility(self):
        return ShuffledMessages(minimum_clients=self.flock)

    def describe(self):
        return "pigeons: the flock forgets senders"

@register_channel("rumor", summary="a sample of clients that nobody draws")
@dataclass(frozen=True, slots=True, kw_only=True)
class Rumor(Channel):
    @property
    def visibility(self):
        return NoisySums(client_sampling_rate=0.01)

@register_channel("magic", summary="no visibility")
@dataclass(frozen=True, slots=True, kw_only=True)
class Magic(Channel):
    @property
    def visibility(self):
        return ShuffledMessages  # the class
"""
IN_TURN = """
from dataclasses import dataclass
from sottovoce.federated import ClientSampling, register_sampling
from sottovoce.protocol.channels.channel import SamplingFacts

@register_sampling("in_turn", summary="one client after the other")
@dataclass(frozen=True, slots=True, kw_only=True)
class InTurn(ClientSampling):
    steps: int = 1

    def draw(self, num_clients, schedule, number):
        return [self.steps * (number - 1) % num_clients]

    def most_participations(self, num_clients, rounds):
        return -(-rounds // num_clients)

    def facts(self, num_clients):
        return SamplingFacts(kind=self.kind, largest_cohort=1, independent_rate=0.01)
"""
HALVES = """
from dataclasses import dataclass
import numpy as np
from sottovoce.learning import Partition, register_partition

@register_partition("halves", summary="two clients")
@dataclass(frozen=True, slots=True, kw_only=True)
class Halves(Partition):
    settles_clients = True
    overlap: int = 0

    def shares(self, labels, num_clients, generator, owners):
        middle = len(labels) // 2
        return [np.arange(middle), np.arange(middle - self.overlap, len(labels))]
"""
GROUPS = {
    "sottovoce.channels": dict.fromkeys(("pigeons", "rumor", "magic"), "pigeons"),
    "sottovoce.samplings": {"in_turn": "in_turn"},
    "sottovoce.partitions": {"halves": "halves"},
}
SHUFFLED = {
    **CLIENT_LEVEL,
    "privacy": {"level": "client", "adjacency": "replace-one", "clip_norm": 0.5, "delta": 1e-3},
    "mechanism": {"kind": "cldp", "epsilon": 0.5},
    "rounds": 2,
}


@pytest.fixture(autouse=True)
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    modules = {"pigeons": PIGEONS, "in_turn": IN_TURN, "halves": HALVES}
    install(tmp_path / "site", "pigeons", modules, GROUPS)
    for register in (CHANNELS, SAMPLINGS, PARTITIONS):
        register.ours()  # these stay; what is entered from here on does not
        monkeypatch.setattr(register, "_entries", dict(register._entries))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    for name in modules:
        sys.modules.pop(name, None)


def test_a_run_over_a_channel_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(**SHUFFLED, channel={"kind": "pigeons"})
    assert spec.channel.model_dump() == {"kind": "pigeons"}
    assert "pigeons" not in sys.modules  # reading a spec runs nobody else's code
    result = run(spec, tmp_path / "run")
    assert result["channel"] == "pigeons: the flock forgets senders"
    # It names a visibility, and is charged for that; that it keeps to it is its word.
    with RunFolder(tmp_path / "run").ledger() as ledger:
        ((event, count),) = ledger.history("client-0000")
    assert isinstance(event, events.Conditional)
    assert isinstance(event.event, events.Shuffled)
    assert (event.event.clients, count) == (4, 2)
    assert "privacy claims of plug-in channel 'pigeons' (distribution pigeons" in result["assumes"]
    assert "plug-in channel 'pigeons'" in result["guarantee"]
    # A report needs no plug-in.
    record = read_record(tmp_path / "run")
    assert record.spec.channel.model_dump() == {"kind": "pigeons", "flock": 4}
    monkeypatch.setattr(CHANNELS, "find", None)
    told = dict(facts(record, {"epsilon": 1.0, "sites": None}))
    assert "by the channel 'pigeons'" in told["Who sees it"]
    assert "An observer of replies and their senders has epsilon" in told["How well"]


def test_a_run_with_a_sampling_from_outside(tmp_path: Path) -> None:
    spec = small_spec(sampling={"kind": "in_turn"}, rounds=4)
    resolved = resolve(load_inputs(spec))
    assert resolved.spec.sampling.model_dump() == {"kind": "in_turn", "steps": 1}
    # Noise is made for one round of each client, and everyone pays for one.
    assert run(spec, tmp_path / "run")["epsilon"] == pytest.approx(4.0, rel=1e-3)
    with RunFolder(tmp_path / "run").ledger() as ledger:
        assert set(ledger.rounds_charged(resolved.run).values()) == {1}


def test_a_partition_from_outside() -> None:
    resolved = resolve(
        load_inputs(small_spec(data={"dataset": "digits", "partition": {"kind": "halves"}}))
    )
    assert len(resolved.clients) == 2
    assert resolved.spec.data.partition.model_dump() == {"kind": "halves", "overlap": 0}


def halves(overlap: int) -> dict[str, Any]:
    return {"dataset": "digits", "partition": {"kind": "halves", "overlap": overlap}}


SCAFFOLD: dict[str, Any] = {
    "algorithm": {"kind": "scaffold", "server_learning_rate": 1.0, "local_learning_rate": 0.5}
}
CENTRAL: dict[str, Any] = {
    "mechanism": {"kind": "gaussian", "noise_multiplier": 1.0},
    "runtime": {"messages": "none"},
}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"channel": {"kind": "pigeon"}}, UnknownNameError, "did you mean 'pigeons'"),
        ({"channel": {"kind": "pigeons", "flok": 3}}, UnknownNameError, "did you mean 'flock'"),
        ({"channel": {"kind": "pigeons", "flock": 1}}, ValueError, "flock must be an integer"),
        (
            {"channel": {"kind": "pigeons", "flock": 5}},
            ConfigError,
            "fewer than 5 messages",
        ),
        ({"channel": {"kind": "magic"}}, PluginError, "no privacy cost is proved"),
        ({"channel": {"kind": "rumor"}, **CENTRAL}, PluginError, "does not draw clients like that"),
        ({"channel": {"kind": "rumor"}, **CENTRAL, **SCAFFOLD}, ConfigError, "one noisy mean"),
        (
            {"channel": {"kind": "rumor"}, **CENTRAL, "runtime": {"messages": "stored"}},
            ConfigError,
            "adds noise once, to the sum",
        ),
        ({"data": halves(overlap=1)}, PluginError, "gives a sample to two clients"),
        # What amplifies is never taken on a plug-in's word.
        (
            {"channel": {"kind": "central"}, "sampling": {"kind": "in_turn"}, **CENTRAL},
            ConfigError,
            "'everyone' or 'poisson', got 'in_turn'",
        ),
        (
            {"sampling": {"kind": "in_turn"}, "runtime": {"backend": "flower"}},
            ConfigError,
            "verify",
        ),
        ({"channel": {"kind": "pigeons"}, "runtime": {"backend": "flower"}}, ConfigError, "verify"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve(load_inputs(small_spec(**{**CLIENT_LEVEL, **changes})))


@pytest.mark.parametrize(
    "changes", [{"channel": {"kind": "pigeons"}}, {"sampling": {"kind": "in_turn"}}]
)
def test_a_site_takes_neither(changes: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="imports no plug-in for an order"):
        site_training._channel(small_spec(**changes), 4)
    assert not {"pigeons", "in_turn"} & set(sys.modules)


def test_a_client_that_is_drawn_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve(load_inputs(small_spec(sampling={"kind": "in_turn"})))
    from sottovoce.core.randomness import SeededRandomness
    from sottovoce.federated.cohorts import draw

    monkeypatch.setattr(type(resolved.sampling), "draw", lambda *_: [1, 1])
    with pytest.raises(PluginError, match="draw distinct positions from 0 to 3"):
        draw(resolved.sampling, 4, SeededRandomness(0), 1)


def test_a_channel_may_not_say_what_follows_from_its_visibility() -> None:
    class Posing(Channel):
        hides_sender = False

    class Serving(Posing):
        def serves(self, clients: int) -> bool:
            return True

    class Trusted(Channel):
        """With fewer messages than are charged, and no need for trust in the server."""

        most_colluders, trusts_server, is_cryptographic = -5, False, False

    told = (
        (Posing, "hides_sender"),
        (Serving, "hides_sender, serves"),
        (Trusted, "most_colluders, trusts_server, is_cryptographic"),
    )
    for channel, said in told:
        with pytest.raises(PluginError, match=f"defines {said}, which must follow"):
            register_channel("posing", summary="a toy")(channel)


def test_ledgers_say_on_whose_word_a_channel_hides() -> None:
    channel = CHANNELS.find("pigeons").section()
    terms = terms_of(channel, Adjacency.REPLACE_ONE)
    box = Box(dimension=3, lower=0.0, upper=1.0)
    mechanism = find("bitwise_rr").build(box, find("bitwise_rr").examples[0])
    charged = terms(mechanism)
    assert isinstance(charged, events.Conditional)
    assert charged.assumption.startswith("plug-in channel 'pigeons'")
    assert isinstance(charged.event, events.Shuffled)


def test_a_package_that_calls_itself_papers_brings_no_channel_of_ours() -> None:
    @dataclass(frozen=True)
    class Liar(Channel):
        visibility = ShuffledMessages(minimum_clients=2)

    Liar.__module__ = "sottovoce_papers.liar"
    try:
        register_channel("liar", summary="a toy")(Liar)
        assert CHANNELS.find_ours("liar") is None
        assert "plug-in channel 'liar'" in (CHANNELS.describe_plugin("liar") or "")
    finally:
        CHANNELS._entries.pop("liar", None)


def test_a_sampling_that_does_not_repeat_is_refused() -> None:
    class Whim(ClientSampling):
        kind = "whim"
        calls = 0

        def draw(self, num_clients: int, schedule: SeededRandomness, number: int) -> list[int]:
            type(self).calls += 1
            return [self.calls % num_clients]

    with pytest.raises(PluginError, match="drew different clients when asked for round 1 again"):
        draw(Whim(), 5, SeededRandomness(1), 1)
