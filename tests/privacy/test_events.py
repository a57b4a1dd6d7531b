"""Events: plain data that survives JSON, composes under one adjacency only, and cannot change."""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import AdjacencyMismatchError, LedgerError, ParameterError, PrivacyError
from sottovoce.privacy.compositions import (
    compose_repeated,
    describe_assumptions,
    reveal_messages,
    without_trust,
)
from sottovoce.privacy.event_json import from_json, to_json
from sottovoce.privacy.events import (
    BasicEvent,
    Composed,
    Conditional,
    FinitePair,
    GaussianNoise,
    HiddenBy,
    LaplaceNoise,
    MetricDp,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Repeated,
    Sampled,
    Shuffled,
    SummedBits,
    SummedNoise,
    ZeroConcentrated,
    basic_counts,
)

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
GAUSSIAN = GaussianNoise(mu=0.5, adjacency=ZERO_OUT)
PURE = PureDp(epsilon=1.0, adjacency=ZERO_OUT)

ONE_OF_EACH_SHAPE: list[PrivacyEvent] = [
    NonPrivate(adjacency=ZERO_OUT),
    GAUSSIAN,
    ZeroConcentrated(rho=0.1, adjacency=REPLACE_ONE),
    PURE,
    FinitePair(first=(0.75, 0.25), second=(0.25, 0.75), adjacency=ZERO_OUT),
    MetricDp(epsilon=1.0, metric="l1", distance=0.5, adjacency=REPLACE_ONE),
    OneBit(shift=0.5, dimension=7, adjacency=ZERO_OUT),
    OneBit(shift=0.5, dimension=7, adjacency=ZERO_OUT, against_zero=True),
    LaplaceNoise(shift=0.5, dimension=3, adjacency=REPLACE_ONE),
    SummedBits(shift=0.5, dimension=7, logit_bound=2.0, clients=30, adjacency=REPLACE_ONE),
    SummedNoise(mu=0.5, clients=30, excess=1e-9, adjacency=ZERO_OUT),
    Sampled(event=PURE, rate=0.25, scheme="poisson", hidden_by="central-noise"),
    Shuffled(event=PURE, clients=100),
    RenyiCurve(orders=(2.0, 4.0), divergences=(0.1, 0.3), adjacency=ZERO_OUT),
    Repeated(event=GAUSSIAN, count=3),
    Composed(events=(GAUSSIAN, PURE)),
]

over_shapes = pytest.mark.parametrize("event", ONE_OF_EACH_SHAPE, ids=lambda e: type(e).__name__)


@st.composite
def pmf_pairs(draw: st.DrawFn, adjacency: Adjacency) -> FinitePair:
    size = draw(st.integers(1, 5))

    def pmf() -> tuple[float, ...]:
        weights = draw(st.lists(st.integers(0, 1000), min_size=size, max_size=size).filter(any))
        return tuple(weight / sum(weights) for weight in weights)

    return FinitePair(first=pmf(), second=pmf(), adjacency=adjacency)


@st.composite
def curves(draw: st.DrawFn, adjacency: Adjacency) -> RenyiCurve:
    orders = draw(
        st.sets(st.floats(1.0, 1e9, exclude_min=True), min_size=1, max_size=4).map(sorted)
    )
    divergence = st.floats(0.0, 1e6) | st.just(math.inf)
    divergences = draw(st.lists(divergence, min_size=len(orders), max_size=len(orders)))
    return RenyiCurve(orders=tuple(orders), divergences=tuple(divergences), adjacency=adjacency)


def basic_events(adjacency: Adjacency) -> st.SearchStrategy[BasicEvent]:
    amount = st.floats(min_value=1e-300, max_value=1e12)
    return st.one_of(
        st.just(NonPrivate(adjacency=adjacency)),
        amount.map(lambda mu: GaussianNoise(mu=mu, adjacency=adjacency)),
        amount.map(lambda rho: ZeroConcentrated(rho=rho, adjacency=adjacency)),
        amount.map(lambda epsilon: PureDp(epsilon=epsilon, adjacency=adjacency)),
        pmf_pairs(adjacency),
        curves(adjacency),
    )


def events(adjacency: Adjacency) -> st.SearchStrategy[PrivacyEvent]:
    basic: st.SearchStrategy[PrivacyEvent] = basic_events(adjacency)
    return st.recursive(
        basic,
        lambda parts: st.one_of(
            st.builds(Repeated, event=parts, count=st.integers(1, 2**53)),
            st.lists(parts, min_size=1, max_size=3).map(lambda p: Composed(events=tuple(p))),
        ),
        max_leaves=6,
    )


any_event = st.sampled_from(Adjacency).flatmap(events)


