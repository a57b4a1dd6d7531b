"""Read a spec from TOML, with overrides, and say in one line what is wrong with it.

Where a spec's own files are: beside the spec, or else where the command runs.

A spec as TOML text: what `loading` reads comes back as it was.

Code that a spec names: it is imported and run, so a spec from a file needs a person's word.
"""

import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sottovoce.core import sections
from sottovoce.core.errors import ConfigError, DataError, SottovoceError, UnknownNameError
from sottovoce.federated.algorithms.algorithm import RECIPES
from sottovoce.runs.sections import as_written, problems_in
from sottovoce.runs.spec import AlgorithmSpec, RunSpec


def check_code_allowed(spec: RunSpec, *, allow_code: bool, how: str = "--allow-code") -> None:
    """Refuse a spec that would import code, unless that is allowed.

    Args:
        spec: What was read from a file, a dictionary or a run folder.
        allow_code: Whether its user has said that the code may run.
        how: What says so, for the error.
    """
    if spec.model.user_factory is not None and not allow_code:
        raise ConfigError(
            f"the spec '{spec.name}' imports and runs code: model.factory = "
            f"'{spec.model.user_factory}'. Read that code, and if you trust it, allow it with {how}"
        )


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, Any]) -> str:
    """Plain data as TOML: values first, then tables; what is null is left out."""
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if _is_value(value)]
    for key, value in table.items():
        if isinstance(value, dict) and value:
            lines += ["", f"[{_key(key)}]"]
            lines += [f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None]
    return "\n".join(lines) + "\n"


def _is_value(value: Any) -> bool:
    return value is not None and not isinstance(value, dict)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case dict():
            inside = ", ".join(
                f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None
            )
            return f"{{ {inside} }}" if inside else "{}"
        case list() | tuple():
            return f"[{', '.join(_value(item) for item in value)}]"
        case _:
            return repr(value)


_LARGEST = 10**300  # below the largest float: any number may meet one
_MOST_NESTED = 32  # a spec has tables in tables in tables, and then it ends


class SpecError(ConfigError):
    """A spec with keys or values that cannot be; `problems` are all of them, the message one.

    `broken` are the keys of the spec, tables mostly, in which they are.
    """

    def __init__(self, problems: Sequence[str], broken: Iterable[str] = ()) -> None:
        super().__init__(problems[0])
        self.problems, self.broken = tuple(problems), frozenset(broken)


def load(
    path: Path, overrides: Sequence[str] = (), *, values: Mapping[str, Any] | None = None
) -> RunSpec:
    """The spec in a TOML file, after `key.path=value` overrides, or values by key path."""
    spec = parse(read_table(path, overrides, values=values), str(path))
    _check_kinds(spec, str(path))
    return spec


def read_table(
    path: Path, overrides: Sequence[str] = (), *, values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what a TOML file holds, after overrides; whether it is a spec is not looked at."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read the spec {path}: {error.strerror or error}; name a TOML file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as such, or name another") from None
    table = parse_text(text, str(path))
    for key, value in parse_assignments(overrides, "--set").items():
        override(table, key, value, source=f"--set {key}")
    for key, value in (values or {}).items():
        override(table, key, value, source="overrides")
    return table


def _check_kinds(spec: RunSpec, source: str) -> None:
    """Refuse kinds that nobody has registered; a record may name what is not installed here."""
    problems, broken = [], []
    for key, section in (
        ("data", spec.data.partition),
        ("model", spec.model),
        *(("features", one) for one in spec.features),
        ("sampling", spec.sampling),
        ("channel", spec.channel),
    ):
        try:
            section.check_kind()
        except UnknownNameError as error:
            problems.append(f"{source}: {error}")
            broken.append(key)
    if problems:
        raise SpecError(problems, broken)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """A spec as far as it can be read.

    Attributes:
        spec: With the example's values in the place of what is broken; None where the data are no
            spec at all.
        problems: All that is wrong with it.
        broken: The keys of the spec, tables mostly, in which that is.
    """

    spec: RunSpec | None
    problems: tuple[str, ...]
    broken: frozenset[str]


