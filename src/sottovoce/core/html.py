"""HTML for notebooks: colours are the notebook's own, so that it reads in light and in dark."""

import base64
from collections.abc import Mapping, Sequence
from html import escape

from sottovoce.core.shown import is_numeric, show

# A notebook's own style would centre, stripe or squeeze; nothing here sets a colour of text.
_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4em 0"
_CELL = "padding:.25em .7em;border-bottom:1px solid rgba(128,128,128,.35)"
_CAPTION = "caption-side:top;text-align:left;padding:.2em 0;font-weight:600"
MAX_ROWS = 60


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "", of: int = 0
) -> str:
    """A small table; `of` is how many rows there are, where only some are shown."""
    aligned = [
        "right" if is_numeric([row[at] for row in rows]) else "left" for at in range(len(columns))
    ]

    def line(cells: Sequence[str], tag: str) -> str:
        inner = "".join(
            f'<{tag} style="{_CELL};text-align:{side}">{escape(cell)}</{tag}>'
            for cell, side in zip(cells, aligned, strict=True)
        )
        return f"<tr>{inner}</tr>"

    above = f'<caption style="{_CAPTION}">{escape(caption)}</caption>' if caption else ""
    body = "\n".join(line(row, "td") for row in rows)
    below = note(f"{len(rows)} of {of} rows") if of > len(rows) else ""
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}">{above}\n'
        f"<thead>{line(columns, 'th')}</thead>\n<tbody>{body}</tbody></table>{below}</div>"
    )


def fields(values: Mapping[str, object], *, caption: str = "") -> str:
    """Names and values, one a row."""
    rows = "\n".join(
        f'<tr><th scope="row" style="{_CELL};text-align:left">{escape(name)}</th>'
        f'<td style="{_CELL};text-align:left">{escape(show(value, name))}</td></tr>'
        for name, value in values.items()
    )
    above = f'<caption style="{_CAPTION}">{escape(caption)}</caption>' if caption else ""
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}">{above}<tbody>{rows}</tbody></table>'
        "</div>"
    )


def note(text: str) -> str:
    """A sentence below."""
    return f'<p style="opacity:.75;max-width:60em;margin:.3em 0">{escape(text)}</p>'


def picture(svg: str, name: str) -> str:
    """A drawing with its own style inside, which the notebook's page neither sees nor changes."""
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img alt="{escape(name)}" style="max-width:36em;width:100%" '
        f'src="data:image/svg+xml;base64,{data}">'
    )
