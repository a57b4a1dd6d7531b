"""Specs: as data, as TOML text, and overrides of the command line."""

import tomllib
from pathlib import Path
from random import Random
from typing import Any

from fuzzing.harness import Case, Entrance, check
from fuzzing.mutation import ODD_TEXTS, plain_mutated, text_mutated
from sottovoce.runs.loading import override, parse, parse_assignments, parse_text, toml_text
from sottovoce.runs.spec import RunSpec

_EXAMPLES = Path(__file__).parents[2] / "examples"
_PARTS: list[dict[str, Any]] = [
    {"mechanism": {"kind": "mvu", "input_bits": 3, "output_bits": 3, "epsilon": 1.0}},
    {"mechanism": "auto", "channel": {"kind": "shuffler", "minimum_clients": 3}},
    {"channel": {"kind": "secure_sum", "minimum_clients": 3}, "rotation": "on"},
    {"sampling": {"kind": "poisson", "rate": 0.5}, "runtime": {"messages": "packed"}},
    {"algorithm": {"kind": "scaffold", "server_learning_rate": 1.0, "local_steps": 2}},
    {"features": [{"kind": "flatten"}, {"kind": "scattering", "views": ["plain", "log"]}]},
    {"data": {"dataset": "csv:x.csv", "sites": {"a": 3}, "csv": {"classes": ["a"]}}},
    {"data": {"dataset": "csv:x.csv", "clients": 3, "csv": {"bounds": {"*": [0, 1]}}}},
    {"model": {"kind": "module", "factory": "a.b:c", "arguments": {"x": [1, {"y": 2.5}]}}},
    {"deployment": {"oversampling": 1.5, "deadline_seconds": 60}},
]  # fmt: skip


def _tables() -> list[dict[str, Any]]:
    files = sorted(_EXAMPLES.glob("*.toml"))
    base = [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]
    specs = [table for table in base if "mechanism" in table and "rounds" in table]
    return [*specs, *({**specs[0], **part} for part in _PARTS)]


def _comes_back(spec: RunSpec) -> None:
    plain = spec.plain()
    check(parse(plain) == spec, "a spec's plain data is another spec")
    written = toml_text(plain)
    check(parse(parse_text(written, "text")).plain() == plain, "a spec's TOML is another spec")
    check(len(spec.hash) == 16, "a spec has no hash")


def _as_data(_: Path) -> Case:
    tables = _tables()

    def case(random: Random) -> None:
        table = plain_mutated(random, random.choice(tables))
        _comes_back(parse(table if isinstance(table, dict) else {"name": table}))

    return case


def _as_text(_: Path) -> Case:
    texts = [toml_text(parse(table).plain()) for table in _tables()]

    def case(random: Random) -> None:
        _comes_back(parse(parse_text(text_mutated(random, random.choice(texts)), "text")))

    return case


def _overrides(_: Path) -> Case:
    tables = _tables()
    given = ["privacy.epsilon=2", "data.clients=3", "features.0.kind=flatten", "mechanism.levels=4",
             "data.names=['a','b']", "name=x", "rounds=1e3", "data.csv.header=false"]  # fmt: skip

    def case(random: Random) -> None:
        table = plain_mutated(random, random.choice(tables), times=1)
        table = table if isinstance(table, dict) else {}
        texts = [random.choice(given) for _ in range(random.randrange(1, 3))]
        texts = [text_mutated(random, text) if random.random() < 0.7 else text for text in texts]
        if random.random() < 0.1:
            texts.append(random.choice(ODD_TEXTS))
        for key, value in parse_assignments(texts, "--set").items():
            override(table, key, value, source="--set")
        _comes_back(parse(table))

    return case


ENTRANCES = (
    Entrance(name="specs-as-data", share=100_000, prepare=_as_data),
    Entrance(name="specs-as-text", share=60_000, prepare=_as_text),
    Entrance(name="spec-overrides", share=40_000, prepare=_overrides),
)
