"""Local DP-SGD: what a step sends, what a round costs, and what is refused."""

import dataclasses
import math
from typing import Literal

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from torch import nn

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import SteppedL1Ball, SteppedL2Ball
from sottovoce.core.errors import ConfigError, ParameterError, PrivacyError, SottovoceError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.noisy_steps import NoisyLocalSteps
from sottovoce.learning.augmentation import UNCHANGED, Augmentation, Draws
from sottovoce.learning.clients import ClientData
from sottovoce.learning.optimizers import OptimizerSettings
from sottovoce.learning.task import Task
from sottovoce.mechanisms.compressed_update import (
    MESSAGE_BITS,
    MessageBits,
    compressed,
)
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.mechanism import FiniteLaw, Mechanism
from sottovoce.mechanisms.no_privacy import NoPrivacy
from sottovoce.mechanisms.registry import find, kind_of, parameter_hash, parameters_of
from sottovoce.mechanisms.release import (
    OnlySums,
    ReleaseTerms,
    SecretSample,
    ShuffledMessages,
    local_event,
    release_event,
)
from sottovoce.privacy.accounting import epsilon
from sottovoce.privacy.events import GaussianNoise, NonPrivate, Repeated, Sampled
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import parse
from sottovoce.runs.resolve import resolve

ZERO_OUT = Adjacency.ZERO_OUT


def stepped(steps: int, rate: float, *, dimension: int = 4, records: int = 10) -> SteppedL2Ball:
    return SteppedL2Ball(
        dimension=dimension, radius=1.0, records=records, steps=steps, sampling_rate=rate
    )


