"""Rounds with clients elsewhere: a clock that is ours, and replies of every bad kind.

Whatever else arrives, the model moves by the exact mean of the messages that are what was
announced, added up in the order of the plan.
"""

import dataclasses
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import Box, Domain, L2Ball, Vector
from sottovoce.core.errors import DeploymentError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.deployment.orders import ROUNDS_CHARGED, Order, refusal_blobs, reply_blobs
from sottovoce.deployment.post import FOLDER_VARIABLE, OVERHEAD_BYTES, ExpectedReplies, Reply
from sottovoce.deployment.remote_rounds import RemoteRounds, WaitLimits
from sottovoce.federated.training import CollectedRound, SiteReply
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Codes, Mechanism
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.protocol.broadcast import Start, unpack_start
from sottovoce.protocol.channels.channel import Channel, Direct
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.protocol.message import HEADER_BYTES, seal
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import RoundServer, open_round

DIMENSION = 24
NAMES = tuple(f"site-{number}" for number in range(6))
KEYS = SeededRandomness(5)
BALL = L2Ball(dimension=DIMENSION, radius=1.0)
BOX = Box(dimension=DIMENSION, lower=-1.0, upper=1.0)
START = Start(model=np.linspace(-1.0, 1.0, DIMENSION), state={})
PATIENCE = WaitLimits(deadline_seconds=60.0, enough=1.0, minimum_replies=1, idle_rounds=3)


@dataclass(frozen=True, kw_only=True)
class Sending:
    """What rounds need to know of an algorithm, and nothing that trains."""

    uplinks: int = 1
    unit: Unit = Unit.CLIENT
    record_sampling_rate: float = 1.0
    shared_state: tuple[str, ...] = ()
    gathers: bool = False


@dataclass
class Clock:
    """Time passes only where somebody pauses."""

    now: float = 1000.0
    pauses: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        assert seconds > 0.0
        self.pauses.append(seconds)
        self.now += seconds


Answers = Callable[[Order, RoundPlan, ClientPlan], Iterable[tuple[float, Reply]]]


@dataclass
class FakePost:
    """Sites that answer as told, so many seconds after they were asked."""

    clock: Clock
    rounds: list[RemoteRounds] = field(default_factory=list)
    answers: Answers | None = None
    offline: set[str] = field(default_factory=set)
    asked: list[dict[str, Order]] = field(default_factory=list)
    expires: list[float] = field(default_factory=list)
    due: list[tuple[float, Reply]] = field(default_factory=list)
    counts: list[tuple[int, int] | None] = field(default_factory=list)

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        return frozenset(clients) - self.offline

    def send(self, orders: Mapping[str, Order], *, expires_seconds: float) -> int:
        self.asked.append(dict(orders))
        self.expires.append(expires_seconds)
        self.due = []
        for client, order in orders.items():
            plan, part = plan_of(self.rounds[0], order.round, list(orders), client)
            for after, reply in (self.answers or at_once)(order, plan, part):
                self.due.append((self.clock.now + after, reply))
        self.due.sort(key=lambda entry: entry[0])
        return 1000 * len(orders)

    def traffic(self) -> tuple[int, int] | None:
        return self.counts.pop(0) if self.counts else None

    def collect(self) -> Iterator[Reply]:
        arrived = [reply for when, reply in self.due if when <= self.clock.now]
        self.due = [entry for entry in self.due if entry[0] > self.clock.now]
        yield from arrived


def plan_of(
    rounds: RemoteRounds, number: int, clients: Sequence[str], client: str = NAMES[0]
) -> tuple[RoundPlan, ClientPlan]:
    """The plan as a site makes it, from what is public."""
    parts = {part.client: part for part in rounds.parts}
    rotation = Rotation.of_round(rounds.run, number, DIMENSION) if rounds.rotated else None
    plan = RoundPlan(
        run=rounds.run,
        round=number,
        unit=rounds.algorithm.unit,
        adjacency=rounds.adjacency,
        clients=tuple(parts[name] for name in clients),
        rotation=rotation,
        channel=rounds.channel,
    )
    return plan, parts[client]


def values_of(client: str, uplink: int) -> Vector:
    return SeededRandomness(len(client)).generator(client, uplink).normal(size=DIMENSION)


def encoded(plan: RoundPlan, part: ClientPlan, uplink: int = 0) -> Codes:
    domain = part.mechanism.input_domain
    values = domain.project(values_of(part.client, uplink))
    if plan.rotation is not None:
        values = plan.rotation.forward(values)
    keystream = KEYS.stream("encode", part.client, plan.round, uplink)
    return part.mechanism.encode(values, keystream)


def message(plan: RoundPlan, part: ClientPlan, uplink: int = 0) -> bytes:
    return seal(encoded(plan, part, uplink), plan.envelope(part, uplink))


