"""Strict reading of the small TOML files of a deployment: an unknown key is an error."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.core.errors import ConfigError, UnknownNameError

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def read_table(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # no TOML, or nested too deep
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def check_keys(table: Mapping[str, Any], kinds: Mapping[str, type], *, where: str) -> None:
    """Refuse keys that are unknown or of another type; absent ones are the caller's affair."""
    for key, value in table.items():
        if key not in kinds:
            raise ConfigError(f"{where}: {UnknownNameError.among('key', key, kinds)}")
        whole_is_a_number = kinds[key] is float and type(value) is int  # as TOML has "3600"
        if type(value) is not kinds[key] and not whole_is_a_number:  # a boolean is no integer
            raise ConfigError(f"{where}: '{key}' must be {_KIND_NAMES[kinds[key]]}, got {value!r}")


def require_keys(table: Mapping[str, Any], keys: list[str], *, where: str) -> None:
    missing = [f"'{key}'" for key in keys if key not in table]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ConfigError(f"{where}: {', '.join(missing)} {verb} missing")


def name_of(text: object, *, what: str) -> str:
    """A name that can be a folder's, a host's and a key's comment without quoting."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise ConfigError(
            f"{what} must be 1 to 63 of a-z, 0-9, '-' and '_', beginning with a letter or digit, "
            f"got {text!r}"
        )
    return text


_KIND_NAMES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
    bool: "true or false",
}
