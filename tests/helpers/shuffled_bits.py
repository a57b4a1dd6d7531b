"""Shuffled randomized response of one bit, by enumeration."""

import itertools

import mpmath


def enumerated_divergence(eps0: float, clients: int, order: int) -> mpmath.mpf:
    """Return the larger Renyi divergence of the sorted bits, over all 2^N messages.

    One client has 0 or 1, all others have 0.

    Args:
        eps0: The epsilon of one bit.
        clients: The number of clients.
        order: The order of the divergence.

    Returns:
        The divergence, to the working precision.
    """
    truth = 1 / (1 + mpmath.exp(-mpmath.mpf(eps0)))
    laws = []
    for own in (0, 1):
        law = [mpmath.mpf(0)] * (clients + 1)
        for bits in itertools.product((0, 1), repeat=clients):
            chances = [truth if bits[0] == own else 1 - truth]
            chances += [1 - truth if bit else truth for bit in bits[1:]]
            law[sum(bits)] += mpmath.fprod(chances)
        laws.append(law)
    moments = [
        mpmath.fsum(p**order * q ** (1 - order) for p, q in zip(*pair, strict=True))
        for pair in (laws, laws[::-1])
    ]
    return mpmath.log(max(moments)) / (order - 1)
