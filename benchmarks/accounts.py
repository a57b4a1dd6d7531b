"""Print epsilons with their references and times, one JSON row each.

    python benchmarks/accounts.py

`sottovoce benchmark account` measures one of them, and says what the references are.
"""

import json
from typing import Any

from sottovoce_papers.benchmarks import account

CASES: tuple[dict[str, Any], ...] = (
    {"mechanism": "gaussian"},
    {"mechanism": "gaussian", "rounds": 100_000},
    {"mechanism": "randomized_response"},
    *({"mechanism": "one_bit", "dimension": dimension} for dimension in (1, 10, 1000)),
    *(
        {"mechanism": "one_bit", "dimension": dimension, "rho": rho, "rate": 1.0, "rounds": 1}
        for rho, by_dimension in account.WORST_FOUND.items()
        for dimension in by_dimension
    ),
)
_FIELDS = ("mechanism", "dimension", "rho", "rate", "rounds", "epsilon", "reference_epsilon")


def main() -> None:
    rows = []
    for case in CASES:
        found = account.measure(**case, seconds=0.01)
        rows.append({name: found[name] for name in _FIELDS})
        rows[-1]["seconds"] = 1.0 / found[account.UNIT]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
