"""The style that pages and figures share: one palette for light and dark themes, no network."""

import base64
import hashlib
import re
from collections.abc import Sequence

NUM_COLORS = 8
_TITLE_HEIGHT = 32

_LIGHT_GROUND = "--ink: #1d2430; --soft: #5b6675; --page: #fdfcf9; --rule: #dcdfe4;"
_DARK_GROUND = "--ink: #e8eaee; --soft: #a2abb8; --page: #14171c; --rule: #343a44;"
_LIGHT_COLORS = (
    "#6b7280",
    "#1d6fb8",
    "#c2410c",
    "#15803d",
    "#7c3aed",
    "#b45309",
    "#be185d",
    "#0f766e",
)
_DARK_COLORS = (
    "#9ca3af",
    "#60a5fa",
    "#fb923c",
    "#4ade80",
    "#a78bfa",
    "#fbbf24",
    "#f472b6",
    "#2dd4bf",
)


def _variables(ground: str, colors: Sequence[str]) -> str:
    return " ".join([ground, *(f"--c{n}: {color};" for n, color in enumerate(colors))])


_LIGHT, _DARK = _variables(_LIGHT_GROUND, _LIGHT_COLORS), _variables(_DARK_GROUND, _DARK_COLORS)

PALETTE = (
    f":root {{ color-scheme: light dark; {_LIGHT} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}"
)

# In reports the first line is not a baseline, so gray comes last.
_VIVID_LIGHT = _variables(_LIGHT_GROUND, (*_LIGHT_COLORS[1:], _LIGHT_COLORS[0]))
_VIVID_DARK = _variables(_DARK_GROUND, (*_DARK_COLORS[1:], _DARK_COLORS[0]))
# The theme that a reader chooses with the page's switch overrides the system's.
THEMES = (
    f":root {{ color-scheme: light dark; {_VIVID_LIGHT} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_VIVID_DARK} }} }}\n"
    f':root[data-theme="light"] {{ color-scheme: light; {_VIVID_LIGHT} }}\n'
    f':root[data-theme="dark"] {{ color-scheme: dark; {_VIVID_DARK} }}\n'
    f"@media print {{ :root, :root[data-theme] {{ color-scheme: light; {_VIVID_LIGHT} }} }}"
)

FIGURES = "\n".join(
    [
        "svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }",
        "svg .name { fill: var(--ink); }",
        "svg .title { fill: var(--ink); font-size: 15px; }",
        ".grid { stroke: var(--rule); } .frame { fill: none; stroke: var(--rule); }",
        ".curve { fill: none; stroke-width: 2.2; } .band { opacity: .14; stroke: none; }",
        ".cell { fill: var(--c1); } .span { stroke: var(--c2); stroke-width: 4; }",
        ".whisker { stroke-width: 1.4; } .hollow { fill: var(--page); stroke-width: 1.6; }",
        ".frontier { fill: none; stroke-width: 1.4; stroke-dasharray: 6 4; }",
        ".frontier.common { stroke: var(--soft); }",
        ".level { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 1 4; }",
        ".letter { stroke: var(--c1); stroke-width: 2; }",
        *(
            f".curve.c{n} {{ stroke: var(--c{n}); }} .band.c{n}, .dot.c{n} {{ fill: var(--c{n}); }}"
            for n in range(NUM_COLORS)
        ),
        *(
            f".whisker.c{n}, .hollow.c{n}, .frontier.c{n} {{ stroke: var(--c{n}); }}"
            for n in range(NUM_COLORS)
        ),
    ]
)

PAGE = "\n".join(
    [
        PALETTE,
        "body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);",
        "       max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }",
        "h1 { font-size: 1.6rem; margin: 0 0 .25rem; }",
        "h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }",
        "h3 { font-size: 1rem; margin: 1.6rem 0 .3rem; }",
        "p { max-width: 44rem; } .soft { color: var(--soft); } .scroll { overflow-x: auto; }",
        "table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }",
        "th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--rule);",
        "         white-space: nowrap; }",
        "th:first-child, td:first-child { text-align: left; }",
        "svg { width: 100%; height: auto; } figure { margin: 0; }",
        "summary { cursor: pointer; color: var(--soft); }",
        FIGURES,
    ]
)


def content_policy(style: str, script: str = "") -> str:
    """Return a page's Content-Security-Policy: only its own style, script and embedded pictures.

    `style` and `script` are the exact contents of its style and script elements; a page without a
    script allows none. They are allowed by their digests, so that injected markup (a name that was
    not escaped) neither runs nor loads anything.
    """
    allowed = [f"style-src {_source(style)}", "img-src data:"]
    if script:
        allowed.append(f"script-src {_source(script)}")
    return "; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"])


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def standalone(svg: str) -> str:
    """Return an inline SVG figure as the text of an SVG file, with its style and its title above.

    The title is the figure's accessible name.
    """
    head, rest = svg.split(">", 1)
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    style = f"{PALETTE}\n{FIGURES}\nsvg {{ background: var(--page); }}"
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', head)
    title = re.search(r'aria-label="(.*)"', head)
    above = ""
    if size and title:
        box = f'viewBox="0 {-_TITLE_HEIGHT} {size[1]} {float(size[2]) + _TITLE_HEIGHT:g}"'
        head = head.replace(size[0], box)
        above = f'\n<text x="16" y="-12" class="title">{title[1]}</text>'
    return f"{head}>\n<style>\n{style}\n</style>{above}{rest}\n"
