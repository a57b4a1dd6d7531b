"""Seeds for unusual inputs and parameters, and what is refused, with its remedy."""

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest

from sottovoce.core import native
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import (
    DomainError,
    ParameterError,
    PrivacyError,
    SottovoceError,
    UnknownNameError,
)
from sottovoce.core.randomness import Keystream, SeededRandomness, SystemRandomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.kernels.seeded import scores
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import parameter_hash
from sottovoce.mechanisms.release import ReleaseTerms, SecretSample, release_event
from sottovoce.mechanisms.seeded_sign import SeededSign
from sottovoce.mechanisms.seeded_step import SeededStep
from sottovoce.mechanisms.seeds import Scorer
from sottovoce.privacy.accounting import epsilon
from sottovoce.privacy.compositions import assumptions, drop_zero_reference
from sottovoce.privacy.events import Sampled
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.protocol.message import Envelope, open_sealed, seal

BALL = L2Ball(dimension=300, radius=1.0)


def sign(domain: L2Ball = BALL, **changes: Any) -> SeededSign:
    given = {"noise_multiplier": 1.2, "blocks": 1, "generator": "chacha20-1", "timing": "variable"}
    return SeededSign(input_domain=domain, **{**given, **changes})


def step(domain: L2Ball = BALL, **changes: Any) -> SeededStep:
    given = {"epsilon": 3.0, "length": "kept", "generator": "chacha20-1", "timing": "variable"}
    return SeededStep(input_domain=domain, **{**given, **changes})


BOTH = {"sign": sign, "step": step}
of_both = pytest.mark.parametrize("make", BOTH.values(), ids=[*BOTH])


def encoded(mechanism: Mechanism, values: Any, number: int = 0) -> Any:
    return mechanism.encode(values, SeededRandomness(5).stream("seed", number))


# -- every machine sends the same seed -------------------------------------------------------


@of_both
@pytest.mark.parametrize("dimension", [1, 300, 5003])
def test_every_level_of_kernels_sends_the_same_seed(make: Any, dimension: int) -> None:
    mechanism = make(L2Ball(dimension=dimension, radius=1.0))
    values = np.sin(np.arange(dimension)) / math.sqrt(dimension)
    found = []
    for level in native.levels():
        with native.using(level):
            codes = encoded(mechanism, values)
            found.append((codes.tobytes(), mechanism.decode(codes).tobytes()))
    assert len(set(found)) == 1


@of_both
@pytest.mark.parametrize("number", range(4))
def test_a_deployed_search_makes_all_tries_and_sends_the_same_seed(make: Any, number: int) -> None:
    """Keys of the system's are a deployment's; a simulation from a seed stops at acceptance."""
    scored: list[int] = []

    def score(seeds: Any, weights: Any) -> Any:
        scored.append(len(seeds))
        return scores(seeds, weights)

    def tries(mechanism: Any, grade: Any) -> tuple[int, list[int]]:
        scored.clear()
        values = np.full(300, 0.05)
        prepared = mechanism.tilts(values) if isinstance(mechanism, SeededSign) else values
        keystream = Keystream(bytes([number]) * 32, grade=grade)
        codes = mechanism.search(prepared, keystream, Scorer(score=score, together=4))
        return sum(scored), codes.tolist()

    quick, steady = make(), make(timing="constant")
    most, (deployed, sent) = steady.choice().tries, tries(steady, "system")
    assert deployed == most
    for mechanism, grade in ((quick, "system"), (quick, "seeded"), (steady, "seeded")):
        made, same = tries(mechanism, grade)
        assert made < most
        assert same == sent
    assert parameter_hash(quick) != parameter_hash(steady)
    assert SystemRandomness().stream().grade == Keystream(bytes(32)).grade == "system"


@of_both
@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_search_whose_time_tells_is_charged_for_it_and_is_not_the_default(
    make: Any, adjacency: Adjacency
) -> None:
    quick, steady = make(), make(timing="constant")
    loss = quick.choice().timing_loss
    assert 0.001 < loss < 0.01
    more = pure_epsilon(quick.privacy(adjacency)) - pure_epsilon(steady.privacy(adjacency))
    # Against nothing the pair is rebuilt around the wider ratios, each e^loss away.
    assert more == pytest.approx(loss, rel=1e-6)
    spent, less = (epsilon(one.privacy(adjacency), 1e-6) for one in (quick, steady))
    assert spent > less
    kind = "seeded_sign" if make is sign else "seeded_step"
    assert registry.find(kind).automatic["timing"](BALL, {}) == "constant"


