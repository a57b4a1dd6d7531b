"""Orders that a site gets, its own file, plans of foreign apps, and Flower's records."""

import json
import tomllib
from pathlib import Path
from random import Random
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fuzzing.harness import Case, Entrance, check
from fuzzing.mutation import bytes_mutated, odd_value, plain_mutated, text_mutated
from sottovoce.core.errors import SottovoceError
from sottovoce.deployment.orders import Order, read_order, read_reply, reply_blobs
from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site import Site, read_site
from sottovoce.deployment.site_training import compute
from sottovoce.flower.announcement import PLAN, RoundAnnouncement, build_request, read_announcement
from sottovoce.flower.records import RECORD, from_records, to_records
from sottovoce.ledger import seal
from sottovoce.ledger.ledger import Ledger
from sottovoce.runs.loading import load, toml_text

_EXAMPLE = Path(__file__).parents[2] / "examples" / "one_bit.toml"
_SITE = """
name = "a"
longest_seconds = 60.0
factories = ["a.b:c"]
app = "a.b:app"

[policy]
mechanisms = ["gauss_hermite", "mvu"]
level = "sample"
adjacency = "zero-out"
epsilon_per_round = 2.0
epsilon_total = 5.0
delta = 1e-6
smallest_cohort = 2

[data]
dataset = "csv:people.csv"
classes = 3

[columns.age]
csv = "people.csv"
column = "age"

[columns.home]
csv = "people.csv"
latitude = "lat"
longitude = "lon"
"""


def _order() -> Order:
    return Order(
        spec=load(_EXAMPLE).plain(),
        run="run",
        round=3,
        client="a",
        cohort=10,
        mechanism={"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 8.0},
        classes=10,
        keep_from=1,
        vectors=(bytes(64),),
    )


def _orders(folder: Path) -> Case:
    order = _order()
    public = json.loads(order.blobs()["order"])
    # Allows nothing: whatever an order says, it is refused before anything is built or charged.
    (folder / "site.toml").write_text(_SITE.replace('"gauss_hermite", "mvu"', ""))
    seal.create(folder)
    site: Site = read_site(folder / "site.toml")

    def case(random: Random) -> None:
        blobs = dict(order.blobs())
        try:
            text = json.dumps(plain_mutated(random, public), allow_nan=random.random() < 0.2)
            blobs["order"] = text.encode()
        except (TypeError, ValueError):
            blobs["order"] = bytes_mutated(random, blobs["order"])
        if random.random() < 0.1:
            blobs[text_mutated(random, "vector1")] = b""
        found = read_order(blobs)
        check(read_order(found.blobs()) == found, "an order changes on its way")
        if random.random() < 0.9:
            return
        try:
            compute(found, site)
        except SottovoceError:
            pass
        else:
            check(False, "a site that allows nothing has answered")
        with Ledger(site.ledger) as ledger:
            check(ledger.num_charges == 0, "a refused order was charged")

    return case


def _site_files(folder: Path) -> Case:
    table = tomllib.loads(_SITE)
    path = folder / "site.toml"

    def case(random: Random) -> None:
        if random.random() < 0.5:
            text = text_mutated(random, _SITE)
        else:
            changed = plain_mutated(random, table)
            try:
                text = toml_text(changed)
            except (TypeError, AttributeError):
                text = text_mutated(random, _SITE)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        site = read_site(path)
        check(read_site(path) == site, "a site's file says two things")
        policy = site.policy
        assert isinstance(policy, Policy)
        for number in (policy.epsilon_per_round, policy.epsilon_total, site.longest_seconds):
            check(0.0 < number < float("inf"), "a limit is no limit")

    return case


def _plans(_: Path) -> Case:
    announcement = RoundAnnouncement(
        client="a",
        round=1,
        rounds=2,
        cohort=3,
        mechanism="gauss_hermite",
        parameters={"levels": 2, "noise_multiplier": 8.0},
        dimension=32,
        clip_norm=1.0,
        adjacency="zero-out",
        layout="x",
        num_examples=False,
    )
    plain = json.loads(str(announcement.record()[PLAN]))

    def case(random: Random) -> None:
        try:
            text: Any = json.dumps(plain_mutated(random, plain))
        except (TypeError, ValueError):
            text = random.choice((1, b"x", 1.5, [1.0], ""))
        found = read_announcement(ConfigRecord({PLAN: text}))
        if found.mechanism == "gauss_hermite":
            asked = build_request(found, "run")
            check(asked.plan.event(asked.part) is not None, "a plan costs nothing")

    return case


def _records(_: Path) -> Case:
    def case(random: Random) -> None:
        blobs = {f"uplink{number}": random.randbytes(5) for number in range(random.randrange(1, 4))}
        uplinks = len(blobs)
        content = to_records(blobs)
        how = random.randrange(6)
        if how == 0:
            content[text_mutated(random, RECORD)] = ConfigRecord({})
        elif how == 1:
            content[RECORD] = random.choice((MetricRecord({}), ArrayRecord(), ConfigRecord({})))
        elif how == 2:
            value = odd_value(random)
            fits = not isinstance(value, int) or abs(value) < 2**63
            if isinstance(value, str | int | float | bytes) and fits:
                content[RECORD] = ConfigRecord({**blobs, "uplink0": value})
        elif how == 3:
            content = RecordDict({})
        elif how == 4:
            blobs[text_mutated(random, "uplink1")] = b"x"  # another name, or one that is there
            content = to_records(blobs)
        found = read_reply(from_records(content), uplinks=uplinks)
        check(reply_blobs(found) == dict(blobs) or how == 2, "a reply changes on its way")

    return case


ENTRANCES = (
    Entrance(name="orders", share=60_000, prepare=_orders),
    Entrance(name="site-files", share=40_000, prepare=_site_files),
    Entrance(name="plans-of-apps", share=40_000, prepare=_plans),
    Entrance(name="flower-records", share=40_000, prepare=_records),
)