def count_by_recursion(event: PrivacyEvent) -> dict[BasicEvent, int]:
    """`basic_counts` as its definition reads."""
    if isinstance(event, Repeated):
        return {e: n * event.count for e, n in count_by_recursion(event.event).items()}
    if isinstance(event, Composed):
        totals: dict[BasicEvent, int] = {}
        for part in event.events:
            for basic, times in count_by_recursion(part).items():
                totals[basic] = totals.get(basic, 0) + times
        return totals
    if isinstance(event, Conditional):
        return count_by_recursion(event.event)
    return {event: 1}


@given(event=any_event)
@settings(deadline=None)
def test_every_event_survives_one_line_of_canonical_json_exactly(event: PrivacyEvent) -> None:
    text = to_json(event)
    assert "\n" not in text
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    again = from_json(text)
    assert again == event
    assert again is not event
    assert type(again) is type(event)
    assert to_json(again) == text
    assert hash(again) == hash(event)
    assert {event: "found"}[again] == "found"


@over_shapes
def test_each_shape_survives_json_with_its_types(event: PrivacyEvent) -> None:
    again = from_json(to_json(event))
    assert again == event
    assert repr(again) == repr(event)  # 1 and 1.0, list and tuple, str and Adjacency would differ


def test_the_json_text_of_a_nested_event_is_fixed_because_the_ledger_stores_it() -> None:
    event = Repeated(event=Composed(events=(GAUSSIAN, PURE)), count=2)
    assert to_json(event) == (
        '{"count":2,"event":{"events":['
        '{"adjacency":"zero-out","mu":0.5,"shape":"GaussianNoise"},'
        '{"adjacency":"zero-out","epsilon":1.0,"shape":"PureDp"}'
        '],"shape":"Composed"},"shape":"Repeated"}'
    )


@pytest.mark.parametrize(
    ("whole", "decimal"),
    [
        (GaussianNoise(mu=1, adjacency=ZERO_OUT), GaussianNoise(mu=1.0, adjacency=ZERO_OUT)),
        (
            FinitePair(first=(1, 0), second=(0, 1), adjacency=ZERO_OUT),
            FinitePair(first=(1.0, 0.0), second=(0.0, 1.0), adjacency=ZERO_OUT),
        ),
        (
            RenyiCurve(orders=(2, 3), divergences=(0, 1), adjacency=ZERO_OUT),
            RenyiCurve(orders=(2.0, 3.0), divergences=(0.0, 1.0), adjacency=ZERO_OUT),
        ),
    ],
)
def test_events_that_are_equal_have_one_text_so_the_ledger_counts_them_together(
    whole: PrivacyEvent, decimal: PrivacyEvent
) -> None:
    assert whole == decimal
    assert to_json(whole) == to_json(decimal)
    assert to_json(Repeated(event=whole, count=2)) == to_json(Repeated(event=decimal, count=2))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "3",
        '"GaussianNoise"',
        "[]",
        "{}",
        '{"shape":"GaussianNoise","mu":0.5,"adjacency":"zero-out"',
        '{"mu":0.5,"adjacency":"zero-out"}',
        '{"shape":"Laplace","mu":0.5,"adjacency":"zero-out"}',
        '{"shape":["GaussianNoise"],"mu":0.5,"adjacency":"zero-out"}',
        '{"shape":"GaussianNoise","adjacency":"zero-out"}',
        '{"shape":"GaussianNoise","mu":0.5}',
        '{"shape":"GaussianNoise","mu":0.5,"adjacency":"add-remove"}',
        '{"shape":"GaussianNoise","mu":0.5,"adjacency":"zero-out","rho":1.0}',
        '{"shape":"GaussianNoise","mu":"0.5","adjacency":"zero-out"}',
        '{"shape":"GaussianNoise","mu":true,"adjacency":"zero-out"}',
        '{"shape":"GaussianNoise","mu":-0.5,"adjacency":"zero-out"}',
        '{"shape":"GaussianNoise","mu":NaN,"adjacency":"zero-out"}',
        '{"shape":"PureDp","epsilon":Infinity,"adjacency":"zero-out"}',
        '{"shape":"FinitePair","first":[0.5,0.6],"second":[0.5,0.5],"adjacency":"zero-out"}',
        '{"shape":"FinitePair","first":[1.0],"second":[0.5,0.5],"adjacency":"zero-out"}',
        '{"shape":"RenyiCurve","orders":[0.5],"divergences":[0.1],"adjacency":"zero-out"}',
        '{"shape":"Composed","events":[]}',
        '{"shape":"Composed","events":3}',
        '{"shape":"Repeated","count":0,"event":{"shape":"NonPrivate","adjacency":"zero-out"}}',
        '{"shape":"Repeated","count":1.5,"event":{"shape":"NonPrivate","adjacency":"zero-out"}}',
    ],
)
def test_text_that_is_no_event_is_a_ledger_error(text: str) -> None:
    with pytest.raises(LedgerError, match="not a privacy event"):
        from_json(text)


