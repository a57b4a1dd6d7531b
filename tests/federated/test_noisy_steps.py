"""Local DP-SGD: what a step sends, what a round costs, and what is refused."""

import dataclasses
import math
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution
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
from sottovoce.runs.check import check
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


FEW_AND_MANY = [(5, 2), pytest.param(6, 20, marks=pytest.mark.slow)]


@cache
def bounds_of_dp_accounting(
    sigma: float, rate: float, steps: int, delta: float
) -> tuple[float, float]:
    """Return an epsilon that is too small, and one that is too large by at most a few 1e-4."""
    low, high = (
        privacy_loss_distribution.from_gaussian_mechanism(
            sigma,
            value_discretization_interval=1e-4,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    )
    return low, high


@pytest.mark.parametrize(("seed", "settings"), FEW_AND_MANY)
def test_epsilon_equals_that_of_dp_accounting(seed: int, settings: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(settings):
        rate = float(np.exp(generator.uniform(np.log(0.01), np.log(0.5))))
        steps, rounds = int(generator.integers(1, 12)), int(generator.integers(1, 30))
        sigma, delta = float(generator.uniform(1.0, 4.0)), float(10 ** generator.uniform(-7, -3))
        records = int(generator.integers(1, 100))
        mechanism = Gaussian(
            input_domain=stepped(steps, rate, records=records), noise_multiplier=sigma
        )
        event = release_event(compressed(mechanism), adjacency=ZERO_OUT)
        ours = epsilon(Repeated(event=event, count=rounds), delta)
        low, high = bounds_of_dp_accounting(sigma, rate, steps * rounds, delta)
        assert low <= ours
        assert ours == pytest.approx(high, abs=1e-3 * max(1.0, high))


@pytest.mark.parametrize(
    ("seed", "settings"), [(5, 1), pytest.param(6, 10, marks=pytest.mark.slow)]
)
def test_specs_state_the_epsilon_of_dp_accounting_for_every_client(
    seed: int, settings: int
) -> None:
    """Rates and steps follow from the spec and from the records of clients, which are unequal."""
    generator = np.random.default_rng(seed)
    for _ in range(settings):
        batch, rate = int(generator.integers(6, 20)), float(generator.uniform(0.05, 0.5))
        epochs, steps = int(generator.integers(1, 3)), int(generator.integers(1, 12))
        rounds, by_batch, by_epochs, calibrated = 2, *(generator.random(3) < 0.5)
        noise = {"epsilon": 3.0} if calibrated else {}
        rates = {} if by_batch else {"record_sampling_rate": rate}
        plain = {
            "name": "x",
            "seed": 1,
            "rounds": rounds,
            "randomness": "seeded",
            "data": {
                "dataset": "digits",
                "num_train": 300,
                "clients": 3,
                "partition": {"kind": "dirichlet", "alpha": 1.0},
            },
            "model": {"kind": "linear"},
            "algorithm": {
                "kind": "fedavg",
                "server_learning_rate": 1.0,
                "local_work": "dp_sgd",
                "local_learning_rate": 0.5,
                **({"batch_size": batch} if by_batch else {}),
                **({"local_epochs": epochs} if by_epochs else {"local_steps": steps}),
            },
            "privacy": {"level": "sample", "clip_norm": 0.5, "delta": 1e-5, **rates, **noise},
            "mechanism": {
                "kind": "discrete_gaussian",
                "bits": 16,
                "steps_per_radius": "auto",
                **({} if calibrated else {"noise_multiplier": float(generator.uniform(1.5, 4.0))}),
            },
        }
        found = check(plain, timed=False)
        assert found.would_run, found.problems
        sigma = found.details["mechanism"]["noise_multiplier"]
        clients = load_inputs(parse(plain, "x")).clients
        for name, size in zip(clients.names, clients.sizes, strict=True):
            used = batch / size if by_batch else rate
            count = rounds * (math.ceil(epochs / used) if by_epochs else steps)
            low, high = bounds_of_dp_accounting(sigma, used, count, 1e-5)
            stated = found.cost_of(name).epsilon
            assert low <= stated
            assert stated == pytest.approx(high, abs=1e-3 * max(1.0, high))
            assert not calibrated or stated <= 3.0


# Laws of 4 to 256 codes, which are listed in full. In two steps there are the squares of these.
SMALL_LAWS: list[tuple[str, dict[str, float], str, int]] = [
    ("discrete_laplace", {"bits": 5, "steps_per_radius": 2.0, "noise_multiplier": 1.1}, "l2", 1),
    ("discrete_gaussian", {"bits": 5, "steps_per_radius": 2.0, "noise_multiplier": 0.9}, "l2", 1),
    ("gauss_hermite", {"levels": 4, "noise_multiplier": 1.0}, "l2", 1),
    ("discrete_laplace", {"bits": 4, "steps_per_radius": 1.5, "noise_multiplier": 1.0}, "l2", 2),
    ("discrete_gaussian", {"bits": 4, "steps_per_radius": 1.5, "noise_multiplier": 1.2}, "l2", 2),
    ("gauss_hermite", {"levels": 4, "noise_multiplier": 1.2}, "l2", 2),
    ("discrete_laplace", {"bits": 4, "steps_per_radius": 3.0, "noise_multiplier": 1.0}, "l1", 2),
]


@pytest.mark.parametrize("records", [1, 2])
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("kind", "given", "norm", "dimension"), SMALL_LAWS)
def test_epsilon_is_never_below_exact_enumeration_for_small_laws(
    kind: str,
    given: dict[str, float],
    norm: str,
    dimension: int,
    adjacency: Adjacency,
    records: int,
) -> None:
    """Two steps on a sample: the exact epsilon of all outcomes, in both orders of the neighbors."""
    rate, steps, delta = 0.3, 2 if dimension == 1 else 1, 1e-3
    domain: SteppedL1Ball | SteppedL2Ball = stepped(
        steps, rate, dimension=dimension, records=records
    )
    if norm == "l1":
        domain = SteppedL1Ball(
            dimension=dimension, radius=3.0, records=3 * records, steps=steps, sampling_rate=rate
        )
    mechanism = find(kind).build(domain, given)
    stated = epsilon(release_event(mechanism, adjacency=adjacency), delta)
    length = (1.0 - 2.0**-19) / records
    worst, generator = 0.0, np.random.default_rng(7)
    for turn in range(12):
        # The other records of the sample may contribute anything, here up to one length.
        direction = np.eye(dimension)[0] if turn % 2 else np.ones(dimension)
        direction = direction * (length / np.linalg.norm(direction, 1 if norm == "l1" else 2))
        others = generator.uniform(-1.0, 1.0) * direction if turn > 3 else 0.0 * direction
        moved = [others + direction]
        moved.append(others if adjacency is ZERO_OUT else others - direction)
        without, *present = (
            pmf_of(mechanism, mechanism.input_domain.project(x)) for x in (others, *moved)
        )
        p, q = (rate * one + (1.0 - rate) * without for one in present)
        if steps == 2:
            p, q = np.outer(p, p).ravel(), np.outer(q, q).ravel()
        worst = max(worst, exact_epsilon(p, q, delta), exact_epsilon(q, p, delta))
    assert worst <= stated + 1e-9
    # The comparison would notice half the cost, where the accountant is tight.
    assert worst > (0.5 if adjacency is ZERO_OUT else 0.25) * stated


def pmf_of(mechanism: Mechanism, values: np.ndarray) -> np.ndarray:
    law = mechanism.law(values)
    assert isinstance(law, FiniteLaw)
    found = np.ones(1)
    for row in law.table:
        found = np.outer(found, row).ravel()
    return found


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


class OneWeightForEach(nn.Module):
    """The outputs are plus and minus the weight of the record that the features point at."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one row for each sample."""
        return (x @ self.weights)[:, None] * torch.tensor([[1.0, -1.0]])


def noiseless_updates(
    work: NoisyLocalSteps, task: Task, clients: list[ClientData], *, number: int = 1
) -> np.ndarray:
    domains = [work.domain(task.dimension, one.num_samples) for one in clients]
    mechanisms = [find("no_privacy").build(domain, {}) for domain in domains]
    step = ClientStepInput(
        run="r",
        round=number,
        model=task.initial_model(),
        state={},
        randomness=SeededRandomness(3),
        mechanism_of=lambda i: mechanisms[i],
    )
    rows = [block for _, found in work.updates(task, clients, step) for block in found.blocks(99)]
    return torch.cat([block.double() for block in rows]).numpy()


@pytest.mark.parametrize("summation", ["exact", "float"])
@pytest.mark.parametrize("keys", [{"rate": 0.3}, {"batch_size": 4}, {"batch_size": 7}])
def test_records_are_sampled_with_the_rate_that_is_charged(
    keys: dict[str, Any], summation: Literal["exact", "float"]
) -> None:
    work = NoisyLocalSteps(clip_norm=1e-3, learning_rate=1.0, summation=summation, **keys)
    task = Task(OneWeightForEach(), torch.eye(40)[:2], torch.zeros(2, dtype=torch.int64))
    sizes, rounds = (7, 40), 150
    clients = [
        ClientData(name=f"c{n}", features=torch.eye(40)[:n], labels=torch.zeros(n).long())
        for n in sizes
    ]
    seen = np.stack(
        [noiseless_updates(work, task, clients, number=number) != 0.0 for number in range(rounds)]
    )
    for place, size in enumerate(sizes):
        rate = work.domain(40, size).sampling_rate
        assert rate == (0.3 if "rate" in keys else keys["batch_size"] / size)
        own = seen[:, place, :size]
        assert not seen[:, place, size:].any()
        deviation = math.sqrt(rate * (1.0 - rate) / own.size)
        assert abs(own.mean() - rate) <= 4.5 * deviation
        # Samples are independent between records, too, so their sizes vary as they should.
        sizes_of_samples = own.sum(axis=1)
        if rate < 1.0:
            spread = math.sqrt(size * rate * (1.0 - rate))
            assert sizes_of_samples.std() == pytest.approx(spread, rel=0.25)


@pytest.mark.parametrize("summation", ["exact", "float"])
@pytest.mark.parametrize("geometry", ["l2", "l1"])
@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("keys", [{"rate": 1.0}, {"rate": 0.5}, {"batch_size": 2}])
def test_a_record_moves_the_input_of_a_step_by_its_sensitivity_at_most(
    keys: dict[str, Any],
    normalizes: bool,
    geometry: Literal["l2", "l1"],
    summation: Literal["exact", "float"],
) -> None:
    """Also if the sample is larger than expected, and whatever the record is."""
    work = NoisyLocalSteps(
        clip_norm=1e-2,
        geometry=geometry,
        normalizes=normalizes,
        learning_rate=1.0,
        summation=summation,
        **keys,
    )
    task, client = make_task(), make_client("c", 5)
    domain, order = work.domain(task.dimension, 5), 2 if geometry == "l2" else 1
    farthest = dict.fromkeys(Adjacency, 0.0)
    for number in range(1, 13):
        before = noiseless_updates(work, task, [client], number=number)[0]
        found = []
        for value in (math.nan, 1e4, -30.0):
            features, labels = client.features.clone(), client.labels.clone()
            features[2], labels[2] = value, 1 - labels[2]
            changed = dataclasses.replace(client, features=features, labels=labels)
            found.append(noiseless_updates(work, task, [changed], number=number)[0])
        none, *others = found  # A gradient that is not finite counts as zero.
        for adjacency, pairs in (
            (ZERO_OUT, [(none, one) for one in (before, *others)]),
            (Adjacency.REPLACE_ONE, [(before, others[0]), (before, others[1]), tuple(others)]),
        ):
            lengths = [float(np.linalg.norm(one - other, order)) for one, other in pairs]
            farthest[adjacency] = max(farthest[adjacency], *lengths)
    rounding = 1e-6 if summation == "exact" else 1e-4
    for adjacency, length in farthest.items():
        allowed = domain.sensitivity(adjacency)
        assert 0.5 * allowed < length <= allowed * (1.0 + rounding)


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


MODULES = """
from torch import nn
from torch.nn.functional import batch_norm


class Functional(nn.Linear):
    def forward(self, x):
        return batch_norm(super().forward(x), None, None, training=True)


class Branches(nn.Linear):
    def forward(self, x):
        found = super().forward(x)
        return found if float(found.sum()) > 0.0 else 2.0 * found


def normalized(*, input_shape, num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))


def functional(*, input_shape, num_outputs):
    return nn.Sequential(nn.Flatten(), Functional(64, 10))


def branches(*, input_shape, num_outputs):
    return nn.Sequential(nn.Flatten(), Branches(64, 10))
"""


@pytest.mark.parametrize(
    ("change", "alternative"),
    [
        ("algorithm.batch_size=5000", "lower it to at most 288"),
        ("algorithm.local_steps=0", "from 1 to"),
        ("algorithm.local_optimizer.kind=adamx", "did you mean 'adamax'"),
        ("model.factory=refused_modules:normalized", "GroupNorm"),
        ("model.factory=refused_modules:functional", "GroupNorm"),
        ("model.factory=refused_modules:branches", "privacy.level = 'client'"),
    ],
)
def test_nothing_is_left_of_a_run_that_is_refused(
    change: str, alternative: str, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above all no ledger in which clients have paid."""
    (tmp_path / "refused_modules.py").write_text(MODULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    example = Path(__file__).parents[2] / "examples" / "local_dp_sgd.toml"
    words: list[Any] = ["run", example, "--out", tmp_path / "out", "--set", change]
    if change.startswith("model"):
        words += ["--set", "model.kind=module", "--allow-code"]
    shown = cli(*words)
    assert shown.code == 2
    assert alternative in " ".join(shown.err.split())
    assert not (tmp_path / "out").exists()
