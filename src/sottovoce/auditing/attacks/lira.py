"""LiRA, the likelihood ratio attack: compare the target's confidence with those of shadow models.

    online    log N(phi; mu_in, Sigma_in) - log N(phi; mu_out, Sigma_out). For each candidate, one
              normal distribution is fitted to the shadow models that trained on it and one to those
              that did not.
    offline   how far phi lies above its mean over shadow models without the record, in standard
              deviations; for an attacker who cannot train on the candidates.

For both attacks, scores above 0 mean "member".

phi is the confidence of a model in a record's true class, on the logit scale (`attacks.context`),
with one entry for each query of the record. N(phi; mu, Sigma) is a normal density. Each candidate
has its own standard deviations if there are at least 64 shadow models; otherwise all candidates
share them. The correlations between queries are always shared by all candidates.

Reference: Carlini et al. 2022, "Membership inference attacks from first principles".
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.auditing.attacks.context import (
    FEWEST_SHADOWS,
    AttackContext,
    Confidences,
    Mask,
    MembershipScores,
    register,
)
from sottovoce.core.errors import DataError

OWN_THRESHOLD = 0.0  # The threshold of both attacks does not depend on the answers.
# Below this number of shadow models, a standard deviation per candidate is too uncertain (figure 9
# of the reference).
_OWN_SPREAD_FROM = 64
_LEAST_STDDEV = 1e-6  # This avoids a division by 0 where all shadow models agree.

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """One normal distribution for each candidate, over its queries.

    Attributes:
        mean: Means, (candidates, queries).
        stddev: Standard deviations, (candidates, queries).
        precision: Inverse of the correlation matrix between queries, which all candidates share.
        log_determinant: Logarithm of the determinant of the correlation matrix.
    """

    mean: Confidences
    stddev: Confidences
    precision: Confidences
    log_determinant: float

    def standardize(self, phi: Confidences) -> Confidences:
        """Return confidences minus their means, in standard deviations, in the same shape."""
        return (phi - self.mean) / self.stddev

    def log_density(self, phi: Confidences) -> Scores:
        """Return each candidate's log density at its confidences `phi`, (..., candidates, queries).

        The constant that all distributions share is left out.
        """
        z = self.standardize(phi)
        squares = np.einsum("...i,ij,...j->...", z, self.precision, z)
        own: Scores = np.log(self.stddev).sum(axis=-1)
        return np.asarray(-0.5 * (squares + self.log_determinant) - own)

    def excess(self, phi: Confidences) -> Scores:
        """Return how far a candidate's confidences in all queries together lie above their means.

        It is in standard deviations, negative below: a standard normal variable if `phi`,
        (..., candidates, queries), follows the distribution.
        """
        weights = self.precision.sum(axis=1)
        return np.asarray(self.standardize(phi) @ weights / np.sqrt(weights.sum()))


def fit_normals(phi: Confidences, chosen: Mask) -> Normal:
    """Fit a normal distribution to each candidate's confidences over the shadow models in `chosen`.

    With fewer than 64 shadow models all candidates share the standard deviations.

    Args:
        phi: The confidences of the shadow models, (shadows, candidates, queries).
        chosen: Which shadow models count for a candidate, (shadows, candidates): either those that
            trained on it, or those that did not.

    Raises:
        DataError: A candidate has fewer than two shadow models in `chosen`.
    """
    check_shadows(chosen)
    weights = chosen[:, :, None]
    counts = weights.sum(axis=0)
    mean = (phi * weights).sum(axis=0) / counts
    residuals = (phi - mean) * weights
    variance = (residuals**2).sum(axis=0) / (counts - 1)
    if len(phi) < _OWN_SPREAD_FROM:
        variance = np.broadcast_to(variance.mean(axis=0), variance.shape)
    stddev = np.maximum(np.sqrt(variance), _LEAST_STDDEV)
    correlations = _correlations((residuals / stddev)[chosen])
    sign, log_determinant = np.linalg.slogdet(correlations)
    assert sign > 0, "the shrunk correlation matrix is positive definite"
    return Normal(
        mean=mean,
        stddev=stddev,
        precision=np.asarray(np.linalg.inv(correlations), dtype=np.float64),
        log_determinant=float(log_determinant),
    )


def _correlations(standardized: Confidences) -> Confidences:
    """Return the correlations between queries over all candidates.

    They are shrunk by 1% towards the identity, so that the matrix is not singular.
    """
    found = standardized.T @ standardized / len(standardized)
    scale = np.sqrt(np.maximum(np.diag(found), _LEAST_STDDEV))
    correlations = found / np.outer(scale, scale)
    np.fill_diagonal(correlations, 1.0)
    return np.asarray(0.99 * correlations + 0.01 * np.eye(len(correlations)))


def check_shadows(chosen: Mask) -> None:
    """Raise DataError if some candidate has fewer than two shadow models in `chosen`.

    A variance needs two. `chosen` says which shadow models count for a candidate, (shadows,
    candidates), as in `fit_normals`.
    """
    fewest = int(chosen.sum(axis=0).min())
    if fewest < FEWEST_SHADOWS // 2:
        raise DataError(
            f"too few shadow models: each candidate needs {FEWEST_SHADOWS // 2} that trained on it "
            f"and {FEWEST_SHADOWS // 2} that did not, but one candidate has only {fewest} of "
            f"{len(chosen)} on one side; train at least {FEWEST_SHADOWS} shadow models"
        )


def online(shadows: Confidences, trained_on: Mask, target: Confidences) -> Scores:
    """Return the log likelihood ratio of each candidate, as the online attack computes it.

    It compares the target's confidence with those of shadow models that trained on the candidate
    and of those that did not. Scores above 0 mean "member".

    Args:
        shadows: Confidences of the shadow models in the true class on the logit scale, (shadows,
            candidates, queries).
        trained_on: Which shadow model trained on which candidate, (shadows, candidates).
        target: Confidences of one or several attacked models, (..., candidates, queries).

    Raises:
        DataError: A candidate has fewer than two shadow models on one side.
    """
    inside, outside = fit_normals(shadows, trained_on), fit_normals(shadows, ~trained_on)
    return inside.log_density(target) - outside.log_density(target)


def offline(shadows: Confidences, trained_on: Mask, target: Confidences) -> Scores:
    """Return the score of each candidate in the offline attack, in standard deviations.

    It is how far the target's confidence lies above its mean over shadow models that did not train
    on the candidate. Scores above 0 mean "member". Arguments and errors are those of `online`.
    """
    return fit_normals(shadows, ~trained_on).excess(target)


@register("lira-offline", summary="how far above shadows without the record", turn=2)
def lira_offline(context: AttackContext, _generator: np.random.Generator) -> MembershipScores:
    """Score candidates by how far the targets' confidence lies above that of shadow models.

    Only shadow models that did not train on the candidate count. Scores above 0 mean "member".
    """
    scores = offline(context.shadow_answers, context.trained_on, context.target_answers)
    return MembershipScores(scores=scores, threshold=OWN_THRESHOLD)


@register("lira-online", summary="likelihood ratio of shadows with and without", turn=3)
def lira_online(context: AttackContext, _generator: np.random.Generator) -> MembershipScores:
    """Score candidates by the likelihood ratio of shadow models with and without the candidate.

    Scores above 0 mean "member".
    """
    scores = online(context.shadow_answers, context.trained_on, context.target_answers)
    return MembershipScores(scores=scores, threshold=OWN_THRESHOLD)
