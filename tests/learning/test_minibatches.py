import numpy as np
import pytest

from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness, SystemRandomness
from sottovoce.learning.minibatches import LocalSchedule, Minibatches


def drawn(schedule: LocalSchedule, sizes: list[int], *, number: int = 1) -> Minibatches:
    names = [f"client-{place}" for place in range(len(sizes))]
    return schedule.draw(SeededRandomness(5), "run", number, names, sizes)


@pytest.mark.parametrize("sizes", [[25, 3, 10, 1, 0], [4], [20, 20]])
def test_an_epoch_uses_every_record_once_in_batches_of_which_the_last_may_be_smaller(
    sizes: list[int],
) -> None:
    found = drawn(LocalSchedule(epochs=2, batch_size=10), sizes)
    for client, size in enumerate(sizes):
        batches = found.of_client(client)
        steps = -(-size // 10)
        assert len(batches) == 2 * steps
        for epoch in (batches[:steps], batches[steps:]):
            assert [len(batch) for batch in epoch[:-1]] == [10] * max(0, steps - 1)
            every = np.concatenate([*epoch, np.array([], dtype=np.int64)])
            assert sorted(every.tolist()) == list(range(size))


def test_steps_continue_over_reshuffled_epochs() -> None:
    found = drawn(LocalSchedule(steps=5, batch_size=2), [5]).of_client(0)
    assert [len(batch) for batch in found] == [2, 2, 1, 2, 2]
    assert sorted(np.concatenate(found[:3]).tolist()) == [0, 1, 2, 3, 4]
    assert len(set(np.concatenate(found[3:]).tolist())) == 4


def test_batches_depend_on_the_client_and_the_round_and_not_on_the_other_clients() -> None:
    schedule = LocalSchedule(epochs=1, batch_size=4)
    both, alone = drawn(schedule, [30, 30]), drawn(schedule, [30])
    np.testing.assert_array_equal(both.records[0], alone.records[0])
    assert (both.records[0] != both.records[1]).any()
    assert (alone.records != drawn(schedule, [30], number=2).records).any()


def test_system_randomness_gives_other_batches_each_time() -> None:
    schedule = LocalSchedule(epochs=1, batch_size=50)
    one, other = (schedule.draw(SystemRandomness(), "run", 1, ["a"], [50]) for _ in range(2))
    assert (one.records != other.records).any()


def test_orders_of_records_are_uniform() -> None:
    schedule = LocalSchedule(epochs=600, batch_size=3)
    orders = drawn(schedule, [3]).records.reshape(600, 3)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert counts.min() > 60


def test_without_a_batch_size_every_step_uses_all_records() -> None:
    found = drawn(LocalSchedule(epochs=3), [2, 4])
    assert found.repeats == 3
    assert [batch.tolist() for batch in found.of_client(0)] == [[0, 1]]
    assert LocalSchedule(epochs=3).num_steps(100) == 3


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"steps": 2, "epochs": 1}, "both say how long"),
        ({"steps": 0}, "local_steps must"),
        ({"epochs": 0}, "local_epochs must"),
        ({"batch_size": 0}, "batch_size must"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(given: dict[str, int], problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        LocalSchedule(**given)
