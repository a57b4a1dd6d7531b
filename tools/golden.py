"""Seeded runs and commands whose output must stay the same, byte for byte: `make golden`.

Each case is a command line. Its exit status, what it prints and every file that it writes are
digested and compared with tools/golden.json, where each kind of processor has digests of its own,
since sums of floating-point numbers differ between them.

    python tools/golden.py                       compare; exit 1 if anything differs
    python tools/golden.py --only run            only cases whose names hold these words
    python tools/golden.py --write               write this processor's digests in place of the old
    python tools/golden.py --tree OLD --write    the same, from another checkout (the commit before)

A change of a digest is committed with the reason for it.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIGESTS = ROOT / "tools" / "golden.json"
_SHORT = "--set randomness=seeded --set rounds=4"
_CENTRAL = (
    "--set channel.kind=central --set 'mechanism={kind=\"gaussian\"}' --set runtime.messages=none"
)
_TIMEOUT_SECONDS = 900.0
# Keys of JSON files and tables that tell the time, the place or the version and nothing else.
_PASSING = re.compile(
    r"seconds|version|created|started|time|machine|python|rss|memory|path|folder|^bytes$|^sottovoce$"
)
_VERSION = re.compile(rb"(?i)(sottovoce )\d+\.\d+\.\d+")  # in pages


@dataclass(frozen=True, slots=True)
class Case:
    """A command line in an empty folder; `after` names the case in whose folder it runs instead."""

    arguments: str
    after: str | None = None


def _run(example: str, options: str = _SHORT) -> Case:
    return Case(f"run EXAMPLES/{example}.toml --out out --json {options}")


CASES: dict[str, Case] = {
    "run one bit": _run("one_bit"),
    "run one bit, packed": _run("one_bit", f"{_SHORT} --set runtime.messages=packed"),
    "run one bit, no messages": _run("one_bit", f"{_SHORT} --set runtime.messages=none"),
    "run secure sum": _run("secure_sum"),
    "run shuffled": _run("shuffled"),
    "run seeded": _run("seeded"),
    "run client budgets": _run("client_budgets"),
    "run client level": _run("client_level"),
    "run scaffold": _run("scaffold"),
    "run nbafl": _run("nbafl"),
    "run secret order": _run("secret_order", "--set randomness=seeded --set rounds=15"),
    "run central": _run("client_level", f"{_SHORT} {_CENTRAL}"),
    "ledger show": Case("ledger show out --json", after="run one bit"),
    "ledger total": Case("ledger total out --every --delta 1e-5 --json", after="run one bit"),
    "report": Case("report out --out report.html --json", after="run one bit"),
    "estimate mean": Case(
        "estimate mean EXAMPLES/people.csv --column age --lower 0 --upper 120 --epsilon 1"
        " --seed 1 --json"
    ),
    "estimate histogram": Case(
        "estimate histogram EXAMPLES/people.csv --column age --lower 0 --upper 120 --bins 12"
        " --epsilon 1 --seed 1 --json"
    ),
    "estimate quantiles": Case(
        "estimate quantiles EXAMPLES/people.csv --column age --lower 0 --upper 120 --epsilon 1"
        " --seed 1 --json"
    ),
    "plan": Case("plan --epsilon 4 --delta 1e-5 --dimension 10000 --rounds 100 --json"),
    "privacy spend": Case(
        "privacy spend --mechanism gauss_hermite --param levels=2 --param noise_multiplier=5"
        " --dimension 1000 --rounds 100 --delta 1e-5 --json"
    ),
    "privacy calibrate": Case(
        "privacy calibrate --mechanism gauss_hermite --param levels=2 --dimension 1000"
        " --rounds 100 --epsilon 4 --delta 1e-5 --json"
    ),
    "mechanism list": Case("mechanism list --json"),
}


def digests(tree: Path, folder: Path, only: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Run the cases of a checkout; yield the digest of each thing that a case leaves."""
    folders: dict[str, Path] = {}
    for name, case in CASES.items():
        wanted = only in name or any(only in n for n, c in CASES.items() if c.after == name)
        if not wanted:
            continue
        if case.after is None:
            folders[name] = folder / name.replace(" ", "-").replace(",", "")
            folders[name].mkdir()
        place = folders[case.after or name]
        before = {path for path in place.rglob("*") if path.is_file()}
        done = _command(tree, case.arguments, place, folder / "cache")
        found = {"exit": str(done.returncode), "output": _digest(_settled(done.stdout))}
        if done.returncode != 0:
            found["error"] = done.stderr.strip().replace(str(folder), "")[-300:]
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            if path not in before and path.suffix != ".html":  # Pages are prose and pictures.
                found[str(path.relative_to(place))] = _digest_of_file(path)
        if only in name:
            yield name, found


