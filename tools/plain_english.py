"""Check names, docstrings, messages and documentation against the project's writing rules.

    python tools/plain_english.py [PATH ...]

Each line of the output is `file:line: rule: what is wrong`. The rules:

    word        a word of BANNED or a British spelling, in text or inside a name
    docstring   a public class or function has no docstring
    verb        the docstring of a function does not start with a verb of VERBS
    sections    a name that a package exports lacks `Args:`, `Returns:` or `Raises:`
    remedy      an error message does not say what to do
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "sottovoce"
LISTS = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of a rule."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        """Return the finding in the form of a compiler's message."""
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.rule}: {self.text}"


@cache
def lists() -> dict[str, list[str]]:
    """Return the word lists: banned words, British stems, verbs, remedies, stored words."""
    import tomllib

    return tomllib.loads(LISTS.read_text(encoding="utf-8"))


@cache
def _banned() -> re.Pattern[str]:
    words = "|".join(lists()["banned"])
    stems = "|".join(lists()["british"])
    return re.compile(rf"\b(?:(?:{words})|(?:{stems})\w*)\b", re.IGNORECASE)


def split_names(line: str) -> str:
    """Return a line in which names are separate words: `oneBit_law` is `one Bit law`.

    Args:
        line: A line of source code or of a document.

    Returns:
        The line with underscores and changes from lower to upper case turned into spaces.
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", line.replace("_", " "))


def banned_words(path: Path, text: str) -> Iterator[Finding]:
    """Yield the banned words of a file.

    Args:
        path: A text file.
        text: What it contains.

    Yields:
        One finding for each occurrence. A line that holds one of the phrases in the list `stored`
        passes: older versions wrote them into files, messages or hashes.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not any(phrase in line for phrase in lists()["stored"]):
            for match in _banned().finditer(split_names(line)):
                yield Finding(path, number, "word", match.group())


@cache
def exported() -> dict[str, set[str]]:
    """Return the names that each package exports: those of its `__all__` and of the root's."""
    import importlib

    names = {}
    for init in PACKAGE.glob("*/__init__.py"):
        package = init.parent.name
        names[package] = set(importlib.import_module(f"sottovoce.{package}").__all__)
    return names


@cache
def _inherited() -> set[str]:
    """Return the names of methods that some base class or protocol documents."""
    bases: set[str] = set()
    documented: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                named = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
                bases |= named | ({node.name} if "Protocol" in named else set())
                documented.setdefault(node.name, set()).update(
                    one.name
                    for one in node.body
                    if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
                    and ast.get_docstring(one)
                )
    return {name for base in bases for name in documented.get(base, ())}


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _decorators(node: _Function) -> set[str]:
    return {ast.unparse(one).split("(")[0].split(".")[-1] for one in node.decorator_list}


def _is_attribute(node: _Function) -> bool:
    return bool(_decorators(node) & {"property", "cached_property", "setter"})


def _raises(node: _Function) -> bool:
    """Return whether the body itself raises an error, functions inside it apart."""
    return any(
        isinstance(one, ast.Raise) and one.exc is not None
        for statement in node.body
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef)
        for one in ast.walk(statement)
    )


def _missing_sections(node: _Function, text: str) -> Iterator[str]:
    arguments = [
        one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    ]
    arguments = [name for name in arguments if name not in ("self", "cls") and name[0] != "_"]
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", text, re.MULTILINE)
    described = (
        re.findall(r"^    \*{0,2}(\w+)\b.*?:", section.group(1), re.MULTILINE) if section else []
    )
    absent = [name for name in arguments if name not in described]
    if absent:
        yield f"Args: lacks {', '.join(absent)}"
    returns = ast.unparse(node.returns) if node.returns else "None"
    gives = returns not in ("None", "Never", "NoReturn") and "contextmanager" not in _decorators(
        node
    )
    if (
        gives
        and not re.search(r"^(Returns|Yields):", text, re.MULTILINE)
        and not _is_attribute(node)
    ):
        yield "Returns: is missing"
    if _raises(node) and not re.search(r"^Raises:", text, re.MULTILINE):
        yield "Raises: is missing"


def docstring_faults(path: Path, text: str) -> Iterator[Finding]:
    """Yield what is wrong with the docstrings of a module.

    Args:
        path: A Python file of the package.
        text: Its source.

    Yields:
        Findings of the rules `docstring`, `verb` and `sections`.
    """
    try:
        package = path.relative_to(PACKAGE).parts[0]
        names = exported().get(package, set())
    except ValueError:
        names = set()
    yield from _faults_of(path, ast.parse(text).body, names, owner="")