def test_blocks_have_seeds_of_their_own() -> None:
    mechanism = sign(noise_multiplier=0.5, blocks=5)
    codes = encoded(mechanism, np.full(300, 0.05))
    assert codes.shape == (20,)
    assert len(np.unique(codes)) == 20
    assert mechanism.code_format().payload_bits(300) == 5 * 128


# -- unusual numbers -------------------------------------------------------------------------


@of_both
@pytest.mark.parametrize("radius", [1e-100, 1e-30, 1.0, 1e12])
def test_the_scale_of_the_clip_norm_does_not_matter(make: Any, radius: float) -> None:
    values = np.cos(np.arange(300)) * 0.05
    usual = make()
    scaled = make(L2Ball(dimension=300, radius=radius))
    np.testing.assert_array_equal(encoded(usual, values), encoded(scaled, values * radius))
    codes = encoded(usual, values)
    decoded = usual.decode(codes)
    near = 1e-12 * float(np.abs(decoded).max())  # signs cancel, and leave rounding
    np.testing.assert_allclose(scaled.decode(codes) / radius, decoded, rtol=1e-12, atol=near)
    for adjacency in Adjacency:
        assert scaled.privacy(adjacency) == usual.privacy(adjacency)


@of_both
@pytest.mark.parametrize(
    "values",
    [
        np.zeros(300),
        -np.zeros(300),
        np.full(300, 5e-324),
        np.full(300, 1e-310),
        np.full(300, 1e-200),
        np.eye(300)[7],
        -np.eye(300)[7] * 1e-160,
        np.zeros(300, dtype=np.int64),
        np.eye(300, dtype=np.int8)[0],
        np.full(300, 0.05, dtype=np.float32),
        [0.0] * 299 + [1],
    ],
    ids=range(11),
)
@pytest.mark.parametrize("length", ["kept", "scaled"])
def test_unusual_updates_are_sent(make: Any, values: Any, length: str) -> None:
    mechanism = make() if make is sign else make(length=length)
    with np.errstate(all="raise", under="ignore"):
        codes = encoded(mechanism, values)
        law = mechanism.law(values)
    assert codes.shape == (4,)
    assert np.isfinite(mechanism.decode(codes)).all()
    assert np.isfinite(law.mean()).all()
    assert (law.variance() >= 0.0).all()


@of_both
def test_nothing_is_sent_as_fair_seeds(make: Any) -> None:
    """The first candidate that is accepted regardless of what it expands to."""
    mechanism = make()
    law = mechanism.law(np.zeros(300))
    assert not law.mean().any()
    assert law.variance() == pytest.approx(np.full(300, mechanism.magnitude**2))


@of_both
def test_one_large_coordinate_of_many(make: Any) -> None:
    dimension = 100_000
    mechanism = make(L2Ball(dimension=dimension, radius=1.0))
    spike = np.eye(1, dimension, 4)[0]
    assert np.isfinite(mechanism.decode(encoded(mechanism, spike))).all()


# -- refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_multiplier", [0.6, 0.4, 0.2, 0.1])
@pytest.mark.parametrize("records", [1, 7])
@pytest.mark.parametrize("dimension", [1, 300, 10_000])
def test_too_few_blocks_are_refused_with_a_number_that_works(
    noise_multiplier: float, records: int, dimension: int
) -> None:
    domain = L2Ball(dimension=dimension, radius=1.0, records=records)
    noise = noise_multiplier * records
    if 1.0 / noise_multiplier < 2.0:
        noise *= 0.5
    with pytest.raises(ParameterError, match=r"use blocks = ") as refused:
        sign(domain, noise_multiplier=noise)
    named = re.search(r"use blocks = (\d+)", str(refused.value))
    assert named is not None
    blocks = int(named[1])
    found = sign(domain, noise_multiplier=noise, blocks=blocks)
    assert found.layout().blocks == blocks > 1


def test_too_many_blocks_are_refused_with_another_mechanism() -> None:
    with pytest.raises(ParameterError, match="gauss_hermite"):
        sign(noise_multiplier=1e-3)
    with pytest.raises(ParameterError, match="use fewer"):
        sign(L2Ball(dimension=4100, radius=1.0), blocks=120)