def make_task() -> Task:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return Task(module, torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


def make_client(name: str, size: int) -> ClientData:
    generator = torch.Generator().manual_seed(size)
    features = torch.randn(size, 3, generator=generator)
    return ClientData(name=name, features=features, labels=(features[:, 0] > 0).long())


# -- what a round costs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "settings"), [(5, 2), pytest.param(6, 20, marks=pytest.mark.slow)]
)
def test_epsilon_equals_that_of_dp_accounting(seed: int, settings: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(settings):
        rate = float(np.exp(generator.uniform(np.log(0.01), np.log(0.5))))
        steps, rounds = int(generator.integers(1, 12)), int(generator.integers(1, 60))
        sigma = float(generator.uniform(0.8, 4.0))
        mechanism = Gaussian(input_domain=stepped(steps, rate), noise_multiplier=sigma)
        event = release_event(compressed(mechanism), adjacency=ZERO_OUT)
        ours = epsilon(Repeated(event=event, count=rounds), 1e-5)
        accountant = pld_privacy_accountant.PLDAccountant()
        sampled = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
        accountant.compose(sampled, steps * rounds)
        theirs = accountant.get_epsilon(1e-5)
        assert ours == pytest.approx(theirs, abs=1e-3 * max(1.0, theirs))


def test_epsilon_is_never_below_exact_enumeration_for_small_laws() -> None:
    """Two steps of a sampled one-coordinate table: the exact curve of all outcomes, both orders."""
    rate, steps, delta = 0.3, 2, 1e-3
    one = dataclasses.replace(stepped(steps, rate, dimension=1), records=1)
    for kind, given in (
        ("discrete_laplace", {"bits": 5, "steps_per_radius": 2.0, "noise_multiplier": 1.1}),
        ("discrete_gaussian", {"bits": 5, "steps_per_radius": 2.0, "noise_multiplier": 0.9}),
        ("gauss_hermite", {"levels": 4, "noise_multiplier": 1.0}),
    ):
        mechanism = find(kind).build(one, given)
        stated = epsilon(release_event(mechanism, adjacency=ZERO_OUT), delta)
        worst = 0.0
        for other in np.linspace(-1.0, 1.0, 9) * (1 - 2**-19):
            # The rest of the sample may contribute anything: the neighbor has `other` without it.
            for shift in (-1.0, 1.0):
                moved = other + shift
                if abs(moved) > 1.0 - 2**-20:
                    continue
                without, present = pmf_of(mechanism, other), pmf_of(mechanism, moved)
                mixed = rate * present + (1 - rate) * without
                p, q = np.outer(mixed, mixed).ravel(), np.outer(without, without).ravel()
                worst = max(worst, exact_epsilon(p, q, delta), exact_epsilon(q, p, delta))
        assert worst <= stated + 1e-9
        assert worst > 0.5 * stated  # The comparison would notice half the cost.


def pmf_of(mechanism: Mechanism, value: float) -> np.ndarray:
    law = mechanism.law(np.array([value]))
    assert isinstance(law, FiniteLaw)
    return np.asarray(law.table[0])


def exact_epsilon(p: np.ndarray, q: np.ndarray, delta: float) -> float:
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        over = np.maximum(p - math.exp(middle) * q, 0.0).sum() > delta
        low, high = (middle, high) if over else (low, middle)
    return high


def test_the_message_is_charged_as_its_steps_and_nothing_else() -> None:
    gaussian = Gaussian(input_domain=stepped(7, 0.2), noise_multiplier=2.0)
    for bits in MESSAGE_BITS:
        event = release_event(compressed(gaussian, bits), adjacency=ZERO_OUT)
        inner = Sampled(
            event=GaussianNoise(mu=0.5, adjacency=ZERO_OUT),
            rate=0.2,
            scheme="poisson",
            hidden_by="own-records",
        )
        assert event == Repeated(event=inner, count=7)
        assert compressed(gaussian, bits).privacy(ZERO_OUT) == event
    free = NoPrivacy(input_domain=stepped(7, 0.2))
    assert isinstance(local_event(compressed(free), adjacency=ZERO_OUT), NonPrivate)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_channels_and_further_samples_are_refused(adjacency: Adjacency) -> None:
    domain = dataclasses.replace(stepped(2, 0.5), records=1)
    message = compressed(Gaussian(input_domain=domain, noise_multiplier=1.0))
    for hidden in (OnlySums(minimum_clients=5), ShuffledMessages(minimum_clients=5)):
        with pytest.raises(PrivacyError, match="channel 'direct'"):
            ReleaseTerms(adjacency=adjacency, visibility=hidden)(message)
    sample = SecretSample(rate=0.5, scheme="poisson", hidden_by="own-records")
    with pytest.raises(PrivacyError, match="leave the sample out"):
        release_event(message, adjacency=adjacency, sample=sample)


def test_messages_of_other_steps_have_another_hash() -> None:
    base = Gaussian(input_domain=stepped(2, 0.5), noise_multiplier=1.0)
    more = dataclasses.replace(base, input_domain=stepped(3, 0.5))
    messages: list[Mechanism] = [
        compressed(base),
        compressed(base, 1),
        compressed(more),
    ]
    assert len({parameter_hash(one) for one in [base, *messages]}) == 4
    assert kind_of(messages[0]) == "gaussian"
    assert parameters_of(messages[1]) == {"noise_multiplier": 1.0}


# -- what a step computes -------------------------------------------------------------------------


def ball_of(work: NoisyLocalSteps, task: Task, size: int) -> SteppedL2Ball:
    domain = work.domain(task.dimension, size)
    assert isinstance(domain, SteppedL2Ball)
    return domain


def updates(work: NoisyLocalSteps, sizes: list[int], noise: float | None = None) -> np.ndarray:
    task, clients = make_task(), [make_client(f"c{n}", n) for n in sizes]
    domains = [ball_of(work, task, n) for n in sizes]
    mechanisms = [
        NoPrivacy(input_domain=one)
        if noise is None
        else Gaussian(input_domain=one, noise_multiplier=noise)
        for one in domains
    ]
    step = ClientStepInput(
        run="r",
        round=1,
        model=task.initial_model(),
        state={},
        randomness=SeededRandomness(3),
        mechanism_of=lambda i: compressed(mechanisms[i]),
    )
    rows = [block for _, found in work.updates(task, clients, step) for block in found.blocks(99)]
    return torch.cat([block.double() for block in rows]).numpy()


@pytest.mark.parametrize("kind", ["SGD", "RMSprop"])
def test_noiseless_steps_on_all_records_are_clipped_gradient_descent(kind: str) -> None:
    work = NoisyLocalSteps(
        clip_norm=0.3,
        steps=3,
        rate=1.0,
        learning_rate=0.7,
        optimizer=OptimizerSettings.of({"kind": kind}),
    )
    task, sizes = make_task(), [5, 8]
    expected = []
    for size in sizes:
        client, model = make_client(f"c{size}", size), torch.from_numpy(task.initial_model())
        optimizer = getattr(torch.optim, kind)([model], lr=0.7)
        for _ in range(3):
            total = torch.zeros(task.dimension, dtype=torch.float64)
            for x, y in zip(client.features, client.labels, strict=True):
                gradient = task.gradient(model.float(), x[None], y[None]).double()
                total += gradient * min(1.0, 0.3 / float(gradient.norm()))
            model.grad = total / size
            optimizer.step()
        expected.append((model - task.tensor(task.initial_model()).double()).numpy())
    for summation in ("exact", "float"):
        found = updates(dataclasses.replace(work, summation=summation), sizes)
        np.testing.assert_allclose(found, expected, atol=2e-6 if kind == "SGD" else 1e-3)


def test_both_ways_of_computing_have_the_same_law() -> None:
    """Sampled, noisy steps: means and spreads over many clients with the same records agree."""
    work = NoisyLocalSteps(clip_norm=0.5, steps=2, batch_size=3, learning_rate=1.0)
    task = make_task()
    data = make_client("x", 6)
    clients = [dataclasses.replace(data, name=f"c{i}") for i in range(300)]
    mechanism = Gaussian(input_domain=ball_of(work, task, 6), noise_multiplier=0.7)
    found = {}
    for summation in ("exact", "float"):
        step = ClientStepInput(
            run="r",
            round=1,
            model=task.initial_model(),
            state={},
            randomness=SeededRandomness(4),
            mechanism_of=lambda _: mechanism,
        )
        own = dataclasses.replace(work, summation=summation)
        blocks = [b for _, rows in own.updates(task, clients, step) for b in rows.blocks(10**6)]
        found[summation] = torch.cat([block.double() for block in blocks]).numpy()
    means = {name: rows.mean(axis=0) for name, rows in found.items()}
    spreads = {name: rows.std(axis=0) for name, rows in found.items()}
    error = 5 * spreads["exact"].max() * math.sqrt(2 / 300)
    np.testing.assert_allclose(means["float"], means["exact"], atol=error)
    np.testing.assert_allclose(spreads["float"], spreads["exact"], rtol=0.3)


class Mirror(Augmentation):
    """Mirror every image."""

    def changes(self, draws: Draws) -> Draws:
        return draws % 1 + UNCHANGED + 81


@pytest.mark.parametrize("summation", ["exact", "float"])
def test_each_gradient_is_that_of_one_changed_copy(summation: Literal["exact", "float"]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, kernel_size=3), nn.Flatten(), nn.Linear(18, 2))
    images = torch.randn(7, 1, 5, 5)
    task = Task(module, images, torch.zeros(7, dtype=torch.int64))
    plain = NoisyLocalSteps(
        clip_norm=0.3, steps=3, rate=0.8, learning_rate=0.7, summation=summation
    )
    mechanism = NoPrivacy(input_domain=ball_of(plain, task, 7))
    step = ClientStepInput(
        run="r",
        round=1,
        model=task.initial_model(),
        state={},
        randomness=SeededRandomness(3),
        mechanism_of=lambda _: mechanism,
    )
    found = []
    for work, given in (
        (dataclasses.replace(plain, augmentation=Mirror(flips=True, crops=False)), images),
        (plain, images.flip(3)),
        (plain, images),
    ):
        client = ClientData(name="c", features=given, labels=torch.arange(7) % 2)
        ((_, rows),) = work.updates(task, [client], step)
        found.append(torch.cat(list(rows.blocks(1))))
    torch.testing.assert_close(found[0], found[1])
    assert not torch.allclose(found[0], found[2], rtol=1e-2)


