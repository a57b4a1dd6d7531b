"""The likelihood-ratio attack: how much likelier is the target's confidence with the record?

    online    log N(phi; mu_in, Sigma_in) - log N(phi; mu_out, Sigma_out), for each candidate from
              shadow models that trained on it and others that did not; above 0 says "member".
    offline   how far phi lies above what shadows without the record say, in standard deviations;
              for an attacker who cannot train on the candidates. Above 0 says "member".

phi has an entry for each query of the record. Standard deviations are a candidate's own from 64
shadows on, else shared by all candidates; correlations between queries always are.

Reference: Carlini et al. 2022, "Membership inference attacks from first principles".
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.auditing.attacks.context import (
    FEWEST_SHADOWS,
    Confidences,
    Mask,
    Scored,
    Siege,
    register,
)
from sottovoce.core.errors import DataError

OWN_THRESHOLD = 0.0  # of both attacks, whatever the answers are
_OWN_SPREAD_FROM = 64  # shadows: fewer say too little of one candidate's spread (figure 9 there)
_LEAST_STDDEV = 1e-6  # of confidences that all shadows agree on

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """A normal law for each candidate: means and deviations (candidates, queries), correlations."""

    mean: Confidences
    stddev: Confidences
    precision: Confidences  # the inverse of the correlations between queries
    log_determinant: float

    def standardised(self, phi: Confidences) -> Confidences:
        return (phi - self.mean) / self.stddev

    def log_density(self, phi: Confidences) -> Scores:
        """Up to the constant that all laws share."""
        z = self.standardised(phi)
        squares = np.einsum("...i,ij,...j->...", z, self.precision, z)
        own: Scores = np.log(self.stddev).sum(axis=-1)
        return np.asarray(-0.5 * (squares + self.log_determinant) - own)

    def excess(self, phi: Confidences) -> Scores:
        """How far all queries together lie above their means: standard normal under the law."""
        weights = self.precision.sum(axis=1)
        return np.asarray(self.standardised(phi) @ weights / np.sqrt(weights.sum()))


def fitted(phi: Confidences, chosen: Mask) -> Normal:
    """The law of phi (shadows, candidates, queries) over the shadows that `chosen` names."""
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
    assert sign > 0, "correlations are kept away from singular ones"
    return Normal(
        mean=mean,
        stddev=stddev,
        precision=np.asarray(np.linalg.inv(correlations), dtype=np.float64),
        log_determinant=float(log_determinant),
    )


def _correlations(standardised: Confidences) -> Confidences:
    """Between queries, over all candidates; drawn a little to independence, to be regular."""
    found = standardised.T @ standardised / len(standardised)
    scale = np.sqrt(np.maximum(np.diag(found), _LEAST_STDDEV))
    correlations = found / np.outer(scale, scale)
    np.fill_diagonal(correlations, 1.0)
    return np.asarray(0.99 * correlations + 0.01 * np.eye(len(correlations)))


def check_shadows(chosen: Mask) -> None:
    """Two shadows with each candidate and two without it are the least that has a spread."""
    fewest = int(chosen.sum(axis=0).min())
    if fewest < FEWEST_SHADOWS // 2:
        raise DataError(
            f"too few shadow models: a candidate is on one side in {fewest} of {len(chosen)}, and "
            f"a spread needs {FEWEST_SHADOWS // 2}; train {FEWEST_SHADOWS} shadows or more"
        )


def online(shadows: Confidences, trained_on: Mask, target: Confidences) -> Scores:
    """Log-likelihood ratios; `target` is (..., candidates, queries), of one or several targets."""
    inside, outside = fitted(shadows, trained_on), fitted(shadows, ~trained_on)
    return inside.log_density(target) - outside.log_density(target)


def offline(shadows: Confidences, trained_on: Mask, target: Confidences) -> Scores:
    """The excess over shadows without the record."""
    return fitted(shadows, ~trained_on).excess(target)


@register("lira-offline", summary="how far above shadows without the record", turn=2)
def lira_offline(siege: Siege, _generator: np.random.Generator) -> Scored:
    scores = offline(siege.shadow_answers, siege.trained_on, siege.target_answers)
    return Scored(scores=scores, threshold=OWN_THRESHOLD)


@register("lira-online", summary="likelihood ratio of shadows with and without", turn=3)
def lira_online(siege: Siege, _generator: np.random.Generator) -> Scored:
    scores = online(siege.shadow_answers, siege.trained_on, siege.target_answers)
    return Scored(scores=scores, threshold=OWN_THRESHOLD)
