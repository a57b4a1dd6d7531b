"""The one place that says what a release costs: what it accepts, and that nothing avoids it."""

import ast
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

import sottovoce
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError, PrivacyError
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.mechanisms.cldp import Cldp
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.no_privacy import NoPrivacy
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
from sottovoce.privacy.events import Conditional, HiddenBy, NonPrivate
from sottovoce.protocol.channels.central import Central
from sottovoce.protocol.channels.channel import Channel, Direct
from sottovoce.protocol.channels.secret_order import SecretOrder
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler

PACKAGE = Path(sottovoce.__file__).parent
BALL = L2Ball(dimension=3, radius=1.0)
WHOLE = r"records = 1; in a spec, privacy\.level = 'client'"
R, Z = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
# For each visibility a mechanism that it serves.
SERVED: dict[Visibility, Mechanism] = {
    EveryMessage(): Gaussian(input_domain=BALL, noise_multiplier=2.0),
    OnlySums(minimum_clients=5): ClampedSign(
        input_domain=BALL, noise_multiplier=2.0, logit_bound=1.0
    ),
    ShuffledMessages(minimum_clients=5): Cldp(input_domain=BALL, epsilon=1.0),
    NoisySums(): Gaussian(input_domain=BALL, noise_multiplier=2.0),
}
PROVED = {
    (EveryMessage, "own-records"),
    (EveryMessage, "secure-sum"),
    (NoisySums, "central-noise"),
}


def sample(hidden_by: HiddenBy, rate: float = 0.5) -> SecretSample:
    return SecretSample(rate=rate, scheme="poisson", hidden_by=hidden_by)


def test_every_visibility_is_that_of_a_channel() -> None:
    channels: list[Channel] = [
        Direct(),
        SecureSum(minimum_clients=5),
        Shuffler(minimum_clients=5),
        SecretOrder(minimum_clients=5),
        Central(),
    ]
    assert {type(channel.visibility) for channel in channels} == set(get_args(Visibility))
    assert {channel.visibility for channel in channels} == SERVED.keys()


def test_a_sample_is_charged_only_where_it_is_proved_to_be_hidden() -> None:
    for (visibility, mechanism), hidden_by, rate in itertools.product(
        SERVED.items(), get_args(HiddenBy), (0.5, 1.0)
    ):
        whole = release_event(mechanism, adjacency=R, visibility=visibility)
        terms = ReleaseTerms(adjacency=R, visibility=visibility, sample=sample(hidden_by, rate))
        if (type(visibility), hidden_by) not in PROVED:
            with pytest.raises(PrivacyError, match="no bound is proved for a sample hidden by"):
                terms(mechanism)
        else:
            assert (terms(mechanism) == whole) is (rate == 1.0)


def test_what_is_shuffled_are_whole_clients_on_every_path() -> None:
    """One record's epsilon does not hold between two inputs that differ in every record."""
    several = Cldp(input_domain=dataclasses.replace(BALL, records=4), epsilon=1.0)
    for clients in (2, 1000):
        visibility = ShuffledMessages(minimum_clients=clients)
        with pytest.raises(PrivacyError, match=WHOLE):
            release_event(several, adjacency=R, visibility=visibility)
        with pytest.raises(PrivacyError, match=WHOLE):
            ReleaseTerms(adjacency=R, visibility=visibility)(several)
        with pytest.raises(PrivacyError, match=WHOLE):
            sottovoce.spend(several, adjacency="replace-one", shuffled_clients=clients, delta=1e-6)
        with pytest.raises(PrivacyError, match="use adjacency replace-one"):
            release_event(
                SERVED[ShuffledMessages(minimum_clients=5)], adjacency=Z, visibility=visibility
            )


def test_sampled_clients_and_sampled_zeros_are_whole_clients_too() -> None:
    several = Gaussian(input_domain=dataclasses.replace(BALL, records=4), noise_multiplier=2.0)
    with pytest.raises(PrivacyError, match="contributes all of its records"):
        release_event(several, adjacency=Z, visibility=NoisySums(client_sampling_rate=0.5))
    with pytest.raises(PrivacyError, match="protect whole clients"):
        release_event(several, adjacency=Z, sample=sample("secure-sum"))
    twice = ReleaseTerms(
        adjacency=Z,
        visibility=NoisySums(client_sampling_rate=0.5),
        sample=sample("central-noise"),
    )
    with pytest.raises(ParameterError, match="cannot be sampled too"):
        twice(SERVED[NoisySums()])


