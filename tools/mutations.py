"""Plant faults one at a time: the tests that docs/explanation/theorems.md names must find them.

    python tools/mutations.py [--only WORDS]

Each fault is a small change of the code under a theorem, of the kind that would make a printed
epsilon too small. It is planted in a copy of the tree, and the tests that the theorem's entry names
are run there: one of them must fail. Exit 1 if a fault was not caught, or no longer fits the code.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
_COPIED = (
    "conftest.py",
    "src",
    "papers",
    "tests",
    "examples",
    "docs",
    "benchmarks",
    "tools",
    "pyproject.toml",
)


def tests_of(page: str) -> dict[str, list[str]]:
    """Return the tests that each theorem's entry names, by its title."""
    body = page.split("\n## What is assumed")[0]
    found: dict[str, list[str]] = {}
    for entry in re.split(r"\n### ", body)[1:]:
        title = entry.split("\n", 1)[0].split(". ", 1)[1].strip()
        found[title] = list(dict.fromkeys(re.findall(r"`((?:papers/)?tests/[\w/.]+::\w+)`", entry)))
    return found


def misfits(faults: Sequence[Fault] = FAULTS) -> list[str]:
    """Return the faults that cannot be planted: their text must occur exactly once."""
    wrong = []
    for fault in faults:
        count = (ROOT / fault.place).read_text().count(fault.old)
        if count != 1:
            wrong.append(f"{fault.name}: found {count} times")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="faults whose theorem or file holds these words")
    given = parser.parse_args(arguments)
    chosen = [fault for fault in FAULTS if given.only in fault.theorem or given.only in fault.path]
    if not chosen:
        parser.error(f"no fault has '{given.only}' in its theorem or file")
    if wrong := misfits(chosen):
        print("\n".join(wrong))
        return 1
    named = tests_of((ROOT / "docs/explanation/theorems.md").read_text())
    missed = 0
    with tempfile.TemporaryDirectory(prefix="sottovoce-mutations-") as folder:
        copy = Path(folder)
        _copy(copy)
        for fault in chosen:
            start = time.perf_counter()
            caught = planted(copy, fault, named[fault.theorem])
            missed += not caught
            verdict = f"caught by {caught}" if caught else "NOT CAUGHT"
            seconds = time.perf_counter() - start
            print(f"{verdict}, {seconds:.0f} s: {fault.theorem}\n    {fault.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults were caught")
    return int(missed > 0)


def _copy(to: Path) -> None:
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / name)


def planted(copy: Path, fault: Fault, tests: Sequence[str]) -> str:
    """Return the test that fails with the fault in the copy, or ''; restore the copy."""
    path = copy / fault.place
    honest = path.read_text()
    path.write_text(honest.replace(fault.old, fault.new))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
            cwd=copy,
            env={
                **os.environ,
                "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy / 'papers/src'}",
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(honest)
    failed = re.search(r"^(?:FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE)
    # Exit 1: a test failed. Anything else (a file that cannot be collected) catches nothing.
    return failed[1] if done.returncode == 1 and failed else ""


if __name__ == "__main__":
    sys.exit(main())