def read_all(table: Mapping[str, Any], source: str, folders: Sequence[Path] = ()) -> ReadSpec:
    """Read a spec, and go on behind what is wrong with it to find what else is.

    Args:
        table: Plain data.
        source: Where they are from, for messages.
        folders: Where a relative path to its data is seen from; nowhere by default.
    """
    example = tomllib.loads((files("sottovoce.runs") / "example.toml").read_text("utf-8"))
    table, problems, broken = dict(table), list[str](), frozenset[str]()
    while True:
        try:
            spec = parse(table, source)
            _check_kinds(spec, source)
        except SpecError as error:
            problems += error.problems
            if error.broken <= broken:
                return ReadSpec(spec=None, problems=tuple(problems), broken=broken)
            broken |= error.broken
            for key in error.broken:
                table.pop(key, None)
                table |= {key: example[key]} if key in example else {}
        except ConfigError as error:
            return ReadSpec(spec=None, problems=(*problems, str(error)), broken=broken)
        else:
            break
    if "data" not in broken and folders:
        try:
            spec = with_data_from(spec, folders)
        except DataError as error:
            problems, broken = [*problems, str(error)], broken | {"data"}
    return ReadSpec(spec=spec, problems=tuple(dict.fromkeys(problems)), broken=broken)


def parse_text(text: str, source: str) -> dict[str, Any]:
    """The table that a TOML text holds."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(_too_deep(source)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{source} is not valid TOML: {error}; correct it there ('sottovoce run --example' "
            "prints a spec to compare with)"
        ) from None
    except ValueError:  # Python reads no number of thousands of digits
        raise ConfigError(
            f"{source} holds a number of thousands of digits; give a smaller one"
        ) from None


def _too_deep(source: str) -> str:
    return (
        f"{source} is nested more than {_MOST_NESTED} deep, as no spec is; remove lists and "
        "tables within others"
    )


def parse(table: Mapping[str, Any], source: str = "spec") -> RunSpec:
    """The spec that plain data describes."""
    _check_plain(table, source, ())
    try:
        return _with_every_key(RunSpec.model_validate(dict(table)), source)
    except ValidationError as error:
        problems = [f"{source}: {one}" for one in problems_in(error, RunSpec)]
        raise SpecError(problems, (str(one["loc"][0]) for one in error.errors())) from None


def _with_every_key(spec: RunSpec, source: str) -> RunSpec:
    """The spec with the defaults of its algorithm written out, as its hash holds them."""
    kind, given = spec.algorithm.kind, spec.algorithm.parameters
    try:
        every = sections.completed(RECIPES, "algorithm", kind, given)
        if RECIPES.find_ours(kind) is None and not RECIPES.is_in_papers(kind):
            as_written(given)
    except (SottovoceError, ValueError) as error:
        raise SpecError([f"{source}: {error}"], ["algorithm"]) from None
    algorithm = AlgorithmSpec.model_validate({"kind": kind, **every})
    return spec.model_copy(update={"algorithm": algorithm})


def _check_plain(value: object, source: str, path: tuple[str, ...]) -> None:
    """Refuse what could not be written down and read again as it was: a spec is kept as JSON."""
    where = f"{source}: '{'.'.join(path)}'" if path else source
    if len(path) > _MOST_NESTED:
        raise ConfigError(_too_deep(f"{source}: '{path[0]}'"))
    match value:
        case None | bool():
            return
        case int():
            if abs(value) > _LARGEST:
                raise ConfigError(
                    f"{where} is a number of more than 300 digits; give a smaller one"
                )
        case float():
            if not math.isfinite(value):
                raise ConfigError(f"{where} must be a finite number, got {value!r}")
        case str():
            _check_text(value, where)
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ConfigError(f"{where} has a key that is no text: {key!r}")
                _check_text(key, where)
                _check_plain(item, source, (*path, key))
        case list() | tuple():
            for place, item in enumerate(value):
                _check_plain(item, source, (*path, str(place)))
        case _:
            raise ConfigError(
                f"{where} must be a number, a text, true or false, a list or a table, got {value!r}"
            )


def _check_text(text: str, where: str) -> None:
    """Half of a surrogate pair is no character, and in no file."""
    if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
        raise ConfigError(f"{where} holds text that cannot be written as UTF-8: {text!r}")


def parse_value(text: str) -> Any:
    """A TOML value, or a number as people also write it (.5, 1e5); bare words are strings."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise ConfigError(_too_deep("the value")) from None
    except ValueError:  # a TOMLDecodeError, or a number of thousands of digits
        pass
    try:
        return float(text)
    except ValueError:
        return text