def _command(
    tree: Path, arguments: str, place: Path, cache: Path
) -> "subprocess.CompletedProcess[str]":
    words = shlex.split(arguments.replace("EXAMPLES", str(tree / "examples")))
    return subprocess.run(
        [sys.executable, "-m", "sottovoce", *words],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree / "papers" / "src")]),
            "OMP_NUM_THREADS": "1",
            "SOTTOVOCE_CACHE": str(cache),
        },
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )


def _digest_of_file(path: Path) -> str:
    match path.suffix:
        case ".json" | ".jsonl":
            return _digest(_settled(path.read_text()))
        case ".sqlite":
            return _digest(_rows(path))
        case _:
            content = _VERSION.sub(rb"\1", path.read_bytes())
            return hashlib.sha256(content).hexdigest()[:16]


def _rows(path: Path) -> str:
    """Return all rows of a ledger but for what is drawn for each file."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT run, client, round, uplink, attempt, unit, json FROM charges "
            "JOIN events ON events.id = event ORDER BY charges.id"
        ).fetchall()
        budgets = database.execute("SELECT client, epsilon, delta, adjacency, unit FROM budgets")
        messages = database.execute("SELECT charge, hex(digest) FROM messages ORDER BY charge")
        return json.dumps([rows, budgets.fetchall(), messages.fetchall()])


def _settled(text: str) -> str:
    """Return JSON lines with sorted keys, without what passes and without prose; text as it is."""

    def settle(value: object) -> object:
        match value:
            case dict():
                kept = {k: settle(v) for k, v in value.items() if not _PASSING.search(str(k))}
                return dict(sorted(kept.items()))
            case list():
                return [settle(one) for one in value]
            case str() if " " in value:
                return "prose"  # Sentences may be reworded; their numbers are fields, too.
            case _:
                return value

    def read(one: str) -> str:
        try:
            return json.dumps(settle(json.loads(one)))
        except ValueError:
            return one

    whole = read(text)
    return whole if whole != text else "\n".join(map(read, text.splitlines()))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main() -> int:
    """Compare or write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="words that the names of cases hold")
    parser.add_argument("--write", action="store_true", help="write digests, compare nothing")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout to run")
    chosen = parser.parse_args()
    known = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    mine = known.setdefault(platform.machine(), {})
    if not mine and not chosen.write:
        print(
            f"tools/golden.json has no digests for {platform.machine()}: check out the commit "
            "before yours, and write them with --tree FOLDER --write"
        )
        return 2
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        for name, found in digests(chosen.tree.resolve(), Path(scratch), chosen.only):
            if chosen.write:
                mine[name] = found
                print(f"{name}: {len(found)} digests", flush=True)
                continue
            expected = mine.get(name, {})
            different = sorted(
                key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)
            )
            wrong += bool(different)
            print(f"{name}: {'same' if not different else 'DIFFERS in ' + ', '.join(different)}")
            if found.get("error") != expected.get("error"):
                print(f"  {found.get('error')}", flush=True)
    if chosen.write:
        DIGESTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
