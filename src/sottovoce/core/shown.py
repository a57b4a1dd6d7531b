"""Values in the words that people read, in a terminal and in a notebook alike."""

import decimal
import math
from collections.abc import Mapping
from typing import Any


def show(value: object, name: str = "") -> str:
    """A value for people; epsilons are rounded up; deltas, noise and parameters are exact."""
    if value is None:
        return "none"
    if isinstance(value, float):
        if name.endswith("epsilon") or name == "bounds":
            return show_epsilon(value)
        if name == "budget":
            return f"{value:.15g}"  # as it was entered
        # These get copied into other commands; an epsilon among them is asked for, not spent.
        exact = name in ("delta", "parameters", "example") or name.startswith("noise")
        return repr(value) if exact else f"{value:.6g}"
    if isinstance(value, Mapping):
        inner = name if name in ("bounds", "parameters", "example") else ""
        return ", ".join(f"{key}={show(item, inner or key)}" for key, item in value.items())
    return str(value)


def rounded(parameters: Mapping[str, Any]) -> str:
    """Parameters in a few digits: to be read, not to be copied."""
    return ", ".join(
        f"{name}={value:.5g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in parameters.items()
    )


def text_table(columns: list[str], rows: list[list[str]]) -> str:
    """A table in plain characters; numbers stand right, words left."""
    cells = [columns, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    right = [is_numeric([row[at] for row in rows]) for at in range(len(columns))]

    def line(row: list[str]) -> str:
        placed = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        )
        return "  ".join(placed).rstrip()

    return "\n".join([line(columns), "  ".join("-" * width for width in widths), *map(line, rows)])


def text_fields(fields: Mapping[str, object]) -> str:
    """Names and values, one a line."""
    width = max(len(name) for name in fields)
    return "\n".join(f"{name:<{width}}  {show(value, name)}" for name, value in fields.items())


def is_numeric(cells: list[str]) -> bool:
    """Whether a column holds numbers, and so stands right."""
    return bool(cells) and all(cell[:1] in "0123456789-+.<" for cell in cells)


def show_epsilon(value: float, decimals: int = 4) -> str:
    """An epsilon for people: rounded up, so that what is printed holds too.

    What is rounded is the shortest decimal that reads back as this very float: 0.1 is printed as
    0.1000, although the float is a little above a tenth, and 0.30000000000000004 as 0.3001.
    """
    if math.isinf(value):
        return "infinite"
    shortest = decimal.Decimal(repr(float(value)))
    if decimals > 1 and 0.0 < value < 10.0**-decimals:  # else every small one would look alike
        with decimal.localcontext(prec=decimals, rounding=decimal.ROUND_CEILING):
            return f"{+shortest:.{decimals - 1}e}"
    return _quantized(shortest, decimals, decimal.ROUND_CEILING)


def show_left(value: float, decimals: int = 4) -> str:
    """What is left of a budget, for people: rounded down, so that it is there."""
    return _quantized(decimal.Decimal(repr(float(value))), decimals, decimal.ROUND_FLOOR)


def _quantized(value: decimal.Decimal, decimals: int, rounding: str) -> str:
    with decimal.localcontext(prec=400):  # exact for every float64
        unit = decimal.Decimal(1).scaleb(-decimals)
        return str(value.quantize(unit, rounding=rounding))


def show_lower(value: float) -> str:
    """A lower bound for people: rounded down, so that what is printed holds too."""
    return f"{math.floor(value * 1e4) / 1e4:.4f}" if math.isfinite(value) else "infinite"