def test_pulls_keep_clients_close_to_the_shared_model() -> None:
    free = NoisyLocalSteps(clip_norm=1.0, steps=20, rate=1.0, learning_rate=0.5)
    near = dataclasses.replace(free, proximal_weight=0.5, penalties={"c5": 0.5})
    for summation in ("exact", "float"):
        far = np.linalg.norm(
            updates(dataclasses.replace(free, summation=summation), [5, 8]), axis=1
        )
        pulled = np.linalg.norm(
            updates(dataclasses.replace(near, summation=summation), [5, 8]), axis=1
        )
        assert (pulled < far).all()
        assert pulled[0] / far[0] < pulled[1] / far[1]


# -- messages -------------------------------------------------------------------------------------


def privatized(message: Mechanism, vector: np.ndarray) -> np.ndarray:
    return np.asarray(message.privatize(vector))  # type: ignore[attr-defined]


def test_compressed_messages_decode_without_bias() -> None:
    charged = Gaussian(input_domain=stepped(1, 0.5, dimension=64), noise_multiplier=1.0)
    vector = np.random.default_rng(0).normal(size=64)
    settings: list[tuple[MessageBits, float]] = [(32, 1e-6), (4, 0.02), (2, 0.1)]
    for bits, atol in settings:
        message = compressed(charged, bits)
        decoded = [message.decode(privatized(message, vector)) for _ in range(600)]
        np.testing.assert_allclose(np.mean(decoded, axis=0), vector, atol=5 * atol)
        assert message.law(vector).variance() == pytest.approx(np.var(decoded, axis=0), abs=0.3)
    one = compressed(charged, 1)
    single = one.decode(privatized(one, vector))
    assert single @ vector == pytest.approx(vector @ vector, rel=1e-6)
    assert one.code_format().payload_bits(64) == 64 + 32
    assert not one.decode(privatized(one, np.zeros(64))).any()
    codes = np.concatenate([np.zeros(64), np.ones(32)]).astype(np.uint8)  # The scale is not finite.
    with pytest.raises(SottovoceError, match="scale"):
        one.decode(codes)


