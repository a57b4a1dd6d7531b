"""Read a spec from TOML or plain data, apply overrides, and report in one line what is wrong.

Also: where a spec's data files are found (in the folder of the spec, or else in the current one),
writing plain data as TOML, and the permission to run code that a spec names.
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

import numpy as np
from pydantic import ValidationError

from sottovoce.core import sections
from sottovoce.core.errors import ConfigError, DataError, SottovoceError, UnknownNameError
from sottovoce.federated.algorithms.algorithm import ALGORITHMS
from sottovoce.runs.sections import as_toml_data, problems_in
from sottovoce.runs.spec import AlgorithmSpec, RunSpec


def check_code_allowed(spec: RunSpec, *, allow_code: bool, how: str = "--allow-code") -> None:
    """Refuse a spec that would import and run code, unless its user has allowed it.

    Args:
        spec: A spec read from a file, a dictionary or a run folder.
        allow_code: Whether the user has allowed the code to run.
        how: The option that allows it, for the message.

    Raises:
        ConfigError: The spec names code, and `allow_code` is false.
    """
    functions = spec.model.user_functions
    if functions and not allow_code:
        named = ", ".join(f"model.{key} = '{path}'" for key, path in functions.items())
        raise ConfigError(
            f"the spec '{spec.name}' imports and runs code: {named}. Read that code, and if you "
            f"trust it, allow it with {how}"
        )


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, Any]) -> str:
    """Return plain data as TOML: values first, then tables, in which nested tables are inline.

    Null values and empty tables of the outermost level are left out.
    """
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


_LARGEST = 10**300  # Below the largest float, because any number may be converted to one.
_MOST_NESTED = 32  # Far more than any spec needs.


class SpecError(ConfigError):
    """A spec with invalid keys or values; its message is the first problem.

    Attributes:
        problems: All problems.
        broken: The top-level keys of the spec, mostly tables, that have them.
    """

    def __init__(self, problems: Sequence[str], broken: Iterable[str] = ()) -> None:
        super().__init__(problems[0])
        self.problems, self.broken = tuple(problems), frozenset(broken)


def load(
    path: Path, overrides: Sequence[str] = (), *, values: Mapping[str, Any] | None = None
) -> RunSpec:
    """Read a spec from a TOML file.

    Args:
        path: The file.
        overrides: Texts of the form `key.path=value`, as `--set` takes them.
        values: Values by dotted key path, as `simulate` takes them.

    Returns:
        The spec. Names of data set, algorithm, mechanism and backend, parameters of the mechanism
        and keys of plug-ins are checked later, when the run is built.

    Raises:
        ConfigError: The file cannot be read, or has invalid keys or values.
    """
    spec = parse(read_table(path, overrides, values=values), str(path))
    _check_kinds(spec, str(path))
    return spec


def read_table(
    path: Path, overrides: Sequence[str] = (), *, values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of a TOML file after overrides; it need not be a valid spec.

    Args:
        path: The file.
        overrides: Texts of the form `key.path=value`, as `--set` takes them.
        values: Values by dotted key path, which are set after `overrides`.

    Raises:
        ConfigError: The file cannot be read or is not TOML, or an override is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read the spec {path}: {error.strerror or error}; name a TOML file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not UTF-8 text; save it as UTF-8, or name another file"
        ) from None
    table = parse_text(text, str(path))
    for key, value in parse_assignments(overrides, "--set").items():
        override(table, key, value, source=f"--set {key}")
    for key, value in (values or {}).items():
        override(table, key, value, source="overrides")
    return table


def _check_kinds(spec: RunSpec, source: str) -> None:
    """Refuse kinds that are not registered.

    `parse` accepts them, because the record of a run may name a plug-in that is not installed here.
    """
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
    """A spec, as far as it can be read.

    Attributes:
        spec: The spec, with the example's values in place of broken parts; None if the data do not
            describe a spec at all.
        problems: Everything that is wrong with it.
        broken: The top-level keys of the spec, mostly tables, that have problems.
    """

    spec: RunSpec | None
    problems: tuple[str, ...]
    broken: frozenset[str]


def read_with_problems(
    table: Mapping[str, Any], source: str, folders: Sequence[Path] = ()
) -> ReadSpec:
    """Read a spec and report all of its problems, not only the first.

    Args:
        table: Plain data.
        source: Where they come from, for messages.
        folders: The folders in which a relative path to the data is looked up; by default the path
            is not looked up.

    Returns:
        The spec as far as it could be read, and its problems; an invalid spec raises no error.
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
            spec = locate_data(spec, folders)
        except DataError as error:
            problems, broken = [*problems, str(error)], broken | {"data"}
    return ReadSpec(spec=spec, problems=tuple(dict.fromkeys(problems)), broken=broken)


