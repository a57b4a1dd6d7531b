"""Strict reading of the small TOML files of a deployment: an unknown key is an error."""

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sottovoce.core.errors import ConfigError
from sottovoce.runs.validation import Section, problem_in

S = TypeVar("S", bound=Section)

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


def read_section(path: Path, section: type[S]) -> S:
    """The table in a TOML file, checked; an unknown key is an error."""
    try:
        return section.model_validate(read_table(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {problem_in(error, section)}") from None


def name_of(text: object, *, what: str) -> str:
    """A name that can be a folder's, a host's and a key's comment without quoting."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise ConfigError(
            f"{what} must be 1 to 63 of a-z, 0-9, '-' and '_', beginning with a letter or digit, "
            f"got {text!r}"
        )
    return text
