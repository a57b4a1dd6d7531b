"""Every public way to an epsilon gives the same one for the same release.

Generated over mechanisms, levels, samples, channels and adjacencies. For every combination
`release_event`, `spend`, `plan`, a round's plan and a run's tally give one event, or all refuse:
that says it for every delta and number of rounds. For one combination of each channel, adjacency
and sampling the numbers themselves are compared: functions, commands, runs and ledgers.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from command_line import printed_json
from specs import small_table

import sottovoce
from sottovoce.analytics.scalar_randomizer import MECHANISMS as NUMBERS
from sottovoce.analytics.scalar_randomizer import randomizer_for
from sottovoce.cli.options import option
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, L2Ball, clipped_domain
from sottovoce.core.errors import PrivacyError, SottovoceError
from sottovoce.learning.datasets import Dataset
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import (
    EveryMessage,
    NoisySums,
    OnlySums,
    ReleaseTerms,
    SecretSample,
    ShuffledMessages,
    Visibility,
    local_event,
    release_event,
)
from sottovoce.planning.release import release_of, sampled_terms
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import without_trust
from sottovoce.privacy.events import (
    GaussianNoise,
    HiddenBy,
    NonPrivate,
    PrivacyEvent,
    Repeated,
    Sampled,
    Shuffled,
    basic_counts,
)
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.protocol.channels.central import Central
from sottovoce.protocol.plan import RoundPlan
from sottovoce.runs.build import tally_of
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import parse
from sottovoce.runs.resolve import Resolved, resolve

CLIENTS, MINIMUM, DIMENSION, CLIP_NORM = 8, 5, 6, 0.5
ROUNDS, DELTA = 2, 1e-5
# Of each kind of event, code and noise one; the others differ in numbers.
KINDS = {
    kind: registry.find(kind).examples[0]
    for kind in (
        *("cldp", "clamped_sign", "gauss_hermite", "gaussian", "laplace", "no_privacy"),
        *("seeded_sign", "skellam", "staircase"),
    )
}
CHANNELS = ("direct", "shuffler", "secret_order", "secure_sum", "central")


class Case(NamedTuple):
    """The settings of a run."""

    kind: str
    channel: str
    adjacency: str
    level: str
    samples: int  # of each client
    rate: float  # of records
    client_rate: float

    @property
    def records(self) -> int:
        """Contributions whose mean a message is."""
        return 1 if self.level == "client" else max(1, int(self.rate * self.samples))


LEVELS = (
    ("client", 6, 1.0),
    ("sample", 1, 1.0),
    ("sample", 6, 1.0),
    ("sample", 6, 0.5),
    ("sample", 6, 0.1),  # less than one record is expected, but a client has six
)


def cases() -> Iterator[Case]:
    """Every combination; clients are sampled where that is charged differently, or might be."""
    for kind, channel, adjacency, level in itertools.product(
        KINDS, CHANNELS, ("zero-out", "replace-one"), LEVELS
    ):
        yield Case(kind, channel, adjacency, *level, client_rate=1.0)
        if channel == "direct" or (channel == "central" and level[0] == "client"):
            yield Case(kind, channel, adjacency, *level, client_rate=0.5)


@cache
def data(samples: int) -> Dataset:
    rows = CLIENTS * samples
    features = np.linspace(-1.0, 1.0, 2 * rows, dtype=np.float32).reshape(rows, 2)
    labels = np.arange(rows) % 2
    return Dataset(
        name="points",
        train_features=features,
        train_labels=labels,
        test_features=features,
        test_labels=labels,
        num_classes=2,
    )


def table(case: Case, **changes: Any) -> dict[str, Any]:
    """The case as a spec."""
    local = {"local_learning_rate": 0.5} if case.level == "client" else {}
    minimum = {} if case.channel in ("direct", "central") else {"minimum_clients": MINIMUM}
    poisson = {"kind": "poisson", "rate": case.client_rate}
    return small_table(
        rounds=ROUNDS,
        data={"dataset": "points", "clients": CLIENTS},
        algorithm={"kind": "fedavg", "server_learning_rate": 1.0, **local},
        privacy={
            "level": case.level,
            "adjacency": case.adjacency,
            "clip_norm": CLIP_NORM,
            "delta": DELTA,
            "record_sampling_rate": case.rate,
            **changes,
        },
        mechanism={"kind": case.kind, **KINDS[case.kind]},
        channel={"kind": case.channel, **minimum},
        sampling={"kind": "everyone"} if case.client_rate == 1.0 else poisson,
        runtime={"messages": "none" if case.channel == "central" else "stored"},
    )


def resolved_with(case: Case, **changes: Any) -> Resolved:
    return resolve(load_inputs(parse(table(case, **changes)), data(case.samples)))


unchanged = lru_cache(maxsize=1)(resolved_with)  # the case that is looked at


def charged(resolved: Resolved, client: str = "client-0000") -> PrivacyEvent:
    """What a client pays for its message of one round."""
    tally = tally_of(resolved)
    tally.charge(1, range(CLIENTS))
    ((event, count),) = tally.history(client)
    assert count == 1
    return event


def charged_in(case: Case) -> PrivacyEvent:
    return charged(unchanged(case))


def asked(case: Case) -> dict[str, Any]:
    """The same settings as options of `spend`."""
    options: dict[str, Any] = {"adjacency": case.adjacency}
    if case.channel in ("shuffler", "secret_order"):
        options["shuffled_clients"] = MINIMUM
    if case.channel == "secure_sum":
        options["secure_sum_clients"] = MINIMUM
    if case.channel == "central":  # where contributions are clients, these are sampled
        options["sampling_hidden_by"] = "central-noise"
        options["sampling_rate"] = case.rate * case.client_rate
    elif case.rate < 1.0:
        options["sampling_rate"] = case.rate
    return options


def outcome(give: Callable[[], PrivacyEvent]) -> PrivacyEvent | None:
    """An event, or None where it is refused."""
    try:
        return give()
    except SottovoceError:
        return None


def visibility_of(case: Case) -> Visibility:
    match case.channel:
        case "direct":
            return EveryMessage()
        case "secure_sum":
            return OnlySums(minimum_clients=MINIMUM)
        case "central":
            return NoisySums(client_sampling_rate=case.client_rate)
        case _:
            return ShuffledMessages(minimum_clients=MINIMUM)


def terms_in(case: Case) -> ReleaseTerms:
    """As the case says, without any help of what is tested."""
    sample = None
    if case.rate < 1.0:
        hidden_by: HiddenBy = "central-noise" if case.channel == "central" else "own-records"
        sample = SecretSample(rate=case.rate, scheme="poisson", hidden_by=hidden_by)
    return ReleaseTerms(
        adjacency=Adjacency.parse(case.adjacency), visibility=visibility_of(case), sample=sample
    )


def by_name(case: Case, options: dict[str, Any]) -> PrivacyEvent:
    """As `spend`, `calibrate` and `curve` ask."""
    release = release_of(
        case.kind,
        dimension=DIMENSION,
        clip_norm=CLIP_NORM,
        clip_geometry="l2",
        records=case.records,
        **options,
    )
    return release.terms(built(case))


def planned(case: Case, options: dict[str, Any]) -> PrivacyEvent:
    """As `plan` asks."""
    rate, hidden_by = options.get("sampling_rate"), options.get("sampling_hidden_by", "own-records")
    return sampled_terms(case.adjacency, rate, "poisson", hidden_by)(built(case))


def in_a_round(case: Case) -> PrivacyEvent:
    """As ledgers and sites charge."""
    resolved = unchanged(case)
    assert not isinstance(resolved.channel, Central)
    plan = RoundPlan(
        run="run",
        round=1,
        unit=resolved.algorithm.unit,
        adjacency=resolved.spec.privacy.adjacency,
        clients=resolved.parts,
        channel=resolved.channel,
        record_sampling_rate=resolved.algorithm.record_sampling_rate,
    )
    return plan.event(plan.clients[0])


def domain_of(case: Case) -> Domain:
    return clipped_domain("l2", DIMENSION, CLIP_NORM, case.records)


def built(case: Case) -> Mechanism:
    return registry.find(case.kind).build(domain_of(case), KINDS[case.kind])


def answers(case: Case, options: dict[str, Any]) -> Iterator[tuple[str, PrivacyEvent | None]]:
    mechanism, terms = built(case), terms_in(case)
    yield "the terms", outcome(lambda: terms(mechanism))
    yield "a name", outcome(lambda: by_name(case, options))
    yield "a mechanism", outcome(lambda: release_of(mechanism, **options).terms(mechanism))
    if not {"shuffled_clients", "secure_sum_clients"} & options.keys():
        yield "a plan", outcome(lambda: planned(case, options))
    if case.channel != "central":
        yield "a round", outcome(lambda: in_a_round(case))


def test_every_entrance_gives_what_a_run_charges_or_refuses_with_it() -> None:
    found: Counter[str] = Counter()
    for case in cases():
        run = outcome(partial(charged_in, case))
        for entrance, answer in answers(case, asked(case)):
            assert answer == run, (case, entrance)
        if run is not None:
            check_local(case, run)
        found["refused" if run is None else case.channel] += 1
    assert found.keys() == {"refused", *CHANNELS}, found
    assert min(found.values()) > 5, found


def check_local(case: Case, event: PrivacyEvent) -> None:
    """What holds if nothing is hidden follows from terms and from charges alike."""
    terms, mechanism = terms_in(case), built(case)
    if case.channel == "central":  # whose messages have no noise, and are not sampled at rate 1
        assert terms.local(mechanism) == NonPrivate(adjacency=terms.adjacency)
        return
    told = basic_counts(terms.local(mechanism))
    assert told == basic_counts(without_trust(event)), case
    if case.channel != "secure_sum":  # whose event does not say all that holds of a bit
        alone = local_event(mechanism, adjacency=terms.adjacency, sample=terms.sample)
        assert told == basic_counts(alone), case


def test_clients_of_groups_pay_for_their_own_mechanism_and_hide_in_no_crowd() -> None:
    case = Case("gauss_hermite", "direct", "replace-one", "sample", 6, 0.5, 1.0)
    group = {"clients": 2, "mechanism": {"kind": "gaussian", "noise_multiplier": 3.0}}
    found = resolved_with(case, groups=[group])
    assert charged(found, "client-0007") == by_name(case, asked(case))
    gaussian = registry.find("gaussian").build(domain_of(case), {"noise_multiplier": 3.0})
    assert charged(found) == release_of(gaussian, **asked(case)).terms(gaussian)
    for channel in ("shuffler", "secret_order"):
        hidden = case._replace(kind="cldp", channel=channel, level="client", rate=1.0)
        assert isinstance(charged(resolved_with(hidden)), Shuffled)
        group = {"clients": 2, "mechanism": {"kind": "cldp", "epsilon": 0.5}}
        with pytest.raises(SottovoceError, match=r"privacy\.groups"):
            resolved_with(hidden, groups=[group])


def compared() -> list[Case]:
    """One case for each channel, adjacency and sampling that is not refused."""
    found: dict[object, Case] = {}
    for case in cases():
        setting = case.channel, case.adjacency, case.rate < 1.0, case.client_rate < 1.0
        quick = case.kind in ("cldp", "gaussian") or (
            (case.kind, case.adjacency) == ("clamped_sign", "replace-one")
        )
        # Whoever sees the messages of a sample of clients charges by who was drawn.
        unseen = case.client_rate == 1.0 or case.channel == "central"
        if quick and unseen and setting not in found:
            event = outcome(partial(terms_in(case), built(case)))
            found |= {setting: case} if event else {}
    return list(found.values())


def arrays(samples: int) -> tuple[Any, ...]:
    found = data(samples)
    return found.train_features, found.train_labels, found.test_features, found.test_labels


def words(given: dict[str, Any]) -> list[str]:
    return [word for name, value in given.items() for word in (option(name), str(value))]


def stated(case: Case) -> dict[str, Any]:
    """The domain and what hides a message, as arguments of `spend` and options of `privacy`."""
    clip = {"clip_norm": CLIP_NORM, "clip_geometry": "l2", "records": case.records}
    return {"dimension": DIMENSION, **clip, **asked(case), "delta": DELTA}


def parameters(given: Mapping[str, Any]) -> list[str]:
    return [word for name, value in given.items() for word in ("--param", f"{name}={value}")]


def numbers(case: Case, folder: Path) -> Iterator[tuple[str, float]]:
    """Every public way to the epsilon of some rounds."""
    mechanism, given, event = built(case), KINDS[case.kind], terms_in(case)(built(case))
    yield "privacy_spent", privacy_spent(Repeated(event=event, count=ROUNDS), DELTA).epsilon
    by_name = sottovoce.spend(case.kind, rounds=ROUNDS, **stated(case), **given)
    yield "spend, a name", by_name.epsilon
    yield (
        "spend, built",
        sottovoce.spend(mechanism, rounds=ROUNDS, delta=DELTA, **asked(case)).epsilon,
    )
    yield "spend, an event", sottovoce.spend(event, rounds=ROUNDS, delta=DELTA).epsilon
    command = ["--mechanism", case.kind, *words(stated(case)), *parameters(given)]
    rounds = ["--rounds", str(ROUNDS)]
    yield "privacy spend", printed_json("privacy", "spend", *command, *rounds)["epsilon"]
    curve = printed_json("privacy", "curve", *command, *rounds, "--points", "1")["curve"]
    yield "privacy curve", curve[-1]["epsilon"]
    kinds = ("none",) if case.channel == "central" else ("stored", "packed")
    for kind in kinds[: 1 if case.channel == "secure_sum" else 2]:
        out = folder / kind
        spec = {**table(case), "runtime": {"messages": kind}}
        run = sottovoce.simulate(spec, data=arrays(case.samples), out=out, progress=False)
        yield f"a run, {kind}", run.epsilon
        yield f"its first client, {kind}", run.clients[0].epsilon or math.inf
        if by_name.local_epsilon and math.isfinite(by_name.local_epsilon):
            assert run.to_dict()["local_epsilon"] == by_name.local_epsilon, (case, kind)
        if kind == "stored":
            total = sottovoce.ledger_total([out], delta=DELTA, client="client-0000")
            if total.delta == DELTA:  # a pure sum is told without one, where it is no more
                yield "its ledger", total.epsilon
            shown = printed_json("ledger", "show", str(out), "--delta", str(DELTA))
            yield "ledger show", shown[0]["epsilon"]


def test_every_public_way_gives_the_same_number(tmp_path: Path) -> None:
    chosen = compared()
    assert {case.channel for case in chosen} == set(CHANNELS)
    assert len(chosen) > 10
    for number, case in enumerate(chosen):
        found = dict(numbers(case, tmp_path / str(number)))
        assert len(set(found.values())) == 1, (case, found)
        assert math.isfinite(found["privacy_spent"])


@pytest.mark.parametrize(
    ("adjacency", "hidden_by"),
    [
        ("replace-one", None),
        ("zero-out", "own-records"),
        ("replace-one", "central-noise"),
        ("zero-out", "secure-sum"),
    ],
)
def test_plans_and_calibrations_spend_what_spend_says(
    adjacency: str, hidden_by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = (registry.find("gaussian"),)
    monkeypatch.setattr(registry, "registrations", lambda: few)
    sampled = {"sampling_rate": 0.5, "sampling_hidden_by": hidden_by} if hidden_by else {}
    asked: dict[str, Any] = {"adjacency": adjacency, "delta": DELTA, "rounds": ROUNDS, **sampled}
    target: dict[str, Any] = {"epsilon": 2.0, "dimension": DIMENSION, "clip_norm": CLIP_NORM}
    plan = sottovoce.plan(**target, **asked)
    for row in plan:
        clip: dict[str, Any] = {"clip_norm": row.clip_norm, "clip_geometry": row.clip_geometry}
        spent = sottovoce.spend(
            row.mechanism, dimension=DIMENSION, **clip, **asked, **row.parameters
        )
        assert (row.epsilon, row.assumes) == (spent.epsilon, spent.assumes), row
    assert printed_json("plan", *words({**target, **asked})) == plan.to_dict()
    for row in plan.to_dict()["ranking"]:
        kind, free = row["mechanism"], dict(row["parameters"])
        free.pop(registry.find(kind).calibrated_parameter.parameter)  # type: ignore[union-attr]
        target |= {"clip_geometry": "l2"}
        command = ["--mechanism", kind, *words({**target, **asked}), *parameters(free)]
        found = printed_json("privacy", "calibrate", *command)
        mechanism = registry.find(kind).build(
            clipped_domain("l2", DIMENSION, CLIP_NORM), found["parameters"]
        )
        spent = sottovoce.spend(mechanism, **asked)
        assert found["epsilon"] == spent.epsilon <= 2.0
        assert found["local_epsilon"] == spent.to_dict()["local_epsilon"] if hidden_by else True


def test_a_run_calibrates_to_what_the_command_finds() -> None:
    quick = ("gaussian", "central", 1.0), ("gaussian", "direct", 0.5), ("cldp", "shuffler", 1.0)
    for kind, channel, rate in quick:
        level = ("client", 6) if rate == 1.0 else ("sample", 6)
        case = Case(kind, channel, "replace-one", *level, rate=rate, client_rate=1.0)
        spec = {**table(case, epsilon=1.0), "mechanism": {"kind": kind}}
        run = resolve(load_inputs(parse(spec), data(case.samples))).spec.mechanism.parameters
        command = ["--mechanism", kind, *words(stated(case)), "--epsilon", "1.0"]
        found = printed_json("privacy", "calibrate", *command, "--rounds", str(ROUNDS))
        assert found["parameters"] == run, case


@pytest.mark.parametrize("kind", NUMBERS)
def test_an_estimate_costs_what_its_mechanism_does(kind: str) -> None:
    randomizer = randomizer_for(0.0, 1.0, 1.0, None, kind)
    answered = sottovoce.estimate(
        "mean", [0.0, 0.5, 1.0], lower=0.0, upper=1.0, epsilon=1.0, mechanism=kind, seed=1
    )
    event = release_event(randomizer.build(1), adjacency=Adjacency.REPLACE_ONE)
    assert randomizer.event == event
    assert answered.epsilon == pytest.approx(pure_epsilon(event), rel=2.0**-40)
    spent = sottovoce.spend(randomizer.build(1), adjacency="replace-one", delta=1e-9)
    assert spent.epsilon <= answered.epsilon * (1.0 + 2.0**-40)


def test_a_sampled_client_with_several_records_is_refused_and_here_is_why() -> None:
    """What is far from the zero that others send shows that its client was sampled.

    100 records, all at the far end but one: a client that was sampled sends 99 or 100, one that was
    not sends 0, so its message tells which, and the sample hides nothing: it only happens seldom.
    """
    rate, delta = 0.1, 1e-6
    sample = SecretSample(rate=rate, scheme="poisson", hidden_by="secure-sum")
    mean = Gaussian(input_domain=L2Ball(dimension=1, radius=1.0, records=100), noise_multiplier=1.0)
    with pytest.raises(PrivacyError, match="hide it by own-records, or protect whole clients"):
        release_event(mean, adjacency=Adjacency.ZERO_OUT, sample=sample)
    event = mean.privacy(Adjacency.ZERO_OUT)
    claimed = privacy_spent(
        Sampled(event=event, rate=rate, scheme="poisson", hidden_by="secure-sum"), delta
    ).epsilon
    assert isinstance(event, GaussianNoise)
    at, half = claimed / event.mu, event.mu / 2.0
    above = [0.5 * math.erfc(edge / math.sqrt(2.0)) for edge in (at - half, at + half)]
    assert rate * (above[0] - math.exp(claimed) * above[1]) > 1000.0 * delta
