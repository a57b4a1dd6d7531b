"""Names that ledgers, seals, messages and records hold: literal here, so that none is renamed.

A class may be renamed or moved. What is written down under its name must not be: ledgers would no
longer open, and clients and servers of two versions would refuse each other's messages. A literal
in this file is never changed; what is new gets a new one.
"""

import dataclasses
from typing import Any, get_args

import pytest

from sottovoce.analytics.estimates import question_for
from sottovoce.analytics.question import _KINDS
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import Box, Categories, L1Ball, L2Ball
from sottovoce.core.errors import LedgerError
from sottovoce.deployment.policy import Policy
from sottovoce.federated.training import RoundRecord
from sottovoce.ledger.records import LedgerPosition
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.privacy import events
from sottovoce.privacy.event_json import from_json, to_json
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.protocol.channels import channel as channels
from sottovoce.protocol.channels.central import Central
from sottovoce.protocol.channels.channel import Channel, Direct
from sottovoce.protocol.channels.secret_order import SecretOrder
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.protocol.plan import ClientPlan, RoundPlan

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
PURE = events.PureDp(epsilon=1.0, adjacency=ZERO_OUT)
GAUSSIAN = events.GaussianNoise(mu=0.5, adjacency=ZERO_OUT)

# One event of each class, as a ledger stores it.
STORED: list[tuple[PrivacyEvent, str]] = [
    (GAUSSIAN, '{"adjacency":"zero-out","mu":0.5,"shape":"GaussianNoise"}'),
    (events.NonPrivate(adjacency=ZERO_OUT), '{"adjacency":"zero-out","shape":"NonPrivate"}'),
    (
        events.LaplaceNoise(shift=0.5, dimension=3, adjacency=REPLACE_ONE),
        '{"adjacency":"replace-one","dimension":3,"shape":"LaplaceNoise","shift":0.5}',
    ),
    (
        events.ZeroConcentrated(rho=0.1, adjacency=REPLACE_ONE, zero_centered=True),
        '{"adjacency":"replace-one","rho":0.1,"shape":"ZeroConcentrated","zero_centered":true}',
    ),
    (PURE, '{"adjacency":"zero-out","epsilon":1.0,"shape":"PureDp"}'),
    (
        events.MetricDp(epsilon=1.0, metric="l1", distance=0.5, adjacency=REPLACE_ONE),
        '{"adjacency":"replace-one","distance":0.5,"epsilon":1.0,"metric":"l1","shape":"MetricDp"}',
    ),
    (
        events.FinitePair(first=(0.75, 0.25), second=(0.25, 0.75), adjacency=ZERO_OUT),
        '{"adjacency":"zero-out","first":[0.75,0.25],"second":[0.25,0.75],"shape":"FinitePair"}',
    ),
    (
        events.FiniteTable(rows=((0.75, 0.25), (0.5, 0.5)), zero=1, adjacency=ZERO_OUT),
        '{"adjacency":"zero-out","rows":[[0.75,0.25],[0.5,0.5]],"shape":"FiniteTable","zero":1}',
    ),
    (
        events.RenyiCurve(orders=(2.0, 4.0), divergences=(0.1, 0.3), adjacency=ZERO_OUT),
        '{"adjacency":"zero-out","divergences":[0.1,0.3],"orders":[2.0,4.0],"shape":"RenyiCurve"}',
    ),
    (
        events.OneBit(shift=0.5, dimension=7, adjacency=ZERO_OUT, against_zero=True),
        '{"adjacency":"zero-out","against_zero":true,"dimension":7,"shape":"OneBit","shift":0.5}',
    ),
    (
        events.SeededBits(
            shift=0.5, dimension=7, excess=0.01, largest_loss=3.0, adjacency=ZERO_OUT
        ),
        '{"adjacency":"zero-out","against_zero":false,"dimension":7,"excess":0.01,'
        '"largest_loss":3.0,"shape":"SeededBits","shift":0.5}',
    ),
    (
        events.SummedBits(
            shift=0.5, dimension=7, logit_bound=2.0, clients=30, adjacency=REPLACE_ONE
        ),
        '{"adjacency":"replace-one","against_zero":false,"clients":30,"dimension":7,'
        '"logit_bound":2.0,"shape":"SecureSum","shift":0.5}',
    ),
    (
        events.SummedNoise(mu=0.5, clients=30, excess=0.25, adjacency=ZERO_OUT),
        '{"adjacency":"zero-out","clients":30,"excess":0.25,"mu":0.5,"shape":"SummedNoise"}',
    ),
    (
        events.Sampled(event=PURE, rate=0.25, scheme="poisson", hidden_by="central-noise"),
        '{"event":{"adjacency":"zero-out","epsilon":1.0,"shape":"PureDp"},'
        '"hidden_by":"central-noise","rate":0.25,"scheme":"poisson","shape":"Sampled"}',
    ),
    (
        events.Shuffled(event=PURE, clients=100, ratios=(0.5, 2.0)),
        '{"clients":100,"event":{"adjacency":"zero-out","epsilon":1.0,"shape":"PureDp"},'
        '"ratios":[0.5,2.0],"shape":"Shuffled"}',
    ),
    (
        events.Allocated(event=GAUSSIAN, steps=4),
        '{"event":{"adjacency":"zero-out","mu":0.5,"shape":"GaussianNoise"},'
        '"shape":"Allocated","steps":4}',
    ),
    (
        events.Repeated(event=GAUSSIAN, count=3),
        '{"count":3,"event":{"adjacency":"zero-out","mu":0.5,"shape":"GaussianNoise"},'
        '"shape":"Repeated"}',
    ),
    (
        events.Composed(events=(GAUSSIAN, PURE)),
        '{"events":[{"adjacency":"zero-out","mu":0.5,"shape":"GaussianNoise"},'
        '{"adjacency":"zero-out","epsilon":1.0,"shape":"PureDp"}],"shape":"Composed"}',
    ),
    (
        events.Conditional(event=PURE, assumption="chacha20"),
        '{"assumption":"chacha20","event":{"adjacency":"zero-out","epsilon":1.0,"shape":"PureDp"},'
        '"shape":"Assumed"}',
    ),
]

