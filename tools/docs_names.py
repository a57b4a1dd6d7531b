"""Write docs/reference/names.md: every exported name, with the first sentence of its docstring.

    python tools/docs_names.py            # or: make names

A constant has no docstring; its sentence is the comment `#: ...` above its assignment.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import sottovoce
from sottovoce.core.faces import DEFINING_MODULES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "names.md"
INTRODUCTION = """# Every name

Import a name from its package: `from sottovoce.mechanisms import SeededSign`. Names in **bold**
are also in `sottovoce` itself: `sottovoce.SeededSign`. Deeper modules are private. A name is loaded
when it is first used. The other pages of the reference describe parameters. `make names` writes
this page from the docstrings.
"""


def sentence_of(package: str, name: str) -> str:
    """Return the sentence that describes an exported name.

    Args:
        package: The package that exports it, such as "sottovoce.ledger".
        name: The name.

    Returns:
        The first paragraph of its docstring, or the comment above a constant, on one line.

    Raises:
        ValueError: If the name has neither.
    """
    if name == "__version__":
        return "The version."
    value = getattr(importlib.import_module(package), name)
    text = inspect.getdoc(value) if inspect.isclass(value) or inspect.isroutine(value) else None
    if text is None or (not inspect.isclass(value) and not inspect.isroutine(value)):
        sources = [DEFINING_MODULES[package][name], "sottovoce.core.sections"]
        texts = [inspect.getsource(importlib.import_module(one)) for one in sources]
        found = re.search(rf"((?:^#: .*\n)+){re.escape(name)}\b", "\n".join(texts), re.MULTILINE)
        text = re.sub(r"^#: ", "", found[1], flags=re.MULTILINE) if found else None
    if not text:
        raise ValueError(f"{package}.{name} has no docstring; add one, or a comment `#: ...`")
    return " ".join(text.strip().split("\n\n")[0].split()).replace("|", "\\|")


def section_of(package: ModuleType) -> str:
    """Return the section of one package.

    Args:
        package: The imported package; the root has only the names that it defines itself.

    Returns:
        A heading, the first sentence of the package's docstring and a table.
    """
    root = set(dir(sottovoce))
    names = package.__all__
    if package is sottovoce:
        offered = {
            name
            for path in sorted((ROOT / "src/sottovoce").glob("*/__init__.py"))
            for name in importlib.import_module(f"sottovoce.{path.parent.name}").__all__
        }
        names = [name for name in names if name not in offered]
    rows = [
        f"| {'**' if name in root and package is not sottovoce else ''}`{name}`"
        f"{'**' if name in root and package is not sottovoce else ''} "
        f"| {sentence_of(package.__name__, name)} |"
        for name in names
    ]
    head = (package.__doc__ or "").strip().split("\n\n")[0]
    about = "" if package is sottovoce else " ".join(head.split()) + "\n\n"
    table = "\n".join(["| name | description |", "|---|---|", *rows])
    return f"## {package.__name__}\n\n{about}{table}\n"


def page() -> str:
    """Return the whole page."""
    folders = sorted((ROOT / "src/sottovoce").glob("*/__init__.py"))
    packages = [importlib.import_module(f"sottovoce.{path.parent.name}") for path in folders]
    return "\n".join([INTRODUCTION, *map(section_of, [sottovoce, *packages])])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