def _faults_of(
    path: Path, body: list[ast.stmt], names: set[str], *, owner: str
) -> Iterator[Finding]:
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _faults_of(path, node.body, names, owner=owner)
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        public = not node.name.startswith("_")
        label = f"{owner}{node.name}"
        if isinstance(node, ast.ClassDef):
            if public and not text:
                yield Finding(path, node.lineno, "docstring", label)
            inner = {"*"} if node.name in names or "*" in names else set()
            yield from _faults_of(path, node.body, inner, owner=f"{label}.")
            continue
        if "overload" in _decorators(node):
            continue
        if not text:
            if public and not (owner and node.name in _inherited()):
                yield Finding(path, node.lineno, "docstring", label)
            continue
        first = re.match(r"[\w-]*", text)
        if (
            not _is_attribute(node)
            and not node.name.startswith("__")
            and first
            and first.group() not in lists()["verbs"]
        ):
            yield Finding(path, node.lineno, "verb", f"{label}: {text.splitlines()[0]}")
        if public and (node.name in names or "*" in names):
            for what in _missing_sections(node, text):
                yield Finding(path, node.lineno, "sections", f"{label}: {what}")


def template_of(node: ast.expr) -> str:
    """Return a message as text, with `{expression}` where a value is put in.

    Args:
        node: The expression of the message.

    Returns:
        The text; a part that is not text is its source in braces.
    """
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.JoinedStr(values=values):
            return "".join(template_of(one) for one in values)
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return template_of(left) + template_of(right)
        case _:
            return f"{{{ast.unparse(node)}}}"


def messages(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the templates of the messages of a module: errors of its own and warnings.

    Args:
        text: The source of a Python file.

    Yields:
        The line, the class of the error and the template.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).split(".")[-1]
            if name in lists()["errors"] or ast.unparse(node.func) == "warnings.warn":
                yield node.lineno, name, template_of(node.args[0])


@cache
def _remedy() -> re.Pattern[str]:
    verbs = "|".join(lists()["remedies"])
    return re.compile(
        rf"(?:^|[.;:,(?!]\s+|\s(?:or|and|to|then|instead|please)\s+|['\"]\s)(?:{verbs})\b"
        r"|\bmust\b|\bno remedy\b|\bdid you mean\b"
        r"|\{[^}]*(?:remedy|advice|hint|how|tail)[^}]*\}\W*$",
        re.IGNORECASE,
    )


def message_faults(path: Path, text: str) -> Iterator[Finding]:
    """Yield the messages of a module that name no remedy.

    Args:
        path: A Python file of the package.
        text: Its source.

    Yields:
        One finding for each message. A message that only passes on others' text is not judged.
    """
    for line, _, template in messages(text):
        own = re.sub(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", "", template)
        if len(re.findall(r"[a-z]{2,}", own)) > 2 and not _remedy().search(template):
            yield Finding(path, line, "remedy", template)


def findings(path: Path) -> list[Finding]:
    """Return everything that is wrong with a file.

    Args:
        path: A Python file or a document.

    Returns:
        The findings, in the order of the rules.
    """
    return findings_in(path, path.read_text(encoding="utf-8"))


def findings_in(path: Path, text: str) -> list[Finding]:
    """Return everything that is wrong with a text.

    Args:
        path: The file that it stands for, which decides the rules.
        text: What the file contains.

    Returns:
        The findings, in the order of the rules.
    """
    found = list(banned_words(path, text))
    if path.suffix == ".py" and PACKAGE in path.parents:
        found += [*docstring_faults(path, text), *message_faults(path, text)]
    return found


def files_of(root: Path) -> list[Path]:
    """Return the files that the rules cover, in a folder or a file.

    Args:
        root: A folder, or one file.

    Returns:
        Python, C, Markdown, HTML, CSS and JavaScript files.
    """
    kinds = {".py", ".md", ".c", ".h", ".html", ".js", ".css", ".toml"}
    return [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.suffix in kinds)


def main() -> int:
    """Print the findings of the files that are named, or of the whole project."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--rule", action="append", help="only this rule; repeatable")
    options = parser.parse_args()
    given = options.paths or [ROOT / "src", ROOT / "docs", ROOT / "README.md"]
    found = [
        one
        for path in given
        for file in files_of(path.resolve())
        for one in findings(file)
        if not options.rule or one.rule in options.rule
    ]
    print(*found, sep="\n")
    print(f"{len(found)} findings", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
