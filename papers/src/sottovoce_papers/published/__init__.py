"""The formulas of the papers as printed, each next to the true value.

A formula that does not hold is here and nowhere else: the library and the commands that train or
deploy never import this package. `sottovoce experiment published` lists the formulas.
"""

from sottovoce.core.errors import UnknownNameError
from sottovoce_papers.published import imvu, mvu, nbafl, udp_noise, udp_renyi, udp_shuffling
from sottovoce_papers.published.formula import Comparison, Formula, describe, show_value

__all__ = ["FORMULAS", "Comparison", "Formula", "describe", "find", "show_value"]

FORMULAS: dict[str, Formula] = {
    formula.name: formula
    for module in (mvu, imvu, udp_renyi, udp_shuffling, udp_noise, nbafl)
    for formula in module.FORMULAS
}


def find(name: str) -> Formula:
    """Return the formula of that name."""
    if name not in FORMULAS:
        raise UnknownNameError.among("formula", name, FORMULAS)
    return FORMULAS[name]
