"""Write docs/reference/published-formulas.md: the papers' formulas next to the true values.

python tools/docs_published.py            # or: make names
"""

import sys
from pathlib import Path

from sottovoce_papers.published import FORMULAS, Comparison, describe, show_value

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "published-formulas.md"
INTRODUCTION = """# Published formulas

    sottovoce experiment published                     # the list
    sottovoce experiment published udp-lemma-2         # one formula at its default inputs
    sottovoce experiment published udp-lemma-2 --set clients=1000 --set eps0=4 --set order=32

These are formulas of the papers that Sottovoce implements, as printed, each with its value next to
the true one. The command reproduces a printed number; it is not for deciding how much noise to add.
Nothing that trains, charges or deploys uses the formulas that do not hold, with one exception: the
algorithm `nbafl` takes its noise from the formula of its paper, and is charged the true epsilon.

An upper bound holds if the true value is never larger. The inputs of a formula that does not hold
are a counterexample. `make names` writes this page, and a test compares it with the formulas.
"""
COLUMNS = ("formula", "claims to give", "inputs", "published", "true", "holds", "why", "instead")


def cells_of(comparison: Comparison) -> list[str]:
    """Return the row of a formula.

    Args:
        comparison: The formula at its default inputs.

    Returns:
        The cells in the order of `COLUMNS`.
    """
    formula = comparison.formula
    return [
        f"`{formula.name}`: {formula.number}",
        str(describe(formula)["claim"]),
        ", ".join(f"{name} = {value:g}" for name, value in comparison.inputs.items()),
        show_value(comparison.published),
        f"{show_value(comparison.true)}: {formula.truth}",
        "yes" if formula.holds else "**no**",
        formula.why,
        formula.correction,
    ]


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    for paper in dict.fromkeys(formula.paper for formula in FORMULAS.values()):
        rows = [cells_of(one.compare()) for one in FORMULAS.values() if one.paper == paper]
        lines = [list(COLUMNS), ["---"] * len(COLUMNS), *rows]
        table = "\n".join(
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
        )
        parts.append(f"## {paper}\n\n{table}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