# -- specs ----------------------------------------------------------------------------------------


def test_l1_ball_holds_the_sum_of_all_records() -> None:
    work = NoisyLocalSteps(clip_norm=2.0, geometry="l1", batch_size=4, learning_rate=1.0)
    domain = work.domain(dimension=5, num_samples=10)
    assert isinstance(domain, SteppedL1Ball)
    assert domain.radius == 8.0
    assert domain.sensitivity(ZERO_OUT) == 0.5
    assert domain.sampling_rate == 0.4
    with pytest.raises(ConfigError, match="L1"):
        work.domain(dimension=10**7, num_samples=10)


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"batch_size": 31}, "'algorithm.batch_size' = 31"),
        ({"batch_size": 0}, "batch_size"),
        ({"local_steps": 0}, "local_steps"),
        ({"message_bits": 3}, "message_bits must be 32"),
        ({"local_learning_rate": None}, "needs 'algorithm.local_learning_rate'"),
        ({"clip_geometry": "linf"}, "clip_geometry"),
        ({"level": "client"}, "set privacy.level = 'sample'"),
        ({"local_work": "auto"}, "local_work = 'dp_sgd'"),
        ({"gradient_clip": 1.0}, "drop 'algorithm.gradient_clip'"),
        ({"local_optimizer": {"kind": "lbfgs"}}, "use one of adadelta"),
        ({"proximal_weight": 0.1, "local_steps": 1}, "takes only one; raise"),
        ({"augmentation": "flip"}, "'algorithm.augmentation' changes images"),
        ({"rate": 0.5}, "both say how many records"),
        ({"channel": {"kind": "secure_sum", "minimum_clients": 2}}, "channel 'direct'"),
    ],
)
def test_mistakes_are_refused_with_a_remedy(keys: dict[str, object], error: str) -> None:
    level, rate = keys.pop("level", "sample"), keys.pop("rate", 1.0)
    channel = keys.pop("channel", {"kind": "direct"})
    algorithm = {
        "kind": "fedavg",
        "server_learning_rate": 1.0,
        "local_work": "dp_sgd",
        "local_steps": 2,
        "batch_size": 10,
        "local_learning_rate": 0.5,
        **keys,
    }
    plain = {
        "name": "x",
        "seed": 1,
        "rounds": 1,
        "data": {"dataset": "digits", "num_train": 60, "clients": 2},
        "model": {"kind": "linear"},
        "algorithm": {key: value for key, value in algorithm.items() if value is not None},
        "privacy": {
            "level": level,
            "clip_norm": 1.0,
            "delta": 1e-5,
            "epsilon": 5.0,
            "record_sampling_rate": rate,
        },
        "mechanism": {"kind": "discrete_gaussian", "bits": 16, "steps_per_radius": "auto"},
        "channel": channel,
    }
    with pytest.raises((ConfigError, ParameterError, PrivacyError), match=error):
        resolve(load_inputs(parse(plain, "x")))
