"""What notebooks show, in a page as dark as theirs: readable, and nothing is asked of a network."""

from pathlib import Path

from browser import browser
from specs import small_table

import sottovoce

DARK = "<body style='background:#111;color:rgb(220, 221, 222)'>"
LIGHT = "<body style='background:#fff;color:rgb(20, 21, 22)'>"


def test_tables_take_the_notebooks_colors_and_pictures_are_drawn(tmp_path: Path) -> None:
    run = sottovoce.simulate(small_table())
    parts = [
        run._repr_html_(),
        run.rounds._repr_html_(),
        sottovoce.spend("gaussian", noise_multiplier=1.0, delta=1e-5)._repr_html_(),
    ]
    with browser() as window:
        for name, head in (("dark", DARK), ("light", LIGHT)):
            page = tmp_path / f"{name}.html"
            page.write_text(f"<!doctype html><meta charset='utf-8'>{head}{''.join(parts)}</body>")
            window.open(page)
            colours = window.run(
                "return [...new Set([...document.querySelectorAll('td, th, caption')]"
                ".map(cell => getComputedStyle(cell).color))]"
            )
            assert colours == [window.run("return getComputedStyle(document.body).color")]
            pictures = window.run(
                "return [...document.images].map(one => [one.naturalWidth > 0, one.alt])"
            )
            assert len(pictures) == 1
            drawn, alternative = pictures[0]
            assert drawn
            assert alternative.startswith("Test accuracy of small by round")
            assert window.errors() == []
            assert window.requests() == [page.as_uri()]
            window.screenshot(tmp_path / f"{name}.png")