def parse_text(text: str, source: str) -> dict[str, Any]:
    """Return the table that a TOML text describes.

    Args:
        text: The text.
        source: Where it comes from, for messages.

    Raises:
        ConfigError: The text is not valid TOML, is nested too deep for Python's parser (hundreds of
            levels), or has a whole number of thousands of digits.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(_too_deep(source)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{source} is not valid TOML: {error}; correct it there ('sottovoce run --example' "
            "prints a spec to compare with)"
        ) from None
    except ValueError:  # Python refuses to read a number of thousands of digits.
        raise ConfigError(
            f"{source} holds a number of thousands of digits; give a smaller one"
        ) from None


def _too_deep(source: str) -> str:
    return (
        f"{source} is nested more than {_MOST_NESTED} deep, which no spec needs; remove nested "
        "lists and tables"
    )


_DICTIONARY = "spec"  # The source of a spec that a program gave.
# What a Python program may give in place of keys.
_ARGUMENTS = {"'model'": "model=MODULE", "'data": "data=(x, y)"}


def parse(table: Mapping[str, Any], source: str = _DICTIONARY) -> RunSpec:
    """Return the spec that plain data describe.

    Args:
        table: Nested dictionaries, lists, texts, numbers (also of numpy) and booleans.
        source: Where they come from, for messages.

    Returns:
        The spec. Whether its names are registered, the parameters of the mechanism, and keys of
        plug-ins are checked later, when the run is built.

    Raises:
        ConfigError: A key or a value is invalid; if it is a `SpecError`, `problems` lists all that
            were found.

    Examples:
        >>> from sottovoce.runs import parse
        >>> spec = parse({
        ...     "name": "first", "seed": 1, "rounds": 10,
        ...     "data": {"dataset": "digits", "clients": 10},
        ...     "model": {"kind": "linear"},
        ...     "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0},
        ...     "privacy": {"level": "sample", "clip_norm": 2.0, "epsilon": 5.0, "delta": 1e-5},
        ...     "mechanism": {"kind": "gauss_hermite", "levels": 2},
        ... })
        >>> spec.privacy.adjacency.value, spec.channel.kind
        ('zero-out', 'direct')
    """
    plain = _plain(table, source, ())
    try:
        return _with_every_key(RunSpec.model_validate(plain), source)
    except ValidationError as error:
        problems = [f"{source}: {one}{_remedy(one, source)}" for one in problems_in(error, RunSpec)]
        raise SpecError(problems, (str(one["loc"][0]) for one in error.errors())) from None


def _remedy(problem: str, source: str) -> str:
    """Return what else a problem calls for: training without noise, or arguments in Python."""
    if source == _DICTIONARY and problem.endswith("missing"):
        given = [how for key, how in _ARGUMENTS.items() if key in problem]
        if given:
            return f"; write it, or give simulate(..., {', '.join(given)})"
    if problem.startswith("'privacy.epsilon' must be greater"):
        return "; to train without privacy use --no-privacy (in Python private=False)"
    return ""


def _with_every_key(spec: RunSpec, source: str) -> RunSpec:
    """Return the spec with the defaults of its algorithm filled in; its hash includes them."""
    kind, given = spec.algorithm.kind, spec.algorithm.parameters
    try:
        every = sections.complete_table(ALGORITHMS, "algorithm", kind, given)
        if ALGORITHMS.find_ours(kind) is None and not ALGORITHMS.is_in_papers(kind):
            as_toml_data(given)
    except (SottovoceError, ValueError) as error:
        raise SpecError([f"{source}: {error}"], ["algorithm"]) from None
    algorithm = AlgorithmSpec.model_validate({"kind": kind, **every})
    return spec.model_copy(update={"algorithm": algorithm})


def _plain(value: object, source: str, path: tuple[str, ...]) -> Any:
    """Return plain data, which a spec's JSON file can hold, with numpy's numbers as Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    where = f"{source}: '{'.'.join(path)}'" if path else source
    if len(path) > _MOST_NESTED:
        raise ConfigError(_too_deep(f"{source}: '{path[0]}'"))
    match value:
        case None | bool():
            return value
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
            for key in value:
                if not isinstance(key, str):
                    raise ConfigError(f"{where} must have texts as keys, got {key!r}")
                _check_text(key, where)
            return {key: _plain(item, source, (*path, key)) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, source, (*path, str(at))) for at, item in enumerate(value)]
        case _:
            raise ConfigError(
                f"{where} must be a number, a text, true or false, a list or a table, got {value!r}"
            )
    return value


