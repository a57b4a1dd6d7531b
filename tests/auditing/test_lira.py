import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from sottovoce.auditing.attacks import lira, roc
from sottovoce.auditing.attacks.context import draw_training_masks
from sottovoce.auditing.attacks.lira import Normal
from sottovoce.auditing.attacks.roc import ScoresByMembership
from sottovoce.core.errors import DataError

RNG = np.random.default_rng


def world(shadows: int, candidates: int, gap: float, queries: int = 1) -> tuple[np.ndarray, ...]:
    """Confidences with a level of their own for each candidate, and `gap` more for members."""
    generator = RNG(1)
    trained_on = draw_training_masks(shadows, candidates, generator)
    level = generator.normal(0.0, 5.0, (candidates, 1))
    phi = (
        level + gap * trained_on[:, :, None] + generator.normal(size=(shadows, candidates, queries))
    )
    member = generator.random(candidates) < 0.5
    target = level + gap * member[:, None] + generator.normal(size=(candidates, queries))
    return phi, trained_on, target, member


def test_the_density_is_that_of_a_normal_law() -> None:
    correlations = np.array([[1.0, 0.6], [0.6, 1.0]])
    law = Normal(
        mean=np.array([[1.0, -1.0]]),
        stddev=np.array([[2.0, 0.5]]),
        precision=np.linalg.inv(correlations),
        log_determinant=float(np.linalg.slogdet(correlations)[1]),
    )
    phi = np.array([[0.3, 0.7]])
    scale = np.diag([2.0, 0.5])
    expected = multivariate_normal([1.0, -1.0], scale @ correlations @ scale).logpdf(phi[0])
    assert law.log_density(phi)[0] - np.log(2.0 * np.pi) == pytest.approx(expected)


def test_fitted_laws_find_what_was_drawn() -> None:
    phi, trained_on, _, _ = world(400, 50, gap=3.0, queries=2)
    inside, outside = lira.fit_normals(phi, trained_on), lira.fit_normals(phi, ~trained_on)
    np.testing.assert_allclose(inside.mean - outside.mean, 3.0, atol=0.5)
    np.testing.assert_allclose(inside.stddev, 1.0, atol=0.25)
    np.testing.assert_allclose(inside.precision, np.eye(2), atol=0.05)


@pytest.mark.parametrize("attack", [lira.online, lira.offline])
@pytest.mark.parametrize("shadows", [16, 128])
def test_the_attack_is_nearly_as_good_as_the_best_there_is(attack: object, shadows: int) -> None:
    phi, trained_on, target, member = world(shadows, 4000, gap=2.0)
    assert callable(attack)
    verdicts = ScoresByMembership.of(attack(phi, trained_on, target), member)
    best_auc, best_rate = norm.cdf(2.0 / np.sqrt(2.0)), norm.sf(norm.isf(0.01) - 2.0)
    assert best_auc - 0.03 < roc.area(verdicts).value < best_auc + 0.015
    assert 0.6 * best_rate < roc.true_positive_rate(verdicts, 0.01).value < 1.25 * best_rate
    assert roc.balanced_accuracy(verdicts, lira.OWN_THRESHOLD).low > 0.7


@pytest.mark.parametrize("attack", [lira.online, lira.offline])
def test_nothing_is_found_where_there_is_nothing(attack: object) -> None:
    phi, trained_on, target, member = world(32, 4000, gap=0.0, queries=3)
    assert callable(attack)
    verdicts = ScoresByMembership.of(attack(phi, trained_on, target), member)
    assert roc.area(verdicts).contains_chance
    assert roc.true_positive_rate(verdicts, 0.01).contains_chance


def test_several_targets_are_each_judged_alone() -> None:
    phi, trained_on, target, _ = world(8, 20, gap=1.0, queries=2)
    both = lira.online(phi, trained_on, np.stack([target, target + 1.0]))
    np.testing.assert_allclose(both[1], lira.online(phi, trained_on, target + 1.0))


def test_shadows_that_all_agree_give_finite_scores() -> None:
    phi, trained_on, target, _ = world(8, 20, gap=1.0)
    assert np.isfinite(lira.online(np.zeros_like(phi), trained_on, target)).all()


def test_one_shadow_has_no_spread() -> None:
    phi, trained_on, target, _ = world(4, 20, gap=1.0)
    with pytest.raises(DataError, match="too few shadow models"):
        lira.online(phi[:2], trained_on[:2], target)
