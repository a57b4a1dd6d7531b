"""The optional packages of the extra `learn`, with an error that names it."""

import importlib
from typing import Any

from sottovoce.errors import MissingExtraError


def require(module: str) -> Any:
    """The module, or MissingExtraError."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise MissingExtraError.named(module.split(".")[0], "learn") from None