def _check_text(text: str, where: str) -> None:
    """Refuse text with half of a surrogate pair, which no file can hold."""
    if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
        raise ConfigError(f"{where} must be text that UTF-8 can encode, got {text!r}")


def parse_value(text: str) -> Any:
    """Return the value that a text on the command line stands for.

    A text that is a TOML value is read as such (1e5, true, "a", [1, 2]). So are numbers that only
    Python accepts, such as .5 and 5. (TOML requires digits on both sides of the point). Any other
    text is a string, so that words need no quotes.

    Raises:
        ConfigError: Lists or tables are nested too deep to be read.
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise ConfigError(_too_deep("the value")) from None
    except ValueError:  # A TOMLDecodeError, or a number of thousands of digits.
        pass
    try:
        return float(text)
    except ValueError:
        return text


def parse_assignment(text: str, option: str) -> tuple[str, Any]:
    """Return the key and the value of a text `key=value`, the value as `parse_value` reads it.

    Args:
        text: The text; spaces around key and value are ignored.
        option: The option that takes it, such as "--set", for the message.

    Raises:
        ConfigError: The text has no equals sign, or no key or value.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ConfigError(
            f"{option} needs key=value, got '{text}'; write {option} {key.strip() or 'KEY'}=VALUE"
        )
    return key.strip(), parse_value(value.strip())


