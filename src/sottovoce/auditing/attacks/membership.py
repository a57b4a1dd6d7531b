"""All membership attacks on one or several targets, from the same shadow models."""

from collections.abc import Callable, Sequence

import numpy as np

from sottovoce.auditing.attacks.context import ATTACKS, Scored, Siege
from sottovoce.core.errors import DataError

OnAttack = Callable[[str], None]


def _ignore(_attack: str) -> None:
    """Nobody watches."""


def own_attacks() -> tuple[str, ...]:
    """The names of our own attacks, in their turn; plug-ins are run where they are asked for."""
    known = ATTACKS.ours()
    return tuple(sorted(known, key=lambda name: known[name].turn))


def scored(
    siege: Siege,
    attacks: Sequence[str],
    generator: np.random.Generator,
    on_attack: OnAttack = _ignore,
) -> dict[str, Scored]:
    """Every attack's scores, in the order asked for."""
    chosen = {name: ATTACKS.find(name).attack for name in attacks}
    found: dict[str, Scored] = {}
    for name, attack in chosen.items():
        on_attack(name)
        found[name] = _checked(name, attack(siege, generator), siege)
    return found


def _checked(name: str, scored: Scored, siege: Siege) -> Scored:
    """Scores that are numbers, one for each target and candidate."""
    wanted = len(siege.targets), len(siege.labels)
    if np.shape(scored.scores) != wanted or np.isnan(scored.scores).any():
        raise DataError(
            f"attack '{name}' must give {wanted[0]} times {wanted[1]} numbers, one for each target "
            f"and candidate, and gave {np.shape(scored.scores)}, or NaN; mend it"
        )
    return scored
