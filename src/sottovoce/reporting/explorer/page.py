"""The page's files, which lie beside this one; its look is that of the reports."""

from functools import cache
from pathlib import Path

from sottovoce.core.charts.style import PAGE

_FOLDER = Path(__file__).parent
_HTML, _CSS, _JS = "text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript"


@cache
def files() -> dict[str, tuple[str, bytes]]:
    """What can be asked for, each with its kind."""
    own = {name: (_FOLDER / name).read_bytes() for name in ("explore.html", "explore.css")}
    scripts = ("explore.js", "charts.js", "controls.js")
    return {
        "/": (_HTML, own["explore.html"]),
        "/explore.css": (_CSS, PAGE.encode() + b"\n" + own["explore.css"]),
        **{f"/{name}": (_JS, (_FOLDER / name).read_bytes()) for name in scripts},
    }
