"""All attacks on models whose weights say openly who was trained on."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sottovoce.auditing.attacks import canary, context, roc, shokri
from sottovoce.auditing.attacks.context import (
    AttackContext,
    Mask,
    QuerySearch,
    draw_training_masks,
    logit_confidences,
    own_attacks,
)
from sottovoce.auditing.attacks.roc import ScoresByMembership
from sottovoce.auditing.run_membership import roc_chart
from sottovoce.core.errors import DataError
from sottovoce.learning.task import Task

CANDIDATES, CLASSES, FEATURES = 240, 3, 300


def models_of(held: Mask, features: Tensor, labels: Tensor, gap: float) -> np.ndarray:
    """Linear models that lean toward their members by `gap`, with noise of their own."""
    generator = np.random.default_rng(2)
    models = []
    for mask in held:
        weight = np.zeros((CLASSES, FEATURES))
        for row in np.flatnonzero(mask):
            weight[labels[row]] += gap * features[row].numpy() / FEATURES
        weight += generator.normal(0.0, 0.05, weight.shape)
        models.append(np.concatenate([weight.ravel(), np.zeros(CLASSES)]))
    return np.stack(models)


def siege_of(gap: float, shadows: int = 24) -> tuple[AttackContext, Mask]:
    generator = np.random.default_rng(1)
    features = torch.from_numpy(generator.normal(size=(CANDIDATES, FEATURES)).astype(np.float32))
    labels = torch.arange(CANDIDATES) % CLASSES
    trained_on = draw_training_masks(shadows, CANDIDATES, generator)
    held = draw_training_masks(4, CANDIDATES, generator)[::2]
    task = Task(nn.Linear(FEATURES, CLASSES), features[:2], labels[:2])
    both = models_of(np.concatenate([trained_on, held]), features, labels, gap)
    siege = AttackContext(
        task=task,
        shadows=both[:shadows],
        trained_on=trained_on,
        targets=both[shadows:],
        features=features,
        labels=labels,
        query_search=QuerySearch(queries=2, steps=4, reach=0.1),
    )
    return siege, held


def test_members_that_are_remembered_are_found_by_every_attack() -> None:
    siege, held = siege_of(gap=1.0)
    seen: list[str] = []
    found = context.run_attacks(siege, own_attacks(), np.random.default_rng(0), seen.append)
    assert tuple(found) == tuple(seen) == own_attacks()
    for name, one in found.items():
        assert one.scores.shape == (2, CANDIDATES)
        verdicts = ScoresByMembership.of(one.scores.ravel(), held.ravel())
        assert roc.area(verdicts).low > 0.6, name
        assert roc.balanced_accuracy(verdicts, one.threshold).low > 0.55, name


def test_nothing_is_found_where_nothing_is_remembered() -> None:
    siege, held = siege_of(gap=0.0)
    found = context.run_attacks(siege, own_attacks(), np.random.default_rng(0))
    for name, one in found.items():
        verdicts = ScoresByMembership.of(one.scores.ravel(), held.ravel())
        # Wider than 95%: four attacks on one draw.
        area = roc.area(verdicts)
        assert abs(area.value - 0.5) < 1.5 * (area.high - area.value), name


def test_queries_climb_the_gap_within_their_ball() -> None:
    siege, _ = siege_of(gap=1.0)
    stack, inside = siege.task.tensor(siege.shadows), torch.from_numpy(siege.trained_on)
    made = canary.search_queries(
        siege.task,
        siege.shadows,
        siege.trained_on,
        siege.features,
        siege.labels,
        siege.query_search,
        seed=0,
    )
    assert made.shape == (2, CANDIDATES, FEATURES)
    assert float((made - siege.features).abs().max()) <= 0.1 + 1e-6
    assert not torch.equal(made[0], made[1])

    def mean_gap(query: Tensor) -> float:
        outputs = siege.task.stacked_outputs(stack, query.expand(len(stack), *query.shape))
        phi = logit_confidences(outputs, siege.labels.expand(len(stack), -1))
        return float(canary.standardized_gaps(phi, inside).mean())

    assert mean_gap(made[0]) > mean_gap(siege.features) + 0.3


def test_the_canary_attack_judges_with_shadows_that_made_no_query() -> None:
    makers, judges = canary.split_shadows(26)
    assert (makers.stop, judges.start, judges.stop) == (12, 12, 26)
    with pytest.raises(DataError, match=r"canary attack.* got 6"):
        canary.split_shadows(6)


def test_a_class_that_shadows_never_saw_is_an_error() -> None:
    siege, _ = siege_of(gap=1.0, shadows=4)
    outputs = torch.randn(4, CANDIDATES, CLASSES)
    unseen = siege.trained_on & (siege.labels.numpy() != 2)
    with pytest.raises(DataError, match="class 2 has 0 examples of members"):
        shokri.scores(outputs, unseen, outputs[:1], siege.labels, np.random.default_rng(0))


def test_a_chart_of_many_points_shows_the_attack_at_its_height() -> None:
    scores = np.random.default_rng(0).normal(size=5020)
    verdicts = ScoresByMembership.of(scores, np.arange(5020) >= 20)  # 20 are no members.
    highest = {x: y for x, y in zip(*roc.curve(verdicts), strict=True) if x > 0.0}
    (line, _) = roc_chart({"attack": verdicts}, title="").lines
    assert len(line.x) < 5000
    assert all(y == highest[x] for x, y in zip(line.x, line.y, strict=True))
    assert (line.x[-1], line.y[-1]) == (1.0, 1.0)