def parse_assignments(texts: Sequence[str], option: str) -> dict[str, Any]:
    """Return several texts `key=value` as a dictionary, with values as `parse_value` reads them.

    Args:
        texts: The texts.
        option: The option that takes them, such as "--set", for messages.

    Raises:
        ConfigError: A text has another form, or a key is given twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, value = parse_assignment(text, option)
        if key in found:
            raise ConfigError(f"{option} gives '{key}' twice; give it once")
        found[key] = value
    return found


def override(table: dict[str, Any], key: str, value: Any, *, source: str) -> None:
    """Set the value at a dotted path, such as 'privacy.epsilon', in nested tables.

    Missing tables on the way are created; entries of lists are numbered from 0.

    Args:
        table: The outermost table, which is changed.
        key: The dotted path.
        value: The new value.
        source: Where the value comes from, for messages.

    Raises:
        ConfigError: The path leads through a value that is not a table, or past a list's end.
    """
    *parents, last = key.split(".")
    place: Any = table
    for parent in parents:
        place = _inside(place, parent, source)
        if not isinstance(place, dict | list):
            raise ConfigError(
                f"{source}: '{parent}' is a value, not a table; set '{parent}' itself"
            )
    if isinstance(place, list):
        _inside(place, last, source)  # Refuses what is not an index of the list.
        place[int(last)] = value
    else:
        place[last] = value


def _inside(place: Any, part: str, source: str) -> Any:
    """Return the entry of a table or a list under one part of a path."""
    if isinstance(place, dict):
        return place.setdefault(part, {})
    if not part.isdecimal() or int(part) >= len(place):
        raise ConfigError(
            f"{source}: the list has {len(place)} entries, numbered from 0; give one of these "
            f"numbers, not '{part}'"
        )
    return place[int(part)]


_OWN = ("csv:", "npz:", "hf:")  # Prefixes of data sets that are named by a path.


def load_for_run(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    absolute: bool = False,
    resumed_header: Mapping[str, Any] | None = None,
) -> RunSpec:
    """Read a spec from a file, with a path to its data that the run can open.

    A relative path in the file is looked up in the file's folder, then in the current folder; a
    path from `--set` in the current folder only.

    Args:
        path: The file.
        overrides: Texts of the form `key.path=value`.
        absolute: Make the path absolute, because the run's process works in another folder.
        resumed_header: The header of a run to resume. A path that was relative to the current
            folder then stays as it was, and so does the hash of the spec.

    Returns:
        The spec.

    Raises:
        ConfigError: The file cannot be read, or has invalid keys or values.
        DataError: The file of the data is in none of these folders.
    """
    folders = data_folders(path, parse_assignments(overrides, "--set"))
    return locate_data(
        load(path, overrides), folders, absolute=absolute, resumed_header=resumed_header
    )


def data_folders(path: Path, overrides: Iterable[str]) -> list[Path]:
    """Return the folders in which a relative path to the spec's data is looked up, in this order.

    Args:
        path: The file of the spec.
        overrides: The dotted keys that are overridden.

    Returns:
        The folder of the file and the current folder; only the latter if `data.dataset` is
        overridden.
    """
    return [Path()] if "data.dataset" in overrides else [path.parent, Path()]


def locate_data(
    spec: RunSpec,
    folders: Sequence[Path],
    *,
    absolute: bool = False,
    resumed_header: Mapping[str, Any] | None = None,
) -> RunSpec:
    """Return the spec with the path of its data in the first folder that has them.

    Args:
        spec: The spec.
        folders: Where a relative path is looked up, in this order.
        absolute: Make the path absolute, because the run's process works in another folder.
        resumed_header: The header of a run to resume, whose path stays as it was.

    Returns:
        The spec with an absolute path. It is unchanged if the data set is not a relative path, if
        the path is that of `resumed_header`, or if, without `absolute`, the file that was found is
        the one that the path names in the current folder.

    Raises:
        DataError: No folder has the data.
    """
    written = spec.data.dataset
    kind, colon, text = written.partition(":")
    relative = Path(text).expanduser()
    if kind + colon not in _OWN or not text or relative.is_absolute():
        return spec
    if resumed_header is not None and _dataset_of(resumed_header) == written:
        return spec
    for folder in folders:
        found = folder / relative
        if not found.exists():
            continue
        if not absolute and relative.exists() and found.samefile(relative):
            return spec
        data = spec.data.model_copy(update={"dataset": f"{kind}:{os.path.abspath(found)}"})
        return spec.model_copy(update={"data": data})
    places = " or in ".join(dict.fromkeys(os.path.abspath(folder) for folder in folders))
    raise DataError(f"there is no {text} in {places}; check the path in data.dataset = '{written}'")


def _dataset_of(header: Mapping[str, Any]) -> object:
    """Return the data set that a run's header names; the header may be damaged."""
    spec = header.get("spec")
    data = spec.get("data") if isinstance(spec, dict) else None
    return data.get("dataset") if isinstance(data, dict) else None
