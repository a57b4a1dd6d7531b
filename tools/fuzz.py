"""Fuzz every entrance: `python tools/fuzz.py --cases 1000000 --seed 1 --out results/fuzz.md`.

Cases are drawn from a seed: the same seed gives the same cases, and a single case can be repeated
 (`--only ENTRANCE --case NUMBER`). The counts are kept as JSON next to the
page, so that an interrupted run can continue with the entrance at which it stopped (`--resume`).
The exit code is 1 if anything was found.
"""

import argparse
import datetime
import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fuzzing import entrances
from fuzzing.harness import Entrance, Outcome, case_seed, run_cases

_EVERY_SECONDS = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    chosen = [one for one in entrances.ENTRANCES if given.only in (None, one.name)]
    if not chosen:
        names = ", ".join(one.name for one in entrances.ENTRANCES)
        print(f"there is no entrance '{given.only}'; there are {names}", file=sys.stderr)
        return 2
    if given.case is not None:
        return _alone(chosen[0], given.case, given.seed)
    shares = sum(one.share for one in chosen)
    kept = Path(f"{given.out}.json") if given.out else None
    counted = _kept(kept, given.seed) if given.resume else {}
    for entrance in chosen:
        cases = max(1, round(given.cases * entrance.share / shares))
        if entrance.name in counted and counted[entrance.name]["of"] == cases:
            continue
        outcome, seconds = _run(entrance, cases, given.seed)
        counted[entrance.name] = {**asdict(outcome), "of": cases, "seconds": round(seconds, 1)}
        if kept is not None:
            kept.write_text(json.dumps({"seed": given.seed, "counted": counted}, indent=1) + "\n")
    page = _page(counted, given.seed)
    print(page)
    if given.out:
        Path(given.out).write_text(page, encoding="utf-8")
    return 1 if any(one["num_found"] for one in counted.values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="in all entrances together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="only this entrance, with all cases")
    parser.add_argument("--case", type=int, help="one case, with its traceback (with --only)")
    parser.add_argument("--out", help="write the table here, and counts as JSON next to it")
    parser.add_argument("--resume", action="store_true", help="skip entrances that are counted")
    return parser


def _run(entrance: Entrance, cases: int, seed: int) -> tuple[Outcome, float]:
    begun = told = time.monotonic()

    def progress(number: int) -> None:
        nonlocal told
        if time.monotonic() - told > _EVERY_SECONDS:
            told = time.monotonic()
            print(f"{entrance.name}: {number + 1} of {cases}", file=sys.stderr, flush=True)

    outcome = run_cases(entrance, cases, seed, on_case=progress)
    for found in outcome.found:
        print(f"FOUND {entrance.name}: {found}", file=sys.stderr, flush=True)
    return outcome, time.monotonic() - begun


def _alone(entrance: Entrance, number: int, seed: int) -> int:
    """Repeat one case and print its traceback."""
    outcome = run_cases(entrance, 1, seed, first=number, on_error=traceback.print_exception)
    print(f"seed of the case: {case_seed(seed, entrance.name, number)}; {asdict(outcome)}")
    return 1 if outcome.num_found else 0


def _kept(path: Path | None, seed: int) -> dict[str, dict[str, object]]:
    if path is None or not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    counted: dict[str, dict[str, object]] = found["counted"] if found["seed"] == seed else {}
    return counted


def _page(counted: dict[str, dict[str, object]], seed: int) -> str:
    names = ("accepted", "refused", "num_found")
    totals = {name: sum(int(str(one[name])) for one in counted.values()) for name in names}
    lines = [
        "# Hostile input",
        "",
        f"`python tools/fuzz.py --seed {seed}`, {datetime.date.today().isoformat()}: "
        f"{sum(totals.values()):,} cases. *Refused* is one of our errors, and nothing charged; "
        "*accepted* came back as it was; *found* is anything else.",
        "",
        "| entrance | cases | accepted | refused | found |",
        "|---|---|---|---|---|",
    ]
    rows = {name: [int(str(one[key])) for key in names] for name, one in counted.items()}
    for name, figures in {**rows, "all": list(totals.values())}.items():
        cells = " | ".join(f"{figure:,}" for figure in (sum(figures), *figures))
        lines.append(f"| {name} | {cells} |")
    found = [f"- {name}: {text}" for name, one in counted.items() for text in _found(one)]
    return "\n".join([*lines, *(["", *found] if found else [])]) + "\n"


def _found(one: dict[str, object]) -> list[str]:
    found = one["found"]
    assert isinstance(found, list)
    return found


if __name__ == "__main__":
    sys.exit(main())
