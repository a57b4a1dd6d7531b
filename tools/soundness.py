"""Run the tests that docs/explanation/theorems.md names with ten times the cases.

    python tools/soundness.py [--only WORDS] [--cases 10] [--page FILE]

Tests run one after another, each in its own process; `make soundness` writes the log
results/soundness.md and its data as JSON. A test that has passed at this commit of the code with as
many cases is not run again. The exit code is 1 if any test has failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.files import write_atomic

ROOT = Path(__file__).resolve().parents[1]
THEOREMS = ROOT / "docs" / "explanation" / "theorems.md"
_CODE = ("src", "tests", "pyproject.toml", "constraints.txt", "setup.py")
_TIMEOUT_SECONDS = 3600.0
Row = dict[str, Any]


def named_tests(page: str) -> list[str]:
    """Return the tests that a page of theorems names, in its order, each once."""
    body = page.split("\n## What is assumed")[0]
    return list(dict.fromkeys(re.findall(r"`((?:papers/)?tests/[\w/.]+::\w+)`", body)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="tests whose name holds these words")
    parser.add_argument("--cases", type=int, default=10, help="how many times the usual cases")
    parser.add_argument("--page", type=Path, default=ROOT / "results" / "soundness.md")
    given = parser.parse_args(arguments)
    named = named_tests(THEOREMS.read_text())
    chosen = [test for test in named if given.only in test]
    if not chosen:
        parser.error(f"no test that docs/explanation/theorems.md names holds '{given.only}'")
    path = given.page.with_suffix(".json")
    rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}
    rows = {test: row for test, row in rows.items() if test in named}
    commit = code_commit()
    for test in chosen:
        if not _is_done(rows.get(test), commit, given.cases):
            rows[test] = run(test, given.cases, commit)
            print(f"{rows[test]['outcome']}: {test}, {rows[test]['cases']} cases", flush=True)
        _write(given.page, named, rows)
    return int(any(rows[test]["outcome"] != "passed" for test in chosen))


def _is_done(row: Row | None, commit: str, factor: int) -> bool:
    if row is None or commit.endswith("+"):
        return False
    return bool(row["outcome"] == "passed" and (row["commit"], row["factor"]) == (commit, factor))


def code_commit() -> str:
    """Return the last commit of what is tested; '+' if files differ from it."""
    last = _git("log", "-1", "--format=%h", "--", *_CODE)
    return f"{last or 'unknown'}{'+' if _git('status', '--porcelain', '--', *_CODE) else ''}"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def run(test: str, factor: int, commit: str) -> Row:
    """Run one test with all of its parameters and `factor` times the cases."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="sottovoce-soundness-") as folder:
        log = Path(folder) / "cases.json"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            "CASES": str(factor),
            "CASES_LOG": str(log),
        }
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        outcome, why = _outcome(words, environment)
        tried = json.loads(log.read_text()) if log.exists() else {}
    if outcome == "passed" and not tried:
        outcome, why = "failed", "no test ran"
    return {
        "outcome": outcome,
        "why": why,
        "tests": len(tried),
        "cases": sum(tried.values()),
        "factor": factor,
        "seconds": round(time.perf_counter() - start, 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit,
    }


def _outcome(words: list[str], environment: dict[str, str]) -> tuple[str, str]:
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "failed", f"took more than {_TIMEOUT_SECONDS:.0f} seconds"
    if done.returncode == 0:
        return "passed", ""
    errors = [line for line in done.stdout.splitlines() if line.startswith(("E  ", "FAILED"))]
    return "failed", " ".join(errors)[:400] or f"pytest ended with {done.returncode}"


def _write(page: Path, named: Sequence[str], rows: dict[str, Row]) -> None:
    write_atomic(
        page.with_suffix(".json"), (json.dumps(rows, indent=1, sort_keys=True) + "\n").encode()
    )
    write_atomic(page, _page(named, rows).encode())


def _page(named: Sequence[str], rows: dict[str, Row]) -> str:
    failed = [test for test in named if test in rows and rows[test]["outcome"] != "passed"]
    lines = [
        "# Soundness, with more cases",
        "",
        "Every test that [the theorems](../docs/explanation/theorems.md) name, by "
        "`make soundness`: examples of property tests, draws and grids are as many times the "
        "usual as the column says. A test of one situation has as many cases as situations, "
        "whatever the factor.",
        "",
        f"{len(rows)} of {len(named)} tests were run, with "
        f"{sum(row['cases'] for row in rows.values()):,} cases; {len(failed)} failed.",
        *(f"\n- **{test}**: {rows[test]['why']}" for test in failed),
        "",
        "| test | cases | times | outcome | seconds | date | commit |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {test} | {row['cases']:,} | {row['factor']} | {row['outcome']} | {row['seconds']} "
            f"| {row['date']} | {row['commit']} |"
            for test in named
            if (row := rows.get(test))
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
