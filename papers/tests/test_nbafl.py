"""NbAFL: the published formulas, models instead of updates, noise from the server."""

import math

import mpmath
import numpy as np
import pytest
import torch
from linear_task import make_task

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness, SystemRandomness
from sottovoce.federated.algorithms.algorithm import AggregatedUplink, ClientStepInput
from sottovoce.federated.rounds import zero_nonfinite_rows
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task
from sottovoce_papers.algorithms.nbafl import NbAfl, PublishedNoise


def data(seed: int, size: int = 8, scale: float = 1.0) -> ClientData:
    generator = torch.Generator().manual_seed(seed)
    return ClientData(
        name=f"client {seed}",
        features=scale * torch.randn(size, 5, generator=generator),
        labels=torch.randint(0, 3, (size,), generator=generator),
    )


def an_algorithm(*, proximal_weight: float = 0.0, downlink_stddev: float = 0.0) -> NbAfl:
    return NbAfl(
        clip_norm=2.0,
        local_steps=4,
        local_learning_rate=0.3,
        proximal_weight=proximal_weight,
        downlink_stddev=downlink_stddev,
        randomness=SeededRandomness(3),
    )


def sent_by(task: Task, start: Vector, clients: list[ClientData]) -> list[tuple[int, list[Vector]]]:
    """(position of the first client, what the clients hand on), block by block."""
    step = ClientStepInput(run="r", round=1, model=start, state={}, randomness=SeededRandomness(0))
    blocks = an_algorithm().client_steps(task, clients, step)
    return [(block.start, zero_nonfinite_rows(block.uplinks[0])) for block in blocks]


def noise(*, rounds: int, clients: int) -> PublishedNoise:
    return PublishedNoise(
        clip_norm=2.0, delta=1e-3, rounds=rounds, clients=clients, smallest_dataset=40
    )


# -- the published formulas ----------------------------------------------------------------


def test_the_uplink_noise_is_the_papers() -> None:
    with mpmath.workdps(30):
        constant = mpmath.sqrt(2 * mpmath.log(mpmath.mpf("1.25") / mpmath.mpf("0.001")))
        exact = float(constant * 25 * (2 * 2 / mpmath.mpf(40)) / 8)  # c L (2C/m)/epsilon
    published = noise(rounds=25, clients=50)
    assert published.uplink_stddev(8.0, 25) == pytest.approx(exact, rel=1e-12)
    assert published.epsilon(exact, 25) == pytest.approx(8.0, rel=1e-12)
    assert published.epsilon(exact, 5) == pytest.approx(1.6, rel=1e-12)


@pytest.mark.parametrize(
    ("rounds", "clients", "exposures", "missing"),
    [(25, 50, 25, 0), (10, 4, 5, 0), (11, 4, 5, 21), (100, 9, 10, 9100), (30, 1, 30, 0)],
)
def test_the_downlink_noise_is_the_papers_and_starts_where_it_says(
    rounds: int, clients: int, exposures: int, missing: int
) -> None:
    """2 c C sqrt(T^2 - L^2 N)/(m N epsilon) where T > L sqrt N."""
    found = noise(rounds=rounds, clients=clients).downlink_stddev(8.0, exposures)
    constant = math.sqrt(2.0 * math.log(1.25e3))
    expected = 2.0 * constant * 2.0 * math.sqrt(missing) / (40 * clients * 8.0)
    assert found == pytest.approx(expected, rel=1e-12)
    assert (found > 0.0) == (rounds > exposures * math.sqrt(clients))


# -- clients -------------------------------------------------------------------------------


def test_the_uplink_is_the_model_after_local_steps() -> None:
    task, clients = make_task(), [data(1), data(2)]
    start = np.random.default_rng(5).normal(size=task.dimension)
    ((first, sent),) = sent_by(task, start, clients)
    ((_, trained),) = task.local_models(start, clients, steps=4, learning_rate=0.3)
    assert first == 0
    np.testing.assert_array_equal(sent, trained.to(torch.float64).numpy())
    assert (np.linalg.norm(np.array(sent) - start, axis=1) > 0.01).all()


def test_the_proximal_term_pulls_towards_the_servers_model() -> None:
    """One step has no pull; the second is w1 - rate (gradient + mu (w1 - w0))."""
    task, client = make_task(), data(1)
    start = np.random.default_rng(5).normal(size=task.dimension)

    def after(
        steps: int, proximal_weight: float
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        ((_, local),) = task.local_models(
            start, [client], steps=steps, learning_rate=0.3, proximal_weights=[proximal_weight]
        )
        return np.asarray(local[0].to(torch.float64).numpy())

    np.testing.assert_array_equal(after(1, 0.7), after(1, 0.0))
    expected = after(2, 0.0) - 0.3 * 0.7 * (after(1, 0.0) - start)
    np.testing.assert_allclose(after(2, 0.7), expected, atol=1e-6)
    near = [np.linalg.norm(after(20, weight) - start) for weight in (0.0, 0.5, 2.0)]
    assert near[0] > near[1] > near[2]


def test_a_diverged_client_sends_zero() -> None:
    task = make_task()
    bad = data(1, scale=math.inf)
    ((_, (vector,)),) = sent_by(task, np.zeros(task.dimension), [bad])
    assert not vector.any()


def test_a_whole_model_is_protected_whatever_its_number_of_samples() -> None:
    algorithm = an_algorithm()
    assert algorithm.unit is Unit.CLIENT
    for size in (3, 300):
        assert algorithm.weight(size) == 1.0
        assert algorithm.domain(7, size).sensitivity(Adjacency.REPLACE_ONE) == 4.0


# -- server --------------------------------------------------------------------------------


def test_the_mean_replaces_the_model() -> None:
    algorithm, model = an_algorithm(), np.ones(6)
    state = algorithm.initialize(model)
    mean = np.linspace(0.0, 1.0, 6)
    following, _ = algorithm.server_step(model, [AggregatedUplink(mean=mean)], state)
    np.testing.assert_array_equal(following, mean)


def test_downlink_noise_is_gaussian_new_each_round_and_repeats_with_its_seed() -> None:
    algorithm, model = an_algorithm(downlink_stddev=0.5), np.zeros(20_000)
    first, state = algorithm.server_step(
        model, [AggregatedUplink(mean=model)], algorithm.initialize(model)
    )
    second, _ = algorithm.server_step(first, [AggregatedUplink(mean=model)], state)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    for drawn in (first, second):
        assert np.std(drawn) == pytest.approx(0.5, rel=0.03)
        assert abs(np.mean(drawn)) < 0.02
        assert np.mean(np.abs(drawn) < 0.5) == pytest.approx(0.6827, abs=0.015)
    # As after a resume: the state alone says which draws come next.
    again, _ = an_algorithm(downlink_stddev=0.5).server_step(
        first, [AggregatedUplink(mean=model)], state
    )
    np.testing.assert_array_equal(again, second)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_norm", 0.0),
        ("local_steps", 0),
        ("local_learning_rate", -1.0),
        ("proximal_weight", -0.1),
        ("downlink_stddev", math.nan),
    ],
)
def test_bad_parameters_are_refused(name: str, value: float) -> None:
    good = {
        "clip_norm": 1.0,
        "local_steps": 1,
        "local_learning_rate": 0.1,
        "proximal_weight": 0.0,
        "downlink_stddev": 0.0,
    }
    NbAfl(**good, randomness=SystemRandomness())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=name):
        NbAfl(**{**good, name: value}, randomness=SystemRandomness())  # type: ignore[arg-type]