DOMAINS: dict[str, L2Ball | L1Ball | Box] = {
    "L2Ball": L2Ball(dimension=5, radius=2.0, records=3),
    "L1Ball": L1Ball(dimension=5, radius=2.0),
    "Box": Box(dimension=5, lower=-0.5, upper=1.0),
}
CHANNELS: dict[str, Channel] = {
    "Direct()": Direct(),
    "SecureSum(minimum_clients=7)": SecureSum(minimum_clients=7),
    "Shuffler(minimum_clients=7)": Shuffler(minimum_clients=7),
    "SecretOrder(minimum_clients=7)": SecretOrder(minimum_clients=7),
    "Central(client_sampling_rate=0.25)": Central(client_sampling_rate=0.25),
}
# What the header of a message says of its plan, by the names of channel and domain.
WIRE_HASHES = {
    ("Direct()", "L2Ball"): "2153606e15e1cd4dd610d860de042384",
    ("Direct()", "L1Ball"): "483b0a69769588aec335e35dd7bdb190",
    ("Direct()", "Box"): "6f05afedb72da42737056f0e7d8bdbe6",
    ("SecureSum(minimum_clients=7)", "L2Ball"): "3e58ee734620a122d9ed779bb23d0f35",
    ("SecureSum(minimum_clients=7)", "L1Ball"): "0f5048f732ac0c408999986d704bddd0",
    ("SecureSum(minimum_clients=7)", "Box"): "b71dd024bba94624479d1a8231b8a540",
    ("Shuffler(minimum_clients=7)", "L2Ball"): "edc5cee4a73e2f8f5ba2c34280b029c1",
    ("Shuffler(minimum_clients=7)", "L1Ball"): "2e0fab01cab9b2f215fc98e9c0b795a8",
    ("Shuffler(minimum_clients=7)", "Box"): "0a3d5b7e1c996a50ed4f8e47db85ca8e",
    ("SecretOrder(minimum_clients=7)", "L2Ball"): "2fc4e579d5f0d2768ace2cfb9488cc55",
    ("SecretOrder(minimum_clients=7)", "L1Ball"): "a73d9943bf52760c7b6b853551c59ff3",
    ("SecretOrder(minimum_clients=7)", "Box"): "20f1d1e7ca5c897ab8580cd06b4f1e92",
}
ROTATED = "040815976526ab59cdefb7bd528ac696"
# Of the first example of each mechanism, on its first domain. Those with designed tables hash the
# tables too.
PARAMETER_HASHES = {
    "clamped_sign": "9b1591a23743ab60612ff730c1d29f2c",
    "cldp": "ecea9b3a583b5a74930e3b3a4b199646",
    "discrete_gaussian": "173535a924fa05c1d30bc02cc3e6df00",
    "discrete_laplace": "d6d2bf4bfb4ffa101b7b6fbc1e4896ab",
    "discrete_staircase": "4434ac811defaee91631ad52c29b80b1",
    "gauss_hermite": "fd1f4b4dd5d643e66899397e74575ab0",
    "gaussian": "dd67d5e601c1196eebc3892fcf2a90cd",
    "laplace": "98bbd841079d7e2e0c994b1d3fb6daa6",
    "no_privacy": "f382a2c7989623cc81f77464eb7905f9",
    "poisson_binomial": "e1f9bfa4fb13bbd76430000b1a84e7ba",
    "seeded_sign": "ea53f08e4551d456a2e98c7eacd93f82",
    "seeded_step": "94541f8aebaee48f19ccd7c8311fe0a2",
    "skellam": "474aa27fb8c320f4fdb0bca4c8910977",
    "staircase": "224648f2a887293f7ebd1b0944d30eb8",
    "stochastic_sign": "e2f9fe2868991b475f48371a6898510b",
}
FIELDS: dict[Any, str] = {
    LedgerPosition: "identity charges charges_head messages messages_head",  # seals and witnesses
    Policy: (  # audit logs
        "mechanisms level adjacency epsilon_per_round epsilon_total delta smallest_cohort "
        "trust_server honest colluders retries float_noise seeded_randomness public_counts "
        "epsilon_if_sampled smallest_sampling_rate smallest_noise_multiplier rounds_per_day warn_at"
    ),
    RoundRecord: (  # rounds.jsonl
        "round clients_asked clients_received clients_out_of_budget payload_bytes_up "
        "total_bytes_up payload_bytes_down total_bytes_down clients_unreachable "
        "replies_dropped unanswered sites update_norm"
    ),
}
QUESTIONS = {
    "histogram": "lower upper bins categories epsilon mechanism public_seed",
    "mean": "lower upper epsilon bits mechanism",
    "location": "latitude longitude side_km epsilon bits cells",
    "quantiles": "lower upper quantiles depth epsilon mechanism public_seed",
    "variance": "lower upper epsilon bits mechanism public_seed",
}


