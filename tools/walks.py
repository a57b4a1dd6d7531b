"""Count what a reader of the package meets, in this checkout or another: `make walks`.

    python tools/walks.py                   counts, and both walks with their files
    python tools/walks.py --tree OLD        the same for another checkout
    python tools/walks.py --static          without the walks, which take two minutes
    python tools/walks.py --json

**Static counts** (from the syntax trees of src/sottovoce; papers/ is counted apart):

- packages and loose modules: folders, and files other than `__init__.py`, of the top level.
- lines of code: lines that hold a token, without docstrings, comments and blank lines.
- type tests: classes of channels, algorithms and client samplings, or of their sections in a spec,
  that stand in `isinstance`, in a pattern of `match` or next to `type(...) is`, and comparisons of
  their `kind`; in any other file than that of the class.
- cost: calls of `Mechanism.privacy` outside mechanisms/ and auditing/.
- encode: calls of a mechanism's `encode` (two arguments or more) outside mechanisms/.
- import depth: the longest module path that README.md or docs/ imports from: `sottovoce.runs` is 2.

**Walks** (traced: examples/one_bit.toml, one round, seeded, stored messages):

- update: the example is run twice, and the second time the clients' data are scaled just before the
  round. Files with a function whose arguments hold another array or byte string than in the first
  run are those that the update's values pass, from the client's data to the new model.
- spec: files with a function that receives, before the first round, the spec's path, its table, a
  section, text or a fraction in these, or an object that such a function returned or constructed.

Files of core/ (in older layouts: loose modules), of privacy/ and of ledger/ count once for each
of the three: `files` lists all, `counted` is the number to compare.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TRACER = ROOT / "tools" / "walk_tracer.py"
_TIMEOUT_SECONDS = 900.0
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
_CHOSEN = ("channel", "algorithm", "sampling")  # sections whose `kind` says which class is meant
_MECHANISMS = ("mechanisms", "design", "noises", "kernels")  # the latter three in older layouts
_AUDITING = ("auditing", "attacks", "run_attacks")
_ONCE = {"core": "core", "privacy": "privacy", "ledger": "ledger"}


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the package: its path from the package's root, its syntax tree, its lines."""

    path: str
    tree: ast.Module
    code_lines: int

    @property
    def package(self) -> str:
        return self.path.partition("/")[0] if "/" in self.path else ""


def modules_of(sources: Path, pattern: str = "*.py") -> list[Module]:
    found = []
    for file in sorted(sources.rglob(pattern)):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        path = file.relative_to(sources).as_posix()
        found.append(Module(path=path, tree=tree, code_lines=_code_lines(file, tree)))
    return found


def _code_lines(file: Path, tree: ast.Module) -> int:
    lines: set[int] = set()
    with tokenize.open(file) as text:
        for token in tokenize.generate_tokens(text.readline):
            if token.type not in _NO_CODE:
                lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and ast.get_docstring(node, clean=False) is not None:
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def concrete_classes(modules: list[Module]) -> dict[str, set[str]]:
    """Return channels, algorithms, samplings and their sections: name, and the files of each."""
    found: dict[str, set[str]] = {"AlgorithmSpec": set()}
    defined: list[tuple[str, str]] = []
    for module in modules:
        for node in module.tree.body:
            if not isinstance(node, ast.ClassDef):
                continue
            defined.append((node.name, module.path))
            if not any(_name(base) == "Protocol" for base in node.bases) and _is_choice(
                module.path, node
            ):
                found.setdefault(node.name, set()).add(module.path)
    names = set(found)
    for name, path in defined:
        if name == "AlgorithmSpec" or (name not in names and name.removesuffix("Spec") in names):
            found.setdefault(name, set()).add(path)
    return found


def _is_choice(path: str, node: ast.ClassDef) -> bool:
    methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    parts = path.split("/")
    return (
        ("channels" in parts and "describe" in methods)
        or ("algorithms" in parts and "server_step" in methods)
        or parts[-1] == "cohorts.py"
    )


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _name(value)
        case _:
            return ""


def type_tests(modules: list[Module]) -> dict[str, list[int]]:
    """Return the lines of type tests on concrete classes, by file."""
    classes = concrete_classes(modules)
    imports = {module.path: _imports(module) for module in modules}

    def origin(path: str, name: str) -> str:
        """Return the file that defines a name, through files that import it from others."""
        seen = set()
        while (path, name) not in seen and name in imports.get(path, {}):
            seen.add((path, name))
            path, name = imports[path][name]
        return path

    found: dict[str, list[int]] = {}
    for module in modules:
        lines = [
            line
            for node in ast.walk(module.tree)
            for line, name in _tested(node)
            if name == "" or origin(module.path, name) in classes.get(name, set()) - {module.path}
        ]
        if lines:
            found[module.path] = sorted(lines)
    return found


def _imports(module: Module) -> dict[str, tuple[str, str]]:
    """Return (file, name there) of each name that a module imports from the package."""
    found = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sottovoce."):
            path = (node.module or "").removeprefix("sottovoce.").replace(".", "/")
            for alias in node.names:
                found[alias.asname or alias.name] = (f"{path}.py", alias.name)
    return found


