"""UDP-FL, section 4.4: lemmas 2 and 3 on shuffled messages."""

import math

import numpy as np

from sottovoce_papers.published.formula import Formula, Input

PAPER = "UDP-FL (Feng et al.)"


def lemma_2(eps0: float, clients: int, order: int) -> float:
    """Return lemma 2 as printed: log(1 + C(a,2) 4 (e^eps0 - 1)^2/N)/(a - 1). It is NOT a bound."""
    excess = math.comb(order, 2) * 4.0 * math.expm1(eps0) ** 2 / clients
    return math.log1p(excess) / (order - 1)


def lemma_3(eps0: float, clients: int, order: int) -> float:
    """Return lemma 3 as printed: log(1 + C(a,2) (e^eps0 - 1)^2/(N e^eps0))/(a - 1)."""
    excess = math.comb(order, 2) * math.expm1(eps0) ** 2 / (clients * math.exp(eps0))
    return math.log1p(excess) / (order - 1)


def exact_divergence(eps0: float, clients: int, order: int) -> float:
    """Return D_a of shuffled binary randomized response where all other clients have 0.

    It is the larger of both directions. A shuffle of bits reveals how many are 1. With q =
    1/(e^eps0 + 1) and b the pmf of Bin(N-1, q), the count is j with probability (1-q) b(j) + q
    b(j-1) if the client has a 0, and q b(j) + (1-q) b(j-1) if it has a 1. The sum of the powers of
    the likelihood ratio r is 1 + sum_j Q(j) (r^a - 1 - a (r - 1)), whose terms do not cancel.
    """
    from scipy.special import gammaln, logsumexp

    counts, others = np.arange(clients + 1.0), clients - 1.0
    log_lie, log_truth = -np.logaddexp(0.0, eps0), -np.logaddexp(0.0, -eps0)
    choices = gammaln(others + 1.0) - gammaln(counts + 1.0) - gammaln(others - counts + 1.0)
    pmf = choices + counts * log_lie + (others - counts) * log_truth  # -inf at the last count
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(counts) - np.log(clients - counts) + eps0  # log of b(j-1)/b(j)
        inner = np.logaddexp(log_truth, log_lie + odds) - np.logaddexp(log_lie, log_truth + odds)
    log_ratio = np.where(np.isinf(odds), np.copysign(eps0, -odds), inner)
    before = np.concatenate([[-np.inf], pmf[:-1]])
    laws = (
        (log_ratio, np.logaddexp(log_lie + pmf, log_truth + before)),
        (-log_ratio, np.logaddexp(log_truth + pmf, log_lie + before)),
    )
    found = []
    for ratio, weight in laws:
        power = order * ratio
        bent = np.expm1(np.minimum(power, 600.0)) - order * np.expm1(np.minimum(ratio, 600.0))
        with np.errstate(divide="ignore"):
            logs = np.where(power > 600.0, power, np.log(np.maximum(bent, 0.0)))
        found.append(np.logaddexp(0.0, logsumexp(logs + weight)))
    return float(max(found)) / (order - 1)


_INPUTS = {
    "eps0": Input(1.0, 0.01, 20.0),
    "clients": Input(10, 1, 10**6),
    "order": Input(8, 2, 256),
}
_TRUTH = (
    "exact Renyi divergence of shuffled binary randomized response, by enumeration of the counts, "
    "where all other clients have the same bit"
)

FORMULAS = (
    Formula(
        name="udp-lemma-2",
        paper=PAPER,
        number="lemma 2",
        claim="the Renyi divergence of N shuffled eps0-DP messages",
        relation="at most",
        holds=False,
        correction="the clones bound of Feldman, McMillan and Talwar (2021), which the library "
        "uses; it needs a pure eps0, which Gaussian noise does not have",
        why="The formula keeps the second power of the likelihood ratio and drops all higher ones, "
        "which matter at large orders.",
        inputs=_INPUTS,
        published=lemma_2,
        true=exact_divergence,
        truth=_TRUTH,
    ),
    Formula(
        name="udp-lemma-3",
        paper=PAPER,
        number="lemma 3",
        claim="the largest Renyi divergence of N shuffled eps0-DP messages",
        relation="at least",
        holds=True,
        correction="a lower bound says what a shuffle cannot promise; nothing is charged by it",
        why="The formula keeps the second power of the likelihood ratio only, and a lower bound "
        "may.",
        inputs=_INPUTS,
        published=lemma_3,
        true=exact_divergence,
        truth=_TRUTH,
    ),
)