def honest(plan: RoundPlan, part: ClientPlan, uplinks: int = 1) -> Reply:
    messages = [message(plan, part, uplink) for uplink in range(uplinks)]
    return Reply(client=part.client, blobs=reply_blobs(messages), total_bytes=500)


def at_once(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
    yield 0.0, honest(plan, part)


def some_mechanism(domain: Domain = BALL, kind: str = "gauss_hermite", **given: Any) -> Mechanism:
    return registry.find(kind).build(domain, given or {"levels": 4, "noise_multiplier": 2.0})


@dataclass
class Setting:
    """Rounds over a fake post, on a clock and a ledger of their own."""

    rounds: RemoteRounds
    post: FakePost
    clock: Clock
    ledger: Ledger

    def collect(self, number: int = 1, cohort: Sequence[int] | None = None) -> CollectedRound:
        cohort = range(len(NAMES)) if cohort is None else cohort
        return self.rounds.collect(number, cohort, START)

    def mean_of(
        self, asked: Sequence[str], received: Sequence[str], *, number: int = 1, uplink: int = 0
    ) -> Vector:
        """The mean of honest messages by the simulator's own server, in the order of the plan."""
        plan, _ = plan_of(self.rounds, number, asked)
        server = open_round(plan, self.rounds.randomness, dimension=DIMENSION, uplink=uplink)
        for part in plan.clients:
            if part.client in received:
                server.receive(part.client, message(plan, part, uplink))
        mean = server.result()
        assert mean is not None
        return mean

    def charged(self) -> list[tuple[object, object]]:
        return [(row["client"], row["round"]) for row in self.ledger.rows()]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Setting]]:
    opened: list[Ledger] = []

    def made(**changes: Any) -> Setting:
        ledger = Ledger(tmp_path / f"ledger{len(opened)}.sqlite", create=True)
        opened.append(ledger)
        return a_setting(ledger, **changes)

    yield made
    for ledger in opened:
        ledger.close()


def a_setting(
    ledger: Ledger,
    *,
    patience: WaitLimits = PATIENCE,
    answers: Answers | None = None,
    mechanism: Mechanism | None = None,
    channel: Channel | None = None,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    rotated: bool = False,
    algorithm: Sending | None = None,
    weights: Sequence[float] = (1.0,) * len(NAMES),
) -> Setting:
    clock = Clock()
    post = FakePost(clock=clock, answers=answers)
    shared = mechanism or some_mechanism()
    sending: Any = algorithm or Sending()
    rounds = RemoteRounds(
        run="run",
        dimension=DIMENSION,
        parts=tuple(
            ClientPlan(client=name, mechanism=shared, weight=weight)
            for name, weight in zip(NAMES, weights, strict=True)
        ),
        algorithm=sending,
        adjacency=adjacency,
        randomness=SeededRandomness(9),
        ledger=ledger,
        rotated=rotated,
        channel=channel or Direct(),
        spec={"name": "x"},
        classes=3,
        downlink="float32",
        post=post,
        patience=patience,
        clock=clock,
        pause=clock.pause,
    )
    post.rounds.append(rounds)
    return Setting(rounds=rounds, post=post, clock=clock, ledger=ledger)


Make = Callable[..., Setting]


def check_one_is_dropped(setting: Setting) -> CollectedRound:
    """The reply of site-2 is dropped, and the mean is that of the others."""
    found = setting.collect()
    assert (found.clients_received, found.replies_dropped) == (5, 1)
    others = [name for name in NAMES if name != "site-2"]
    assert np.array_equal(found.combined[0].mean, setting.mean_of(NAMES, others))
    return found


# -- what is asked -------------------------------------------------------------------------------