def _wire_hash(
    domain: L2Ball | L1Ball | Box, channel: Channel, rotation: Rotation | None = None
) -> str:
    mechanism = Laplace(input_domain=domain, noise_multiplier=2.0)
    part = ClientPlan(client="a", mechanism=mechanism, weight=1.0)
    plan = RoundPlan(
        run="run",
        round=3,
        unit=Unit.CLIENT,
        adjacency=REPLACE_ONE,
        clients=(part,),
        rotation=rotation,
        channel=channel,
    )
    return plan.envelope(part, 0).parameter_hash.hex()


def _field_names(shape: Any) -> str:
    return " ".join(field.name for field in dataclasses.fields(shape))


@pytest.mark.parametrize(("event", "text"), STORED, ids=lambda one: type(one).__name__)
def test_a_stored_event_keeps_its_text(event: PrivacyEvent, text: str) -> None:
    assert to_json(event) == text
    assert from_json(text) == event


def test_every_class_of_events_is_stored_under_one_name() -> None:
    stored = [type(event) for event, _ in STORED]
    assert len(set(stored)) == len(stored)
    assert set(stored) == set(get_args(PrivacyEvent))


def test_a_class_without_a_stored_name_is_not_stored() -> None:
    class Mine(events.PureDp):
        pass

    with pytest.raises(LedgerError, match="no stored name"):
        to_json(Mine(epsilon=1.0, adjacency=ZERO_OUT))


@pytest.mark.parametrize("name", CHANNELS)
def test_a_channel_keeps_its_name(name: str) -> None:
    assert CHANNELS[name].wire_name == name
    assert {type(channel) for channel in CHANNELS.values()} == {
        one.section for one in channels.CHANNELS.ours().values()
    }


@pytest.mark.parametrize(("names", "expected"), WIRE_HASHES.items())
def test_a_plan_keeps_its_hash(names: tuple[str, str], expected: str) -> None:
    channel = CHANNELS[names[0]]
    assert isinstance(channel, Channel)
    assert _wire_hash(DOMAINS[names[1]], channel) == expected


def test_a_rotated_plan_keeps_its_hash() -> None:
    rotation = Rotation.of_round("run", 3, 5)
    assert _wire_hash(DOMAINS["L2Ball"], Direct(), rotation) == ROTATED


def test_every_mechanism_keeps_the_hash_of_its_parameters() -> None:
    found = {}
    for one in registry.registrations():
        mechanism = one.build(one.example_domains[0], one.examples[0])
        if not isinstance(mechanism, registry.Designed):
            found[one.kind] = registry.parameter_hash(mechanism).hex()
    assert found == PARAMETER_HASHES


def test_categories_keep_their_name() -> None:
    domain = Categories(dimension=2, num_categories=5)
    mechanism = registry.find("generalized_rr").build(domain, {"epsilon": 1.0, "bits": 3})
    assert registry.public_parameters(mechanism)["domain"] == {
        "shape": "Categories",
        "dimension": 2,
        "num_categories": 5,
    }


def test_an_answer_keeps_its_mechanism_and_its_charge() -> None:
    one = '{"adjacency":"replace-one","epsilon":1.0,"shape":"PureDp"}'
    for kind in ("histogram", "quantiles"):
        asked = question_for(kind, public_seed=1, lower=0.0, upper=1.0, epsilon=1)
        assert (asked.mechanism_kind, to_json(asked.event)) == ("generalized_rr", one)
    mean = question_for("mean", lower=0.0, upper=1.0, epsilon=1)
    assert mean.mechanism_kind == "mvu"
    assert to_json(mean.event) == f'{{"count":1,"event":{one},"shape":"Repeated"}}'


@pytest.mark.parametrize(("shape", "names"), FIELDS.items(), ids=lambda one: str(one))
def test_what_is_written_down_keeps_the_names_of_its_fields(shape: Any, names: str) -> None:
    assert _field_names(shape) == names


def test_every_question_keeps_its_kind_and_the_names_of_its_fields() -> None:
    assert {kind: _field_names(shape) for kind, shape in _KINDS.items()} == QUESTIONS
