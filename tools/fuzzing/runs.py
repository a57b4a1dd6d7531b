"""Folders of runs, as reports and watchers read them, and what is sent to trackers."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

from fuzzing.harness import Case, Entrance, check
from fuzzing.mutation import ODD_TEXTS, bytes_mutated, plain_mutated
from sottovoce.reporting import live as live_run
from sottovoce.reporting.report_data import report_of
from sottovoce.runs import tracking
from sottovoce.runs.loading import parse
from sottovoce.runs.runner import run

_SPEC: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "rounds": 3,
    "randomness": "seeded",
    "data": {"dataset": "digits", "clients": 3},
    "model": {"kind": "linear"},
    "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0},
    "privacy": {"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5},
    "mechanism": {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 8.0},
}


def _text(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError):
        return str(value).encode("utf-8", "surrogatepass")


def _folders(folder: Path) -> Case:
    original, copy = folder / "run", folder / "copy"
    run(parse(_SPEC), original)
    shutil.copytree(original, copy)
    names = ("run.json", "result.json", "metrics.jsonl")
    whole = {name: (original / name).read_bytes() for name in names}

    def case(random: Random) -> None:
        name = random.choice(names)
        if random.random() < 0.2:
            changed = bytes_mutated(random, whole[name])
        elif name == "metrics.jsonl":
            rows = [json.loads(line) for line in whole[name].splitlines()]
            mutated = plain_mutated(random, rows)
            rows = mutated if isinstance(mutated, list) else [mutated]
            changed = b"\n".join(_text(row) for row in rows) + b"\n"
        else:
            changed = _text(plain_mutated(random, json.loads(whole[name])))
        for other, content in whole.items():
            (copy / other).write_bytes(changed if other == name else content)
        if random.random() < 0.1:
            (copy / random.choice(names)).unlink()
        live_run.describe(live_run.read(copy))
        check(bool(report_of([copy])), "there is no report")

    return case


def _tracked(_: Path) -> Case:
    row: dict[str, Any] = {"round": 1, "accuracy": 0.5, "loss": 1.0, "epsilon": 0.3, "bounds": {}}
    result = {**row, "guarantee": "x", "warnings": ["a"], "rounds": 3, "halted": None}

    def case(random: Random) -> None:
        for table in (row, result, _SPEC):
            changed = plain_mutated(random, table)
            if not isinstance(changed, dict):
                continue
            figures = {**tracking.round_figures(changed), **tracking.final_figures(changed)}
            check(all(abs(one) < float("inf") for one in figures.values()), "a figure is infinite")
            tracking.final_texts(changed)
            tracking.flatten_spec(changed)
        text = tracking.without_secrets(f"at https://me:pw@host/{random.choice(ODD_TEXTS)}?key=k")
        check("pw" not in text and "key=k" not in text, "a secret was told")

    return case


ENTRANCES = (
    Entrance(name="run-folders", share=1_000, prepare=_folders),
    Entrance(name="trackers", share=40_000, prepare=_tracked),
)