@pytest.mark.parametrize("blocks", [0, -1, 1.5, "two", 2**20])
def test_blocks_that_are_none_are_refused(blocks: Any) -> None:
    with pytest.raises(ParameterError, match="blocks"):
        sign(blocks=blocks)


@of_both
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"generator": "chacha20-2"}, "chacha20-1"),
        ({"generator": "aes"}, "chacha20-1"),
        ({"timing": "contant"}, "constant"),
        ({"timing": ""}, "variable"),
    ],
)
def test_names_that_this_side_does_not_know(make: Any, changes: Any, named: str) -> None:
    with pytest.raises(UnknownNameError, match=named):
        make(**changes)


def test_a_length_that_is_none() -> None:
    with pytest.raises(UnknownNameError, match="scaled"):
        step(length="long")


@of_both
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers(make: Any, bad: float) -> None:
    values = np.zeros(300)
    values[17] = bad
    with pytest.raises(DomainError, match="coordinate 17"):
        encoded(make(), values)


@of_both
@pytest.mark.parametrize("size", [0, 1, 3, 5, 8])
def test_seeds_of_another_length_are_refused(make: Any, size: int) -> None:
    mechanism = make()
    with pytest.raises(DomainError, match="16 bytes"):
        mechanism.decode(np.zeros(size, dtype=np.uint32))
    with pytest.raises(DomainError, match="16 bytes"):
        mechanism.signs(np.zeros((2, size), dtype=np.uint32))


@of_both
def test_a_message_that_was_cut_or_is_longer_is_refused(make: Any) -> None:
    mechanism = make()
    envelope = Envelope(
        parameter_hash=parameter_hash(mechanism),
        round=1,
        uplink=0,
        dimension=300,
        code_format=mechanism.code_format(),
    )
    message = seal(encoded(mechanism, np.zeros(300)), envelope)
    assert envelope.payload_bytes == 16
    for changed in (message[:-1], message[:-16], message + b"\0"):
        with pytest.raises(SottovoceError):
            open_sealed(changed, envelope)


# -- sampled records -------------------------------------------------------------------------


def test_where_other_records_remain_no_update_is_compared_with_fair_signs() -> None:
    own = SecretSample(rate=0.1, scheme="poisson", hidden_by="own-records")
    with pytest.raises(PrivacyError, match="replace-one"):
        release_event(step(), adjacency=Adjacency.ZERO_OUT, sample=own)
    release_event(step(), adjacency=Adjacency.REPLACE_ONE, sample=own)
    # Of one contribution signs have a step of the client's own, see below.
    with pytest.raises(PrivacyError, match="replace-one"):
        release_event(sign(), adjacency=Adjacency.ZERO_OUT, sample=own)
    release_event(sign(), adjacency=Adjacency.REPLACE_ONE, sample=own)
    several = sign(dataclasses.replace(BALL, records=2), blocks=4)
    sampled = release_event(several, adjacency=Adjacency.ZERO_OUT, sample=own)
    assert isinstance(sampled, Sampled)
    assert sampled.event == drop_zero_reference(several.privacy(Adjacency.ZERO_OUT))
    mechanism = sign()
    alone = mechanism.privacy(Adjacency.ZERO_OUT)
    beside = drop_zero_reference(alone)
    between = mechanism.privacy(Adjacency.REPLACE_ONE)
    assert pure_epsilon(beside) >= pure_epsilon(between)
    assert drop_zero_reference(between) == between


def test_examples_say_what_they_cost() -> None:
    for kind in ("seeded_sign", "seeded_step"):
        registration = registry.find(kind)
        for example in registration.examples:
            for domain in registration.example_domains:
                mechanism = registration.build(domain, example)
                for adjacency in Adjacency:
                    assert assumptions(mechanism.privacy(adjacency)) == ("chacha20",)


def test_means_of_many_records_are_refused_with_what_to_use() -> None:
    domain = L2Ball(dimension=650, radius=1.0, records=359)
    given = {"blocks": "auto", "generator": "auto", "timing": "auto"}
    with pytest.raises(ParameterError, match=r"got 359.*gauss_hermite.*client"):
        registry.find("seeded_sign").calibrated(
            domain,
            given,
            rounds=10,
            epsilon=8.0,
            delta=1e-5,
            event_of=ReleaseTerms(adjacency=Adjacency.ZERO_OUT),
        )
