"""All figures, by theme."""

import importlib
import pkgutil

import figures
from figures.figure import Figure, Kept, Source

# The rest of the package is what themes are made of.
_NO_THEMES = {"figure", "kept", "page", "register", "running"}


def themes() -> dict[str, tuple[Figure, ...]]:
    """Return the figures of each theme, one module each; names of figures are unique."""
    names = sorted(one.name for one in pkgutil.iter_modules(figures.__path__))
    found: dict[str, tuple[Figure, ...]] = {
        name: importlib.import_module(f"figures.{name}").FIGURES
        for name in names
        if name not in _NO_THEMES
    }
    seen: set[str] = set()
    sources: dict[str, Source | Kept] = {}
    for figure in (figure for theme in found.values() for figure in theme):
        assert figure.name not in seen, figure.name
        assert sources.setdefault(figure.source.name, figure.source) == figure.source
        seen.add(figure.name)
    return found
