"""A spec as TOML text: what `loading` reads comes back as it was."""

import json
import re
from collections.abc import Mapping
from typing import Any

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