def parse_assignment(text: str, option: str) -> tuple[str, Any]:
    """`key=value` as a pair."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ConfigError(
            f"{option} wants key=value, got '{text}'; write {option} {key.strip() or 'KEY'}=VALUE"
        )
    return key.strip(), parse_value(value.strip())


def parse_assignments(texts: Sequence[str], option: str) -> dict[str, Any]:
    """Several `key=value`, each key once."""
    found: dict[str, Any] = {}
    for text in texts:
        key, value = parse_assignment(text, option)
        if key in found:
            raise ConfigError(f"{option} gives '{key}' twice; give it once")
        found[key] = value
    return found


def override(table: dict[str, Any], key: str, value: Any, *, source: str) -> None:
    """Set the value at a dotted path; tables on the way are made, and lists counted from 0."""
    *parents, last = key.split(".")
    place: Any = table
    for parent in parents:
        place = _inside(place, parent, source)
        if not isinstance(place, dict | list):
            raise ConfigError(f"{source}: '{parent}' is a value, not a table")
    if isinstance(place, list):
        _inside(place, last, source)  # refuses what is no number, or too large
        place[int(last)] = value
    else:
        place[last] = value


def _inside(place: Any, part: str, source: str) -> Any:
    """What a table or a list holds under one part of a path."""
    if isinstance(place, dict):
        return place.setdefault(part, {})
    if not part.isdecimal() or int(part) >= len(place):
        raise ConfigError(f"{source}: '{part}' is none of the list's {len(place)} places (from 0)")
    return place[int(part)]


_OWN = ("csv:", "npz:", "hf:")  # data sets that are named by a path


def load_for_run(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    everywhere: bool = False,
    begun: Mapping[str, Any] | None = None,
) -> RunSpec:
    """The spec in a file, with the path of its data such that the run finds them.

    A relative path that the file has is seen from the file's folder, and from here if nothing is
    there; one that `--set` gives, from here. `everywhere`: the run's process works in another
    folder than this one, so that the path must not be relative. `begun` is the header of a run that
    goes on: a path that was seen from where the command ran stays as it was, and so does its hash.
    """
    folders = data_folders(path, parse_assignments(overrides, "--set"))
    return with_data_from(load(path, overrides), folders, everywhere=everywhere, begun=begun)


def data_folders(path: Path, overrides: Iterable[str]) -> list[Path]:
    """Return where the path of a spec's data is seen from: here, if it was given here."""
    return [Path()] if "data.dataset" in overrides else [path.parent, Path()]


def with_data_from(
    spec: RunSpec,
    folders: Sequence[Path],
    *,
    everywhere: bool = False,
    begun: Mapping[str, Any] | None = None,
) -> RunSpec:
    """The spec with the path of its data as the first folder has them."""
    written = spec.data.dataset
    kind, colon, text = written.partition(":")
    relative = Path(text).expanduser()
    if kind + colon not in _OWN or not text or relative.is_absolute():
        return spec
    if begun is not None and _dataset_of(begun) == written:
        return spec
    for folder in folders:
        found = folder / relative
        if not found.exists():
            continue
        if not everywhere and relative.exists() and found.samefile(relative):
            return spec
        data = spec.data.model_copy(update={"dataset": f"{kind}:{os.path.abspath(found)}"})
        return spec.model_copy(update={"data": data})
    places = " or in ".join(dict.fromkeys(os.path.abspath(folder) for folder in folders))
    raise DataError(f"there is no {text} in {places}; check the path in '{written}'")


def _dataset_of(header: Mapping[str, Any]) -> object:
    """What a run's header names, damaged or not: it is checked when the run goes on."""
    spec = header.get("spec")
    data = spec.get("data") if isinstance(spec, dict) else None
    return data.get("dataset") if isinstance(data, dict) else None