def test_a_plug_ins_claim_is_marked_whatever_hides_it() -> None:
    for visibility, mechanism in SERVED.items():
        own = release_event(mechanism, adjacency=R, visibility=visibility)
        assert not isinstance(own, Conditional)
        # As if the class came from another distribution.
        foreign = type("Foreign", (type(mechanism),), {"__module__": "elsewhere", "__slots__": ()})
        values = {
            field.name: getattr(mechanism, field.name)
            for field in dataclasses.fields(mechanism)  # type: ignore[arg-type]
            if field.init
        }
        claimed = release_event(foreign(**values), adjacency=R, visibility=visibility)
        assert claimed == Conditional(
            event=own, assumption="plug-in mechanism Foreign (module elsewhere)"
        )
    nothing = type("Open", (NoPrivacy,), {"__module__": "elsewhere", "__slots__": ()})
    event = release_event(nothing(input_domain=BALL), adjacency=R)
    assert event == NonPrivate(adjacency=R)


def test_equal_terms_are_one_key_and_others_are_not() -> None:
    makers: list[Callable[[], ReleaseTerms]] = [
        lambda: ReleaseTerms(adjacency=Z),
        lambda: ReleaseTerms(adjacency=R),
        lambda: ReleaseTerms(adjacency=R, visibility=ShuffledMessages(minimum_clients=5)),
        lambda: ReleaseTerms(adjacency=R, visibility=OnlySums(minimum_clients=5)),
        lambda: ReleaseTerms(adjacency=R, visibility=NoisySums()),
        lambda: ReleaseTerms(adjacency=R, visibility=NoisySums(client_sampling_rate=0.5)),
        lambda: ReleaseTerms(adjacency=R, sample=sample("own-records")),
        lambda: ReleaseTerms(adjacency=R, sample=sample("own-records", 0.25)),
        lambda: ReleaseTerms(adjacency=R, any_dimension=True),
    ]
    terms = [make() for make in makers]
    assert len(set(terms)) == len({repr(one) for one in terms}) == len(terms)
    assert [make() for make in makers] == terms
    assert set(terms) == {make() for make in makers}


def test_without_channel_and_sample_the_cost_is_the_mechanisms_own_claim() -> None:
    for mechanism, adjacency in itertools.product(SERVED.values(), (R, Z)):
        own = mechanism.privacy(adjacency)
        assert release_event(mechanism, adjacency=adjacency) == own
        assert local_event(mechanism, adjacency=adjacency) == own


# -- nothing goes around it ------------------------------------------------------------------------

AMPLIFIED = {"Sampled", "Shuffled", "Allocated", "shuffled"}
WORTH_PARSING = re.compile(
    r"\.privacy\b[^.]|[\"']privacy[\"']|Sampled|Allocated|[sS]huffled|SecureSum"
)
MAY_ASK = ("mechanisms", "auditing")  # the mechanism itself for its claim
MAY_AMPLIFY = (
    "privacy",
    "mechanisms/release.py",
    # The next two measure accountants, on events that no mechanism gives rise to.
    "benchmarking/account.py",
    "experiments/studies/udp_shuffle.py",
)


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call in the package that may be one, with its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if WORTH_PARSING.search(text):
            name = path.relative_to(PACKAGE).as_posix()
            found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
            yield from ((name, call) for call in found)


def called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def around(name: str, call: ast.Call) -> bool:
    """Whether the call makes a cost beside `release_event`."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "privacy":
        return not name.startswith(MAY_ASK)
    if called(call) == "getattr" and any(
        isinstance(one, ast.Constant) and one.value == "privacy" for one in call.args
    ):
        return True
    # A method that is handed on is called elsewhere; `spec.privacy` is a section, and no method.
    handed = [*call.args, *(one.value for one in call.keywords)]
    if any(
        isinstance(one, ast.Attribute)
        and one.attr == "privacy"
        and "mechanism" in ast.unparse(one.value).lower()
        for one in handed
    ):
        return True
    amplified = called(call) in AMPLIFIED or ast.unparse(call.func) == "events.SecureSum"
    return amplified and not name.startswith(MAY_AMPLIFY)


def test_nothing_but_release_event_turns_a_claim_into_a_cost() -> None:
    found = [f"{name}:{call.lineno}" for name, call in calls() if around(name, call)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "mechanism.privacy(adjacency)",
        "self.mechanism.privacy(adjacency=Adjacency.ZERO_OUT)",
        "build(domain).privacy(*given)",
        "getattr(mechanism, 'privacy')(adjacency)",
        "map(mechanism.privacy, adjacencies)",
        "calibrate(event_of=some_mechanism.privacy)",
        "events.Shuffled(event=event, clients=3)",
        "events.SecureSum(shift=0.1, clients=3)",
        "Sampled(event=event, rate=0.5, scheme='poisson', hidden_by='own-records')",
    ],
)
def test_a_way_around_would_be_found(line: str) -> None:
    tree = ast.parse(line)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert any(around("runs/outcome.py", one) for one in found)