def test_a_ledger_error_shows_the_beginning_of_the_text_only() -> None:
    with pytest.raises(LedgerError) as caught:
        from_json('"' + "x" * 10_000 + '"')
    assert "xxxx" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_events_of_two_adjacencies_do_not_compose() -> None:
    other = GaussianNoise(mu=0.5, adjacency=REPLACE_ONE)
    for parts in (
        (GAUSSIAN, other),
        (other, GAUSSIAN),
        (GAUSSIAN, Repeated(event=other, count=2)),
        (Composed(events=(GAUSSIAN,)), Composed(events=(other,))),
    ):
        with pytest.raises(AdjacencyMismatchError, match="replace-one and zero-out"):
            Composed(events=parts)
    assert issubclass(AdjacencyMismatchError, PrivacyError)


def test_a_multiset_of_two_adjacencies_is_refused() -> None:
    other = GaussianNoise(mu=0.5, adjacency=REPLACE_ONE)
    with pytest.raises(AdjacencyMismatchError, match="cannot compose"):
        compose_repeated([(GAUSSIAN, 1), (other, 1)])


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_composition_has_the_adjacency_of_its_parts(adjacency: Adjacency) -> None:
    part = PureDp(epsilon=1.0, adjacency=adjacency)
    assert Repeated(event=part, count=2).adjacency is adjacency
    assert Composed(events=(part, Repeated(event=part, count=3))).adjacency is adjacency


def test_events_under_different_adjacencies_are_different() -> None:
    assert GaussianNoise(mu=0.5, adjacency=REPLACE_ONE) != GAUSSIAN


def test_basic_counts_of_a_hand_counted_composition() -> None:
    event = Repeated(
        event=Composed(events=(GAUSSIAN, Repeated(event=PURE, count=3), GAUSSIAN)), count=2
    )
    assert basic_counts(event) == {GAUSSIAN: 4, PURE: 6}


@given(event=any_event)
@settings(deadline=None)
def test_basic_counts_are_those_of_the_definition(event: PrivacyEvent) -> None:
    assert basic_counts(event) == count_by_recursion(event)


def test_equal_parts_are_counted_together_and_counts_do_not_overflow() -> None:
    event: PrivacyEvent = GaussianNoise(mu=0.5, adjacency=ZERO_OUT)
    for _ in range(3):
        event = Repeated(event=event, count=2**53)
    assert basic_counts(Composed(events=(event, GAUSSIAN))) == {GAUSSIAN: 2**159 + 1}


def test_a_multiset_repeats_each_event_as_often_as_counted() -> None:
    assert compose_repeated([(GAUSSIAN, 3)]) == Repeated(event=GAUSSIAN, count=3)
    assert basic_counts(compose_repeated([(GAUSSIAN, 3), (PURE, 2)])) == {GAUSSIAN: 3, PURE: 2}


@over_shapes
def test_no_field_of_an_event_can_be_changed(event: PrivacyEvent) -> None:
    for field in dataclasses.fields(event):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, field.name, getattr(event, field.name))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e13, True, "1"])
@pytest.mark.parametrize(
    ("shape", "field"), [(GaussianNoise, "mu"), (ZeroConcentrated, "rho"), (PureDp, "epsilon")]
)
def test_an_amount_that_is_no_positive_number_is_refused_by_name(
    shape: type[PrivacyEvent], field: str, value: Any
) -> None:
    with pytest.raises(ParameterError, match=f"^{field} must be a"):
        shape(**{field: value, "adjacency": ZERO_OUT})


@pytest.mark.parametrize("count", [0, -1, 1.5, math.nan, True, 2**53 + 1, "3"])
def test_a_count_that_is_no_positive_integer_is_refused(count: int) -> None:
    with pytest.raises(ParameterError, match="count must be an integer from 1 to"):
        Repeated(event=GAUSSIAN, count=count)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((), ()),
        ((1.0,), (0.5, 0.5)),
        ((0.5, 0.4), (0.5, 0.5)),
        ((0.5, 0.5), (0.7, 0.5)),
        ((1.5, -0.5), (0.5, 0.5)),
        ((math.nan, 0.5), (0.5, 0.5)),
        ((math.inf, 0.5), (0.5, 0.5)),
    ],
)
def test_a_pair_that_is_not_two_pmfs_is_refused(
    first: tuple[float, ...], second: tuple[float, ...]
) -> None:
    with pytest.raises(ParameterError, match="pmf"):
        FinitePair(first=first, second=second, adjacency=ZERO_OUT)


