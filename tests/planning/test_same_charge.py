"""Whatever prints an epsilon beforehand gives what a run with the same settings would charge.

Generated over mechanisms, levels, samples, channels and adjacencies: for every combination an
entrance gives the event of the run, or both refuse. Events are compared, which says it for every
delta and number of rounds.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from specs import small_spec

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, L2Ball, clipped
from sottovoce.core.errors import PrivacyError, SottovoceError
from sottovoce.learning.datasets import Dataset
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.secret_sample import SecretSample
from sottovoce.planning.release import release_of, secret_sample
from sottovoce.planning.setting import Setting
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import GaussianNoise, PrivacyEvent, Sampled, Shuffled
from sottovoce.protocol.channels.channel import Direct
from sottovoce.protocol.plan import released_event
from sottovoce.runs.books import tally_of
from sottovoce.runs.parts import Assembly, assemble

CLIENTS, MINIMUM, DIMENSION, CLIP_NORM = 8, 5, 6, 0.5
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


def assembled(case: Case, **changes: Any) -> Assembly:
    local = {"local_learning_rate": 0.5} if case.level == "client" else {}
    minimum = {} if case.channel in ("direct", "central") else {"minimum_clients": MINIMUM}
    poisson = {"kind": "poisson", "rate": case.client_rate}
    spec: dict[str, Any] = {
        "data": {"dataset": "points", "clients": CLIENTS},
        "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0, **local},
        "privacy": {
            "level": case.level,
            "adjacency": case.adjacency,
            "clip_norm": CLIP_NORM,
            "delta": 1e-5,
            "record_sampling_rate": case.rate,
            **changes,
        },
        "mechanism": {"kind": case.kind, **KINDS[case.kind]},
        "channel": {"kind": case.channel, **minimum},
        "sampling": {"kind": "everyone"} if case.client_rate == 1.0 else poisson,
        "runtime": {"messages": "none" if case.channel == "central" else "stored"},
    }
    return assemble(small_spec(**spec), data(case.samples))


def charged(assembly: Assembly, client: str = "client-0000") -> PrivacyEvent:
    """What a client pays for its message of one round."""
    tally = tally_of(assembly)
    tally.charge(1, range(CLIENTS))
    ((event, count),) = tally.history(client)
    assert count == 1
    return event


def charged_in(case: Case) -> PrivacyEvent:
    return charged(assembled(case))


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
    return release.event(built(case))


def planned(case: Case, options: dict[str, Any]) -> PrivacyEvent:
    """As `plan` asks."""
    sample = secret_sample(
        options.get("sampling_rate"), "poisson", options.get("sampling_hidden_by", "own-records")
    )
    setting = Setting(
        domain=domain_of(case),
        epsilon=1.0,
        delta=1e-5,
        adjacency=Adjacency.parse(case.adjacency),
        rounds=1,
        sample=sample,
    )
    return setting.seen(built(case))


def domain_of(case: Case) -> Domain:
    return clipped("l2", DIMENSION, CLIP_NORM, case.records)


def built(case: Case) -> Mechanism:
    return registry.find(case.kind).build(domain_of(case), KINDS[case.kind])


def answers(case: Case, options: dict[str, Any]) -> Iterator[tuple[str, PrivacyEvent | None]]:
    yield "a name", outcome(lambda: by_name(case, options))
    mechanism = built(case)
    yield "a mechanism", outcome(lambda: release_of(mechanism, **options).event(mechanism))
    if not {"shuffled_clients", "secure_sum_clients"} & options.keys():
        yield "a plan", outcome(lambda: planned(case, options))
    if options.keys() == {"adjacency"}:  # as the explorer and the Flower drop-in charge
        yield "a server", registry.seen(Adjacency.parse(case.adjacency))(mechanism)


def test_every_entrance_gives_what_a_run_charges_or_refuses_with_it() -> None:
    found: Counter[str] = Counter()
    for case in cases():
        run = outcome(partial(charged_in, case))
        for entrance, answer in answers(case, asked(case)):
            assert answer == run, (case, entrance)
        found["refused" if run is None else case.channel] += 1
    assert found.keys() == {"refused", *CHANNELS}, found
    assert min(found.values()) > 5, found


def test_clients_of_groups_pay_for_their_own_mechanism_and_hide_in_no_crowd() -> None:
    case = Case("gauss_hermite", "direct", "replace-one", "sample", 6, 0.5, 1.0)
    group = {"clients": 2, "mechanism": {"kind": "gaussian", "noise_multiplier": 3.0}}
    found = assembled(case, groups=[group])
    assert charged(found, "client-0007") == by_name(case, asked(case))
    gaussian = registry.find("gaussian").build(domain_of(case), {"noise_multiplier": 3.0})
    assert charged(found) == release_of(gaussian, **asked(case)).event(gaussian)
    for channel in ("shuffler", "secret_order"):
        hidden = case._replace(kind="cldp", channel=channel, level="client", rate=1.0)
        assert isinstance(charged(assembled(hidden)), Shuffled)
        group = {"clients": 2, "mechanism": {"kind": "cldp", "epsilon": 0.5}}
        with pytest.raises(SottovoceError, match=r"privacy\.groups"):
            assembled(hidden, groups=[group])


def test_a_sampled_client_with_several_records_is_refused_and_here_is_why() -> None:
    """What is far from the zero that others send shows that its client was sampled.

    100 records, all at the far end but one: a client that was sampled sends 99 or 100, one that was
    not sends 0, so its message tells which, and the sample hides nothing: it only happens seldom.
    """
    rate, delta = 0.1, 1e-6
    sample = SecretSample(rate=rate, scheme="poisson", hidden_by="secure-sum")
    mean = Gaussian(input_domain=L2Ball(dimension=1, radius=1.0, records=100), noise_multiplier=1.0)
    with pytest.raises(PrivacyError, match="hide it by own-records, or protect whole clients"):
        released_event(Direct(), mean, Adjacency.ZERO_OUT, sample)
    event = mean.privacy(Adjacency.ZERO_OUT)
    claimed = privacy_spent(
        Sampled(event=event, rate=rate, scheme="poisson", hidden_by="secure-sum"), delta
    ).epsilon
    assert isinstance(event, GaussianNoise)
    at, half = claimed / event.mu, event.mu / 2.0
    above = [0.5 * math.erfc(edge / math.sqrt(2.0)) for edge in (at - half, at + half)]
    assert rate * (above[0] - math.exp(claimed) * above[1]) > 1000.0 * delta
