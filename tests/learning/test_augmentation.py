"""Random flips and crops: what they do to an image, and where each client's changes come from."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sottovoce.core.domains import Floats
from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning.augmentation import UNCHANGED, Augmentation, changed_images
from sottovoce.learning.clients import Clients
from sottovoce.learning.minibatches import LocalSchedule, Minibatches
from sottovoce.learning.task import Task

SIZES = [5, 3, 4]
BOTH = Augmentation.of("flip_and_crop")


def images(count: int = sum(SIZES)) -> Floats:
    return np.random.default_rng(1).normal(size=(count, 2, 5, 6)).astype(np.float32)


def changed_by_hand(image: Floats, change: int) -> Floats:
    """The flip, then a window into the image with four pixels of zeros around it."""
    flip, place = divmod(change, 81)
    up, left = divmod(place, 9)
    padded = np.zeros((len(image), image.shape[1] + 8, image.shape[2] + 8), dtype=np.float32)
    padded[:, 4:-4, 4:-4] = image[:, :, ::-1] if flip else image
    return padded[:, up : up + image.shape[1], left : left + image.shape[2]]


def test_every_change_is_a_flip_and_a_window_of_the_padded_image() -> None:
    given = torch.from_numpy(images(1)).expand(162, -1, -1, -1)
    found = changed_images(given, torch.arange(162))
    expected = [changed_by_hand(images(1)[0], change) for change in range(162)]
    np.testing.assert_array_equal(found.numpy(), np.stack(expected))
    assert torch.equal(found[UNCHANGED], given[0])


@pytest.mark.parametrize(("kind", "count"), [("flip", 2), ("crop", 81), ("flip_and_crop", 162)])
def test_each_change_is_equally_likely(kind: str, count: int) -> None:
    draws = SeededRandomness(3).stream("x").draws(32, 400 * count)
    found = np.bincount(Augmentation.of(kind).changes(draws), minlength=162)
    assert (found > 0).sum() == count
    assert found.sum() == 400 * count
    assert np.abs(found[found > 0] - 400).max() < 6 * 20
    assert found[UNCHANGED] > 0


def drawn(clients: list[str], steps: Minibatches) -> Minibatches:
    return BOTH.draw(SeededRandomness(5), "run", 2, clients, steps)


def batches(sizes: list[int], names: list[str]) -> Minibatches:
    schedule = LocalSchedule(epochs=2, batch_size=2)
    return schedule.draw(SeededRandomness(5), "run", 2, names, sizes)


def test_the_changes_of_a_client_depend_on_no_other_and_leave_its_minibatches_alone() -> None:
    names = ["a", "b", "c"]
    steps = batches(SIZES, names)
    together, alone = drawn(names, steps), drawn(["b"], batches(SIZES[1:2], ["b"]))
    assert together.changes is not None
    np.testing.assert_array_equal(together.records, steps.records)
    ours, theirs = list(together.steps_of(1)), list(alone.steps_of(0))
    assert len(ours) == 4
    for (records, changes), (same, expected) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(records, same)
        np.testing.assert_array_equal(changes, expected)
    used = together.changes[together.records[:, None] != -1]
    assert len(np.unique(used)) > 5
    full = drawn(names, Minibatches.full(SIZES, steps=3))  # Each repeat has changes of its own.
    assert len({changes.tobytes() for _, changes in full.steps_of(0) if changes is not None}) == 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, kernel_size=3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def people() -> Clients:
    stops = np.cumsum(SIZES)
    shares = [np.arange(stop - size, stop) for stop, size in zip(stops, SIZES, strict=True)]
    return Clients(images(), np.arange(sum(SIZES)) % 3, shares)


def task(**given: Any) -> Task:
    return Task(network(), images(2), torch.tensor([0, 1]), **given)


def trained(own: Task, steps: Minibatches) -> Tensor:
    group = people()
    found = own.local_models(own.initial_model(), group, steps=steps, learning_rate=0.3)
    return torch.cat([rows for _, rows in found])


@pytest.mark.parametrize("form", ["minibatches", "full"])
def test_clients_trained_together_or_alone_see_the_same_images(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = people()
    plain = (
        batches(SIZES, group.names) if form == "minibatches" else Minibatches.full(SIZES, steps=3)
    )
    steps = drawn(group.names, plain)
    module, expected = network(), []
    for place, client in enumerate(group):
        module.load_state_dict(network().state_dict())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
        for records, changes in steps.steps_of(place):
            assert changes is not None
            every = zip(client.features[records].numpy(), changes.tolist(), strict=True)
            batch = np.stack([changed_by_hand(image, change) for image, change in every])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                module(torch.from_numpy(batch)), client.labels[records]
            )
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        expected.append(nn.utils.parameters_to_vector(module.parameters()).detach())
    alone = trained(task(one_by_one=True), steps)
    torch.testing.assert_close(alone, torch.stack(expected), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trained(task(), steps), alone, rtol=1e-4, atol=1e-5)
    # As on a GPU, where groups are padded with clients that take no step.
    padded = steps.padded(2)
    assert len(padded) == len(SIZES) + 2
    assert not list(padded.steps_of(len(SIZES)))
    assert not torch.allclose(trained(task(), plain), alone, rtol=1e-2)


def test_samples_that_are_no_images_are_refused() -> None:
    BOTH.check((3, 32, 32), "algorithm.augmentation")
    for shape in ((64,), (6, 5), (3, 4, 32)):
        with pytest.raises(ConfigError, match=r"changes images \(channels, height, width\)"):
            BOTH.check(shape, "algorithm.augmentation")