def test_everyone_answers_and_the_mean_is_that_of_the_simulators_server(make: Make) -> None:
    setting = make(weights=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    found = setting.collect()
    (combined,) = found.combined
    assert np.array_equal(combined.mean, setting.mean_of(NAMES, NAMES))
    assert found.clients_asked == found.clients_received == 6
    assert found.replies_dropped == found.clients_unreachable == found.clients_out_of_budget == 0
    assert (found.total_bytes_up, found.total_bytes_down) == (3000, 6000)
    assert found.payload_bytes_up == 6 * DIMENSION * 2 // 8
    assert setting.clock.pauses == []


def test_an_order_says_what_a_site_needs_and_no_more(make: Make) -> None:
    setting = make()
    setting.collect(7, [0, 2, 5])
    (orders,) = setting.post.asked
    assert list(orders) == ["site-0", "site-2", "site-5"]
    order = orders["site-2"]
    assert (order.run, order.round, order.client, order.cohort) == ("run", 7, "site-2", 3)
    assert order.keep_from == 7
    assert order.classes == 3
    assert order.mechanism == {"kind": "gauss_hermite", "levels": 4, "noise_multiplier": 2.0}
    read = unpack_start(order.vectors, (), DIMENSION, "float32")
    assert np.array_equal(read.model, START.model.astype(np.float32).astype(np.float64))
    assert setting.post.expires == [60.0]


def test_whichever_client_cannot_be_reached_is_neither_asked_nor_charged(make: Make) -> None:
    setting = make()
    setting.post.offline = {"site-1", "site-4"}
    found = setting.collect()
    assert (found.clients_asked, found.clients_unreachable) == (4, 2)
    asked = ["site-0", "site-2", "site-3", "site-5"]
    assert list(setting.post.asked[0]) == asked
    assert setting.charged() == [(name, 1) for name in asked]
    assert np.array_equal(found.combined[0].mean, setting.mean_of(asked, asked))


def test_whichever_client_is_asked_is_charged_even_if_nothing_comes_back(make: Make) -> None:
    setting = make(answers=lambda order, plan, part: [])
    found = setting.collect()
    assert found.combined == ()
    assert (found.clients_asked, found.clients_received) == (6, 0)
    assert setting.charged() == [(name, 1) for name in NAMES]
    event = some_mechanism().privacy(Adjacency.ZERO_OUT)
    for name in NAMES:
        assert setting.ledger.spent(name, 1e-6) == privacy_spent(
            compose_repeated([(event, 1)]), 1e-6
        )


def test_the_charge_is_there_when_the_order_goes_out(make: Make) -> None:
    seen = []

    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        seen.append(len(setting.charged()))
        return at_once(order, plan, part)

    setting = make(answers=answers)
    setting.collect()
    assert seen == [6] * 6


def test_a_round_that_is_repeated_is_charged_once(make: Make) -> None:
    setting = make()
    first, again = setting.collect(), setting.collect()
    assert np.array_equal(first.combined[0].mean, again.combined[0].mean)
    assert len(setting.charged()) == 6


def test_what_came_of_each_site_is_told_with_what_it_says(make: Make) -> None:
    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        sealed = reply_blobs([message(plan, part)])
        blobs: dict[str, Any] = {
            "site-0": reply_blobs([message(plan, part)], 7),
            "site-1": sealed,  # of an older version, say
            "site-2": refusal_blobs("its budget is spent", 3),
            "site-3": sealed | {"rounds_charged": b"many"},
            "site-4": None,
        }
        if part.client in blobs:
            yield 0.0, Reply(client=part.client, blobs=blobs[part.client], failure="gone")
            yield 0.0, Reply(client=part.client, blobs=refusal_blobs("again", 99))

    found = make(answers=answers).collect()
    assert found.sites == {
        "site-0": SiteReply(outcome="counted", rounds_charged=7),
        "site-1": SiteReply(outcome="counted"),
        "site-2": SiteReply(outcome="refused", rounds_charged=3),
        "site-3": SiteReply(outcome="dropped"),
        "site-4": SiteReply(outcome="refused"),
        "site-5": SiteReply(outcome="silent"),
    }
    assert found.clients_received == 2
    assert found.unanswered["site-2"] == "its budget is spent"
    assert "integer from 0" in found.unanswered["site-3"]


def test_whichever_client_is_out_of_budget_is_not_asked(make: Make) -> None:
    setting = make()
    event = some_mechanism().privacy(Adjacency.ZERO_OUT)
    spent = privacy_spent(event, 1e-6).epsilon
    budget = Budget(epsilon=spent / 2, delta=1e-6, adjacency=Adjacency.ZERO_OUT, unit=Unit.CLIENT)
    setting.ledger.set_budget("site-3", budget)
    found = setting.collect()
    assert found.clients_out_of_budget == 1
    assert "site-3" not in setting.post.asked[0]
    assert next(iter(setting.post.asked[0].values())).cohort == 5


def test_no_one_drawn_is_no_one_asked(make: Make) -> None:
    setting = make(patience=dataclasses.replace(PATIENCE, idle_rounds=1))
    found = setting.collect(cohort=[])
    assert found.combined == ()
    assert setting.post.asked == []
    assert setting.clock.pauses == []


# -- time ----------------------------------------------------------------------------------------


def after(seconds: Mapping[str, float]) -> Answers:
    """Honest replies, each in its time; whoever is not named is never heard of."""

    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        if part.client in seconds:
            yield seconds[part.client], honest(plan, part)

    return answers


def test_a_round_ends_at_its_deadline_to_the_second(make: Make) -> None:
    setting = make(answers=after({"site-0": 59.0}))
    found = setting.collect()
    assert setting.clock.now == pytest.approx(1060.0, abs=1e-9)
    assert found.clients_received == 1
    assert np.array_equal(found.combined[0].mean, setting.mean_of(NAMES, ["site-0"]))


def test_a_reply_at_the_deadline_counts_and_a_later_one_does_not(make: Make) -> None:
    setting = make(answers=after({"site-0": 60.0 - 1e-6, "site-1": 60.1, "site-2": 3600.0}))
    found = setting.collect()
    assert found.clients_received == 1
    assert found.replies_dropped == 0
    assert found.unanswered == dict.fromkeys(NAMES[1:], "it did not answer in time")
    assert np.array_equal(found.combined[0].mean, setting.mean_of(NAMES, ["site-0"]))
    assert len(setting.charged()) == 6


def test_a_round_ends_when_all_have_answered(make: Make) -> None:
    seconds = {name: float(number) for number, name in enumerate(NAMES)}
    setting = make(answers=after(seconds))
    assert setting.collect().clients_received == 6
    assert 1005.0 <= setting.clock.now <= 1006.0


def test_a_late_reply_is_not_taken_for_the_next_round(make: Make) -> None:
    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        if order.round == 2:
            earlier, _ = plan_of(setting.rounds, 1, NAMES)
            reply = honest(earlier if part.client == "site-0" else plan, part)
            yield 1.0, reply

    setting = make(answers=answers)
    setting.collect(1)
    found = setting.collect(2)
    assert (found.clients_received, found.replies_dropped) == (5, 1)
    assert np.array_equal(found.combined[0].mean, setting.mean_of(NAMES, NAMES[1:], number=2))


@pytest.mark.parametrize(
    ("enough", "wanted"), [(1.0, 6), (0.5, 3), (1 / 1.2, 5), (1 / 1.1, 6), (0.1, 1), (1e-9, 1)]
)
def test_a_round_closes_with_enough_replies(make: Make, enough: float, wanted: int) -> None:
    seconds = {name: 2.0 * number for number, name in enumerate(NAMES)}
    setting = make(patience=dataclasses.replace(PATIENCE, enough=enough), answers=after(seconds))
    found = setting.collect()
    assert found.clients_received == wanted
    assert np.array_equal(found.combined[0].mean, setting.mean_of(NAMES, NAMES[:wanted]))
    assert len(setting.charged()) == 6


def test_polls_are_frequent_at_first_and_rarer_later(make: Make) -> None:
    setting = make(answers=lambda order, plan, part: [])
    setting.collect()
    pauses = setting.clock.pauses
    assert pauses[0] == pytest.approx(0.1)
    assert max(pauses) == pytest.approx(1.0)
    assert pauses[:-1] == sorted(pauses[:-1])
    assert len(pauses) < 150


@pytest.mark.parametrize("asked_by", ["spec", "channel"])
def test_a_round_waits_for_the_fewest_it_needs(make: Make, asked_by: str) -> None:
    if asked_by == "spec":
        setting = make(patience=dataclasses.replace(PATIENCE, minimum_replies=4))
    else:
        setting = make(**CASES["secure sum"] | {"channel": SecureSum(minimum_clients=4)})
    setting.post.offline = {"site-0", "site-1", "site-2"}
    back = [("site-0", 1010.0), ("site-1", 1050.0)]

    def pause(seconds: float) -> None:
        setting.clock.pause(seconds)
        setting.post.offline -= {name for name, when in back if when <= setting.clock.now}

    setting.rounds = dataclasses.replace(setting.rounds, pause=pause)
    setting.post.rounds[0] = setting.rounds
    found = setting.collect()
    assert (found.clients_asked, found.clients_unreachable) == (4, 2)
    assert 1010.0 <= setting.clock.now < 1012.0


# -- rounds that bring too little ------------------------------------------------------------------


def test_too_few_replies_leave_the_model_as_it_is(make: Make) -> None:
    seconds = {"site-0": 1.0, "site-1": 1.0}
    setting = make(
        patience=dataclasses.replace(PATIENCE, minimum_replies=3), answers=after(seconds)
    )
    found = setting.collect()
    assert found.combined == ()
    assert found.clients_received == 2
    assert found.total_bytes_up == 1000


@pytest.mark.parametrize(("offline", "cohort"), [(4, 6), (5, 6), (0, 2)])
def test_no_one_is_charged_for_a_round_that_could_not_count(
    make: Make, offline: int, cohort: int
) -> None:
    setting = make(patience=dataclasses.replace(PATIENCE, minimum_replies=3))
    setting.post.offline = set(NAMES[:offline])
    found = setting.collect(cohort=range(cohort))
    assert (found.clients_asked, found.clients_unreachable) == (0, cohort)
    assert setting.charged() == []
    assert setting.post.asked == []


def test_idle_rounds_end_the_run_which_can_go_on(make: Make) -> None:
    setting = make(answers=lambda order, plan, part: [])
    setting.collect(1)
    setting.collect(2)
    with pytest.raises(DeploymentError, match=r"3 rounds in a row, up to round 3.*resume the run"):
        setting.collect(3)
    charged = setting.charged()
    # Resumed: the same round, the same charges, now with sites that answer.
    resumed = dataclasses.replace(setting.rounds)
    setting.post.answers = None
    found = resumed.collect(3, range(6), START)
    assert np.array_equal(found.combined[0].mean, setting.mean_of(NAMES, NAMES, number=3))
    assert setting.charged() == charged


def test_a_good_round_makes_up_for_idle_ones(make: Make) -> None:
    setting = make(
        answers=lambda order, plan, part: at_once(order, plan, part) if order.round % 3 == 0 else []
    )
    received = [setting.collect(number).clients_received for number in range(1, 10)]
    assert received == [0, 0, 6] * 3  # PATIENCE ends a run after three idle rounds in a row


def test_rounds_that_reach_no_one_are_idle_too(make: Make) -> None:
    setting = make()
    setting.post.offline = set(NAMES)
    for number in (1, 2):
        found = setting.collect(number)
        assert (found.clients_asked, found.clients_unreachable) == (0, 6)
    with pytest.raises(DeploymentError, match="3 rounds in a row"):
        setting.collect(3)
    assert setting.charged() == []
    assert setting.clock.now == pytest.approx(1000.0 + 3 * 30.0, abs=3.0)  # half of each deadline


# -- replies that are no use -----------------------------------------------------------------------


def sealed_codes(plan: RoundPlan, part: ClientPlan, codes: Codes) -> bytes:
    return seal(codes, plan.envelope(part, 0))


def resealed(content: bytes, position: int, value: int) -> bytes:
    """A header field changed, under a checksum that fits."""
    import hashlib

    fields = bytearray(content[: HEADER_BYTES - 8])
    fields[position] = value
    digest = hashlib.blake2b(bytes(fields), digest_size=8)
    digest.update(content[HEADER_BYTES:])
    return bytes(fields) + digest.digest() + content[HEADER_BYTES:]


def blobs_of(content: bytes) -> dict[str, bytes]:
    return reply_blobs([content])


def _other_round(plan: RoundPlan, part: ClientPlan) -> Mapping[str, bytes] | None:
    return blobs_of(message(dataclasses.replace(plan, round=plan.round + 1), part))


def _other_run(plan: RoundPlan, part: ClientPlan) -> Mapping[str, bytes] | None:
    return blobs_of(message(dataclasses.replace(plan, run="other"), part))


def _other_client(plan: RoundPlan, part: ClientPlan) -> Mapping[str, bytes] | None:
    return blobs_of(message(plan, plan.clients[0]))


def _other_parameters(plan: RoundPlan, part: ClientPlan) -> Mapping[str, bytes] | None:
    louder = some_mechanism(levels=4, noise_multiplier=2.5)
    return blobs_of(message(plan, dataclasses.replace(part, mechanism=louder)))


def _other_records(plan: RoundPlan, part: ClientPlan) -> Mapping[str, bytes] | None:
    many = some_mechanism(L2Ball(dimension=DIMENSION, radius=1.0, records=100))
    return blobs_of(message(plan, dataclasses.replace(part, mechanism=many)))


def _flipped(position: int) -> Callable[[RoundPlan, ClientPlan], Mapping[str, bytes] | None]:
    def change(plan: RoundPlan, part: ClientPlan) -> Mapping[str, bytes] | None:
        content = bytearray(message(plan, part))
        content[position] ^= 1
        return blobs_of(bytes(content))

    return change


def _field(position: int, value: int) -> Callable[[RoundPlan, ClientPlan], Mapping[str, bytes]]:
    return lambda plan, part: blobs_of(resealed(message(plan, part), position, value))


BAD: dict[str, Callable[[RoundPlan, ClientPlan], Mapping[str, bytes] | None]] = {
    "nothing": lambda plan, part: {},
    "empty": lambda plan, part: blobs_of(b""),
    "header alone": lambda plan, part: blobs_of(message(plan, part)[:HEADER_BYTES]),
    "cut": lambda plan, part: blobs_of(message(plan, part)[:-1]),
    "longer": lambda plan, part: blobs_of(message(plan, part) + b"\0"),
    "huge": lambda plan, part: blobs_of(message(plan, part) + bytes(10**6)),
    "noise": lambda plan, part: blobs_of(bytes(range(50))),
    "another round": _other_round,
    "another run": _other_run,
    "another client": _other_client,
    "other parameters": _other_parameters,
    "other records": _other_records,
    "magic": _field(0, 0),
    "version": _field(4, 2),
    "bits": _field(5, 4),
    "uplink": _field(6, 1),
    "reserved": _field(7, 1),
    "round": _field(8, 2),
    "dimension": _field(12, DIMENSION + 1),
    "hash": _field(20, 0),
    "flipped checksum": _flipped(36),
    "flipped code": _flipped(HEADER_BYTES),
    "another name": lambda plan, part: {"uplink1": message(plan, part)},
    "too many": lambda plan, part: reply_blobs([message(plan, part)] * 2),
    "extra": lambda plan, part: {**blobs_of(message(plan, part)), "loss": b"0.1"},
}


@pytest.mark.parametrize("kind", list(BAD))
def test_a_bad_reply_is_dropped_and_counted_and_the_rest_is_exact(make: Make, kind: str) -> None:
    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        if part.client == "site-2":
            yield 0.0, Reply(client=part.client, blobs=BAD[kind](plan, part), total_bytes=77)
        else:
            yield 0.0, honest(plan, part)

    setting = make(answers=answers, weights=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    found = check_one_is_dropped(setting)
    assert found.total_bytes_up == 5 * 500 + 77
    assert setting.clock.pauses == []  # nobody is waited for
    assert len(setting.charged()) == 6


def test_a_reply_longer_than_what_was_announced_to_the_gate_is_not_parsed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        if part.client == "site-2":
            blobs = {ROUNDS_CHARGED: bytes(due.largest_bytes() + OVERHEAD_BYTES + 1)}
            yield 0.0, Reply(client=part.client, blobs=blobs)
        else:
            yield 0.0, honest(plan, part)

    due = ExpectedReplies(tmp_path)
    assert due.largest_bytes() == 0
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    setting = make(answers=answers)
    found = setting.collect()
    plan, part = plan_of(setting.rounds, 1, NAMES)
    assert due.largest_bytes() == len(message(plan, part))  # all that an honest site sends
    assert (found.clients_received, found.replies_dropped) == (5, 1)
    assert "bytes, got" in caplog.text


@pytest.mark.parametrize("levels", [3, 5])
def test_a_code_out_of_range_is_dropped(make: Make, levels: int) -> None:
    """Three levels take two bits, and two bits can say 3."""
    mechanism = some_mechanism(levels=levels, noise_multiplier=2.0)
    wide = some_mechanism(levels=4 if levels == 3 else 8, noise_multiplier=2.0)

    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        if part.client != "site-2":
            yield 0.0, honest(plan, part)
            return
        codes = np.full(DIMENSION, levels, dtype=np.uint8)
        envelope = dataclasses.replace(plan.envelope(part, 0), code_format=wide.code_format())
        yield 0.0, Reply(client=part.client, blobs=blobs_of(seal(codes, envelope)))

    setting = make(answers=answers, mechanism=mechanism)
    check_one_is_dropped(setting)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_float_codes_that_are_no_numbers_are_dropped(make: Make, bad: float) -> None:
    mechanism = some_mechanism(kind="gaussian", noise_multiplier=1.0)

    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        if part.client != "site-2":
            yield 0.0, honest(plan, part)
            return
        content = message(plan, part)
        payload = np.frombuffer(content[HEADER_BYTES:], dtype="<f4").copy()
        payload[5] = bad
        forged = content[:HEADER_BYTES] + payload.tobytes()
        yield 0.0, Reply(client=part.client, blobs=blobs_of(resealed(forged, 4, 1)))

    setting = make(answers=answers, mechanism=mechanism)
    check_one_is_dropped(setting)


def test_a_second_reply_counts_for_nothing(make: Make) -> None:
    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        yield 0.0, honest(plan, part)
        if part.client in ("site-0", "site-3"):
            yield 0.0, honest(plan, part)
            yield 0.0, Reply(client=part.client, blobs={})

    setting = make(answers=answers)
    found = setting.collect()
    assert (found.clients_received, found.replies_dropped) == (6, 4)
    assert np.array_equal(found.combined[0].mean, setting.mean_of(NAMES, NAMES))


def test_after_a_bad_reply_a_good_one_comes_too_late(make: Make) -> None:
    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        if part.client == "site-1":
            yield 0.0, Reply(client=part.client, blobs={})
        yield 0.0, honest(plan, part)

    setting = make(answers=answers)
    found = setting.collect()
    assert (found.clients_received, found.replies_dropped) == (5, 2)


@pytest.mark.parametrize("stranger", ["", "mallory", "site-5"])
def test_strangers_are_dropped_and_neither_close_nor_hold_a_round(
    make: Make, stranger: str
) -> None:
    """site-5 is a client of the run that was not asked in this round."""

    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        if part.client == "site-0":
            for blobs in (blobs_of(message(plan, part)), {}, None):
                yield 0.0, Reply(client=stranger, blobs=blobs)
        yield 5.0 if part.client == "site-4" else 0.0, honest(plan, part)

    setting = make(answers=answers)
    found = setting.collect(cohort=[0, 1, 2, 3, 4])
    assert (found.clients_received, found.replies_dropped) == (5, 3)
    assert np.array_equal(found.combined[0].mean, setting.mean_of(NAMES[:5], NAMES[:5]))
    assert 1005.0 <= setting.clock.now < 1007.0


def test_a_site_that_refuses_is_not_waited_for_and_drops_nothing(make: Make) -> None:
    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        if part.client in ("site-1", "site-4"):
            yield 0.0, Reply(client=part.client, blobs=None, failure="the policy says no")
        else:
            yield 0.0, honest(plan, part)

    setting = make(answers=answers)
    found = setting.collect()
    assert (found.clients_asked, found.clients_received, found.replies_dropped) == (6, 4, 0)
    assert setting.clock.pauses == []
    others = ["site-0", "site-2", "site-3", "site-5"]
    assert np.array_equal(found.combined[0].mean, setting.mean_of(NAMES, others))


# -- every channel, every mechanism ----------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "rotated": {"rotated": True},
    "one bit, rotated": {
        "rotated": True,
        "mechanism": some_mechanism(levels=2, noise_multiplier=2.0),
    },
    "gaussian": {"mechanism": some_mechanism(kind="gaussian", noise_multiplier=1.0)},
    "two uplinks": {"algorithm": Sending(uplinks=2)},
    "two uplinks, rotated": {"algorithm": Sending(uplinks=2), "rotated": True},
    "shuffler": {
        "channel": Shuffler(minimum_clients=3),
        "mechanism": some_mechanism(BOX, "bitwise_rr", epsilon=0.01, bits=1),
        "adjacency": Adjacency.REPLACE_ONE,
    },
    "secure sum": {
        "channel": SecureSum(minimum_clients=3),
        "mechanism": some_mechanism(kind="clamped_sign", noise_multiplier=4.0, logit_bound=1.0),
        "rotated": True,
    },
}


def with_uplinks(count: int, seconds: Mapping[str, float]) -> Answers:
    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        if part.client in seconds:
            yield seconds[part.client], honest(plan, part, count)

    return answers


@pytest.mark.parametrize("case", list(CASES))
@given(data=st.data())
@settings(max_examples=15)
def test_replies_in_any_order_give_the_same_bits(case: str, data: st.DataObject) -> None:
    order = data.draw(st.permutations(NAMES))
    answering = order[: data.draw(st.integers(3, 6))]
    uplinks = CASES[case].get("algorithm", Sending()).uplinks
    seconds = {name: float(place) for place, name in enumerate(answering)}
    with (
        TemporaryDirectory() as folder,
        Ledger(Path(folder) / "ledger.sqlite", create=True) as ledger,
    ):
        setting = a_setting(ledger, answers=with_uplinks(uplinks, seconds), **CASES[case])
        found = setting.collect()
        assert found.clients_received == len(answering)
        assert len(found.combined) == uplinks
        for uplink, combined in enumerate(found.combined):
            expected = setting.mean_of(NAMES, answering, uplink=uplink)
            assert np.array_equal(combined.mean, expected)


def test_one_uplink_of_two_is_as_good_as_none(make: Make) -> None:
    def answers(order: Order, plan: RoundPlan, part: ClientPlan) -> Iterable[tuple[float, Reply]]:
        reply = honest(plan, part, 2)
        if part.client == "site-1":
            assert reply.blobs is not None
            swapped = {"uplink0": reply.blobs["uplink1"], "uplink1": reply.blobs["uplink0"]}
            reply = dataclasses.replace(reply, blobs=swapped)
        if part.client == "site-2":
            reply = honest(plan, part, 1)
        yield 0.0, reply

    setting = make(answers=answers, algorithm=Sending(uplinks=2))
    found = setting.collect()
    assert (found.clients_received, found.replies_dropped) == (4, 2)
    others = ["site-0", "site-3", "site-4", "site-5"]
    for uplink in (0, 1):
        expected = setting.mean_of(NAMES, others, uplink=uplink)
        assert np.array_equal(found.combined[uplink].mean, expected)
    assert len(setting.charged()) == 12


@pytest.mark.parametrize("case", ["shuffler", "secure sum"])
def test_where_a_channel_needs_company_fewer_release_nothing(make: Make, case: str) -> None:
    seconds = {"site-0": 1.0, "site-1": 1.0}
    setting = make(answers=after(seconds), **CASES[case])
    found = setting.collect()
    assert found.combined == ()
    assert found.clients_received == 2


@pytest.mark.parametrize("case", ["shuffler", "secure sum"])
@pytest.mark.parametrize("online", [0, 2])
def test_where_too_few_are_online_for_a_channel_no_one_is_asked(
    make: Make, case: str, online: int
) -> None:
    setting = make(**CASES[case])
    setting.post.offline = set(NAMES[online:])
    found = setting.collect()
    assert found.combined == ()
    assert (found.clients_asked, found.clients_received) == (0, 0)
    assert setting.post.asked == []
    assert setting.charged() == []


def test_who_gathers_gets_every_message_in_the_order_of_the_plan(make: Make) -> None:
    seconds = {name: 6.0 - number for number, name in enumerate(NAMES)}
    setting = make(answers=after(seconds), algorithm=Sending(gathers=True), rotated=True)
    (combined,) = setting.collect().combined
    assert combined.each is not None
    assert combined.each.clients == NAMES
    plan, _ = plan_of(setting.rounds, 1, NAMES)
    server = RoundServer(plan, dimension=DIMENSION, keeps_each=True)
    for part in plan.clients:
        server.receive(part.client, message(plan, part))
    kept = server.each()
    assert kept is not None
    assert np.array_equal(combined.each.rows, np.stack([vector for _, vector in kept]))


# -- memory ----------------------------------------------------------------------------------------


def test_only_what_comes_out_of_order_is_held(make: Make) -> None:
    """In order a round of large replies takes one of them at a time, not all."""
    peaks = {}
    payload = 200_000
    for name, order in (("in order", NAMES), ("backwards", NAMES[::-1])):
        peaks[name] = _peak(make, order, payload)
    assert peaks["backwards"] > peaks["in order"] + 3 * payload


def _peak(make: Make, order: Sequence[str], payload: int) -> int:
    dimension = payload // 4
    mechanism = some_mechanism(
        L2Ball(dimension=dimension, radius=1.0), "gaussian", noise_multiplier=1.0
    )
    setting = make(mechanism=mechanism)
    rounds = dataclasses.replace(setting.rounds, dimension=dimension)
    plan, _ = plan_of(rounds, 1, NAMES)
    codes = np.ones(dimension, dtype=np.float32)
    parts = {part.client: part for part in plan.clients}

    class Lazy(FakePost):
        """Makes each reply when it is asked for, and keeps none."""

        def send(self, orders: Mapping[str, Order], *, expires_seconds: float) -> int:
            return 0

        def traffic(self) -> None:
            """Nobody counts."""

        def collect(self) -> Iterator[Reply]:
            for name in order:
                yield Reply(client=name, blobs=blobs_of(sealed_codes(plan, parts[name], codes)))

    rounds = dataclasses.replace(rounds, post=Lazy(clock=setting.clock))
    start = Start(model=np.zeros(dimension), state={})
    tracemalloc.start()
    try:
        found = rounds.collect(1, range(6), start)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert found.clients_received == 6


def test_a_round_takes_what_the_link_has_counted_meanwhile(make: Make) -> None:
    setting = make()
    setting.post.counts = [(1_000, 50), (8_000, 60_050)]
    collected = setting.collect()
    assert (collected.total_bytes_up, collected.total_bytes_down) == (7_000, 60_000)


@pytest.mark.parametrize(
    "counts", [[None, (10, 10)], [(10, 10), None], [(10, 10), (9, 20)], [(10, 10), (20, 9)]]
)
def test_where_no_one_counted_through_a_round_it_takes_its_messages(
    make: Make, counts: list[tuple[int, int] | None]
) -> None:
    alone, started_anew = make(), make()
    started_anew.post.counts = counts
    expected, found = alone.collect(), started_anew.collect()
    assert found.total_bytes_up == expected.total_bytes_up
    assert found.total_bytes_down == expected.total_bytes_down == 1000 * len(NAMES)


@pytest.mark.parametrize(("comes_after", "asked"), [(20.0, True), (40.0, False)])
def test_whichever_client_comes_too_late_to_answer_is_neither_asked_nor_charged(
    make: Make, comes_after: float, asked: bool
) -> None:
    setting = make()
    everybody, pause = set(NAMES), setting.clock.pause

    def passing(seconds: float) -> None:
        pause(seconds)
        setting.post.offline = set() if setting.clock.now >= 1000.0 + comes_after else everybody

    setting.post.offline = everybody
    rounds = dataclasses.replace(setting.rounds, pause=passing)
    collected = rounds.collect(1, range(len(NAMES)), START)
    assert collected.clients_asked == (len(NAMES) if asked else 0)
    assert len(setting.charged()) == (len(NAMES) if asked else 0)
    assert all(30.0 <= seconds <= 60.0 for seconds in setting.post.expires)
    assert setting.clock.now <= 1000.0 + 60.0