@pytest.mark.parametrize(
    ("orders", "divergences", "rule"),
    [
        ((), (), "at least one"),
        ((2.0,), (0.1, 0.2), "one bound for each order"),
        ((1.0,), (0.1,), "above 1"),
        ((0.5, 2.0), (0.1, 0.2), "above 1"),
        ((3.0, 2.0), (0.1, 0.2), "increase"),
        ((2.0, 2.0), (0.1, 0.2), "increase"),
        ((2.0,), (-0.1,), "at least 0"),
        ((2.0,), (math.nan,), "at least 0"),
    ],
)
def test_a_curve_that_breaks_a_rule_is_refused(
    orders: tuple[float, ...], divergences: tuple[float, ...], rule: str
) -> None:
    with pytest.raises(ParameterError, match=rule):
        RenyiCurve(orders=orders, divergences=divergences, adjacency=ZERO_OUT)


def test_an_empty_composition_is_refused() -> None:
    with pytest.raises(ParameterError, match="at least one event"):
        Composed(events=())


@pytest.mark.parametrize("adjacency", ["zero-out", "zero_out", "nonsense", None])
def test_an_adjacency_is_no_word(adjacency: Any) -> None:
    makers: list[Callable[[], object]] = [
        lambda: NonPrivate(adjacency=adjacency),
        lambda: GaussianNoise(mu=1.0, adjacency=adjacency),
        lambda: ZeroConcentrated(rho=1.0, adjacency=adjacency),
        lambda: PureDp(epsilon=1.0, adjacency=adjacency),
        lambda: OneBit(shift=1.0, dimension=2, adjacency=adjacency),
        lambda: LaplaceNoise(shift=1.0, dimension=2, adjacency=adjacency),
        lambda: FinitePair(first=(0.5, 0.5), second=(0.4, 0.6), adjacency=adjacency),
        lambda: RenyiCurve(orders=(2.0,), divergences=(0.1,), adjacency=adjacency),
        lambda: MetricDp(epsilon=1.0, metric="l1", distance=1.0, adjacency=adjacency),
        lambda: SummedBits(shift=1.0, dimension=2, logit_bound=1.0, clients=3, adjacency=adjacency),
        lambda: SummedNoise(mu=1.0, clients=3, excess=0.0, adjacency=adjacency),
    ]
    for make in makers:
        with pytest.raises(ParameterError, match=r"Adjacency\.ZERO_OUT"):
            make()


def test_what_hides_can_be_taken_away() -> None:
    pure = PureDp(epsilon=1.0, adjacency=ZERO_OUT)
    assert reveal_messages(pure) is pure
    total = SummedBits(shift=1.0, dimension=2, logit_bound=1.0, clients=3, adjacency=ZERO_OUT)
    both = Composed(events=(Repeated(event=total, count=3), Shuffled(event=pure, clients=9), pure))
    assert basic_counts(reveal_messages(both)) == {total.local(): 3, pure: 2}


def test_a_secret_sample_can_be_taken_away_too_and_central_noise_with_it() -> None:
    def sampled(hidden_by: HiddenBy) -> Sampled:
        return Sampled(event=PURE, rate=0.1, scheme="poisson", hidden_by=hidden_by)

    hidden = Shuffled(event=PURE, clients=9)
    own = Composed(events=(Repeated(event=sampled("own-records"), count=3), hidden))
    assert basic_counts(reveal_messages(own)) == {sampled("own-records"): 3, PURE: 1}
    assert basic_counts(reveal_messages(own, reveal_samples=True)) == {PURE: 4}
    assert basic_counts(reveal_messages(sampled("secure-sum"), reveal_samples=True)) == {PURE: 1}
    open_ = without_trust(sampled("central-noise"))
    assert basic_counts(open_) == {NonPrivate(adjacency=ZERO_OUT): 1}


def test_every_promise_is_named_once() -> None:
    own = Sampled(event=PURE, rate=0.1, scheme="poisson", hidden_by="own-records")
    assumed = Conditional(event=own, assumption="chacha20")
    total = SummedBits(shift=1.0, dimension=2, logit_bound=1.0, clients=3, adjacency=ZERO_OUT)
    few, many = (Shuffled(event=PURE, clients=clients) for clients in (9, 10))
    found = describe_assumptions(Composed(events=(many, assumed, total, own, few, few, PURE)))
    words = ("ChaCha20", "at least 10 clients", "at least 9 clients", "own records", "sums over")
    assert len(found) == len(words)
    for sentence, part in zip(found, words, strict=True):
        assert part in sentence
    assert describe_assumptions(PURE) == ()


def test_amplifying_twice_is_refused() -> None:
    pure = PureDp(epsilon=1.0, adjacency=ZERO_OUT)
    shuffled = Shuffled(event=pure, clients=9)
    with pytest.raises(ParameterError, match="no bound is proved for two amplifications"):
        Sampled(event=shuffled, rate=0.1, scheme="poisson", hidden_by="own-records")
    with pytest.raises(ParameterError, match="no bound is proved for two amplifications"):
        Shuffled(event=Repeated(event=shuffled, count=2), clients=9)