def _tested(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and class of what a node tests for; "" is a comparison of kinds."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, tested]):
            yield from _named(tested)
        case ast.MatchClass(cls=tested):
            yield node.lineno, _name(tested)
        case ast.Compare(left=left, comparators=[right]):
            if isinstance(left, ast.Call) and _name(left.func) == "type":
                yield from _named(right)
            for side in (left, right):
                if (
                    isinstance(side, ast.Attribute)
                    and side.attr == "kind"
                    and _name(side.value) in _CHOSEN
                ):
                    yield node.lineno, ""


def _named(node: ast.expr) -> Iterator[tuple[int, str]]:
    yield from ((one.lineno, one.id) for one in ast.walk(node) if isinstance(one, ast.Name))


def calls(modules: list[Module], method: str, *, least: int, outside: tuple[str, ...]) -> list[str]:
    """Return where a method is called with so many arguments or more, outside some packages."""
    return sorted(
        f"{module.path}:{node.lineno}"
        for module in modules
        if module.package not in outside
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and len(node.args) + len(node.keywords) >= least
    )


def documented_imports(tree: Path) -> dict[str, int]:
    """Return every module that the documentation imports from, with its depth."""
    found = {}
    for page in [tree / "README.md", *sorted((tree / "docs").rglob("*.md"))]:
        for line in page.read_text(encoding="utf-8").splitlines():
            words = line.strip().removeprefix(">>> ").split()
            if len(words) > 1 and words[0] in ("from", "import"):
                module = words[1].rstrip(",;")
                if module.split(".")[0] == "sottovoce" and (words[0] == "import" or len(words) > 3):
                    found[module] = module.count(".") + 1
    return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def static_counts(tree: Path) -> dict[str, Any]:
    sources = tree / "src" / "sottovoce"
    modules = modules_of(sources)
    tests = type_tests(modules)
    cost = calls(modules, "privacy", least=1, outside=_MECHANISMS + _AUDITING)
    encode = calls(modules, "encode", least=2, outside=_MECHANISMS)
    imports = documented_imports(tree)
    papers = modules_of(tree / "papers" / "src") if (tree / "papers" / "src").exists() else []
    return {
        "packages": sorted({module.package for module in modules} - {""}),
        "loose_modules": sorted(
            module.path for module in modules if not module.package and module.path != "__init__.py"
        ),
        "files": len(modules),
        "code_lines": sum(module.code_lines for module in modules),
        "papers_files": len(papers),
        "papers_code_lines": sum(module.code_lines for module in papers),
        "type_tests": sum(map(len, tests.values())),
        "type_tests_by_file": tests,
        "cost_calls": cost,
        "encode_calls": encode,
        "import_depth": max(imports.values(), default=0),
        "documented_imports": imports,
    }


def traced(tree: Path, what: str, scratch: Path) -> dict[str, list[str]]:
    """Run the example in a process of its own, and return what the tracer saw."""
    sources = f"{tree / 'src' / 'sottovoce'}/"
    out = scratch / f"{what}.json"
    settings = ["rounds=1", 'randomness="seeded"', 'runtime.messages="stored"']
    command = [
        *(sys.executable, str(TRACER), what, sources, str(out)),
        *("run", str(tree / "examples" / "one_bit.toml"), "--out", str(scratch / what)),
        *(word for setting in settings for word in ("--set", setting)),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "OMP_NUM_THREADS": "1",
        # Every run computes everything, because its cache is empty.
        "SOTTOVOCE_CACHE": str(scratch / f"cache-{what}"),
    }
    done = subprocess.run(
        command,
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"error: the traced run failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, list[str]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def walks(tree: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="walks-") as folder:
        scratch = Path(folder)
        first, second = (traced(tree, what, scratch) for what in ("update", "changed"))
        spec = traced(tree, "spec", scratch)
    differing = {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
    entered = {key.partition(":")[0] for key in first}
    return {
        "update": _walk({key.partition(":")[0] for key in differing}) | {"entered": len(entered)},
        "spec": _walk(set(spec)),
    }


def _walk(files: set[str]) -> dict[str, Any]:
    counted = {_ONCE.get(file.partition("/")[0] if "/" in file else "core", file) for file in files}
    return {"counted": len(counted), "files": sorted(files)}


def report(counts: dict[str, Any]) -> str:
    """Return the counts as text for people."""
    by_file = counts["type_tests_by_file"]
    lines = [
        f"top-level packages              {len(counts['packages'])}",
        f"loose modules                   {len(counts['loose_modules'])}",
        f"files in src/sottovoce          {counts['files']}",
        f"lines of code in src/sottovoce  {counts['code_lines']}",
        f"files, lines of code in papers  {counts['papers_files']}, {counts['papers_code_lines']}",
        f"type tests                      {counts['type_tests']} in {len(by_file)} files",
        *(f"  {file}: lines {', '.join(map(str, at))}" for file, at in by_file.items()),
        f"calls of Mechanism.privacy      {len(counts['cost_calls'])}",
        *(f"  {place}" for place in counts["cost_calls"]),
        f"calls of a mechanism's encode   {len(counts['encode_calls'])}",
        *(f"  {place}" for place in counts["encode_calls"]),
        f"import depth of documentation   {counts['import_depth']}",
        *(f"  {name}" for name, depth in counts["documented_imports"].items() if depth > 2),
    ]
    for name in ("update", "spec"):
        if name in counts:
            walk = counts[name]
            lines.append(f"walk of the {name:<20}{walk['counted']} ({len(walk['files'])} files)")
            lines += [f"  {file}" for file in walk["files"]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--static", action="store_true", help="without the traced walks")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    tree = given.tree.resolve()
    if not (tree / "src" / "sottovoce").is_dir():
        parser.error(f"{tree} is no checkout: it has no src/sottovoce")
    counts = static_counts(tree)
    if not given.static:
        counts |= walks(tree)
    print(json.dumps(counts, indent=2) if given.json else report(counts))


if __name__ == "__main__":
    main()
