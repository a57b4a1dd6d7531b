"""Files: designs, tables of people, arrays, checkpoints, and exported models."""

import contextlib
import io
import json
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzzing.harness import Case, Entrance, check
from fuzzing.mutation import bytes_mutated, odd_value, plain_mutated, text_mutated
from sottovoce.core.table_files import CsvColumns
from sottovoce.federated.training import Progress
from sottovoce.learning import datasets
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.design.store import DesignSpec
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.opened import export_model
from sottovoce.runs.spec import CsvSpec
from sottovoce_papers.features import public_images

_TABLE = "age;name;city\n30;ann;Rome\n41,5;bob;Oslo\n;cy;\n5e3;dan;'x'\n-1;eve;é\n"
_LABELED = "owner,x,y,label\na,0.5,1,cat\nb,0.25,2,dog\nc,1,3,cat\nd,0,4,dog\ne,0.1,5,cat\n"


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)


def _designs(folder: Path) -> Case:
    spec = DesignSpec(family="strict", epsilon=1.0, inputs=2, letters=2)
    design = store.solve(spec)
    described = store.save(design, folder)
    (arrays,) = folder.glob("*.npz")
    plain, content = json.loads(described.read_text()), arrays.read_bytes()

    def case(random: Random) -> None:
        changed, archive = plain, content
        if random.random() < 0.6:
            changed = plain_mutated(random, plain)
        else:
            archive = _archive_mutated(random, content)
        described.write_bytes(_json_text(changed).encode("utf-8", "surrogatepass"))
        arrays.write_bytes(archive)
        found = store.load(folder, spec)
        check(found.table.digest == design.table.digest, "another design was accepted")

    return case


def _archive_mutated(random: Random, content: bytes) -> bytes:
    """Change bytes of the file, or of an array in it, so that zip still finds it whole."""
    if random.random() < 0.4:
        return bytes_mutated(random, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(list(members))
    what = random.randrange(4)
    if what == 0:
        members[name] = bytes_mutated(random, members[name])
    elif what == 1:
        members[text_mutated(random, name).replace("\x00", "") or "x"] = members.pop(name)
    elif what == 2:
        members[name] = _npy(odd_value(random))
    else:
        header, _, rest = members[name].partition(b"\n")
        members[name] = bytes_mutated(random, header) + b"\n" + rest
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, data in members.items():
            with contextlib.suppress(UnicodeEncodeError):
                archive.writestr(member, data)
    return buffer.getvalue()


def _npy(value: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        np.save(buffer, np.asarray(value), allow_pickle=False)
    except (ValueError, OverflowError):
        np.save(buffer, np.zeros((3, 2)))
    return buffer.getvalue()


def _columns(folder: Path) -> Case:
    path = folder / "people.csv"
    text = _TABLE.encode()

    def case(random: Random) -> None:
        if random.random() < 0.5:
            path.write_bytes(bytes_mutated(random, text))
        else:
            path.write_bytes(text_mutated(random, _TABLE).encode("utf-8", "surrogatepass"))
        header = random.random() < 0.7
        table = CsvColumns(
            path=path,
            columns=random.choice((("age",), ("name",), ("age", "city"), ("0",), (None,))),
            header=header,
            delimiter=random.choice((None, None, ",", ";", "\n", '"')),
            encoding=random.choice(("utf-8", "latin-1", "utf-16")),
            missing=random.choice(("refuse", "skip", "keep")),
        )
        table.count_lines()
        if random.random() < 0.5:
            people = sum(len(batch) for batch in table.numbers())
        else:
            people = sum(len(batch) for batch in table.words())
        check(people < 1000, "people were made up")

    return case


def _own_tables(folder: Path) -> Case:
    path = folder / "own.csv"
    options = [
        {},
        {"owner_column": "owner"},
        {"label_columns": ["y"], "label": "number"},
        {"classes": ["cat", "dog"], "bounds": {"*": [0.0, 1.0], "y": [0.0, 9.0]}},
        {"header": False},
    ]

    def case(random: Random) -> None:
        text = text_mutated(random, _LABELED) if random.random() < 0.8 else _LABELED
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        if random.random() < 0.2:
            path.write_bytes(bytes_mutated(random, _LABELED.encode()))
        spec = CsvSpec.model_validate(random.choice(options))
        found = datasets.load(f"csv:{path}", np.random.default_rng(1), csv=spec.options())
        check(bool(np.isfinite(found.train_features).all()), "a feature is not finite")

    return case


def _own_arrays(folder: Path) -> Case:
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (20, 4, 4)).astype(np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, x=images, y=np.arange(20) % 2, images=images)
    content = buffer.getvalue()
    path = folder / "own.npz"

    def case(random: Random) -> None:
        path.write_bytes(_archive_mutated(random, content))
        if random.random() < 0.3:
            public_images.read(path, (1, 4, 4))
            return
        found = datasets.load(f"npz:{path}", np.random.default_rng(1))
        check(bool(np.isfinite(found.train_features).all()), "a feature is not finite")

    return case


def _checkpoints(folder: Path) -> Case:
    run = RunFolder(folder)
    header = {
        "spec": {"privacy": {"delta": 1e-5, "adjacency": "zero-out"}},
        "spec_hash": "0" * 16,
        "layout": [["weight", [2, 3]], ["bias", [2]]],
        "guarantee": "none",
        "randomness": "seeded",
        "sampling_grade": "exact",
    }
    run.create(header, with_ledger=True)
    state = {"momentum": np.zeros(8)}
    run.save_checkpoint(Progress(rounds_done=3, model=np.ones(8), algorithm_state=state), 0)
    path = folder / "checkpoint.npz"
    content = path.read_bytes()
    target = folder / "model.safetensors"

    def case(random: Random) -> None:
        path.write_bytes(_archive_mutated(random, content))
        told = plain_mutated(random, header) if random.random() < 0.3 else header
        text = _json_text(told).encode("utf-8", "surrogatepass")
        (folder / "run.json").write_bytes(text)
        progress = run.load_checkpoint()
        assert progress is not None
        run.charges_at_checkpoint()
        export_model(folder, target)

    return case


ENTRANCES = (
    Entrance(name="designs", share=5_000, prepare=_designs),
    Entrance(name="csv-columns", share=30_000, prepare=_columns),
    Entrance(name="own-tables", share=15_000, prepare=_own_tables),
    Entrance(name="own-arrays", share=15_000, prepare=_own_arrays),
    Entrance(name="checkpoints", share=6_000, prepare=_checkpoints),
)
