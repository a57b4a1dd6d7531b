"""The cells of a study, each stored as JSON when it is finished, so that a study can be resumed.

FOLDER/cells/<digest of the key>.json holds the key, the version and the result.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sottovoce.core import files
from sottovoce.core.errors import OutputError
from sottovoce.version import __version__

CELLS = "cells"

Key = Mapping[str, Any]


class KeptCells:
    """The stored results of a study's cells; without a folder nothing is stored.

    `version` must be raised when a change makes the same key give other numbers.
    """

    def __init__(self, folder: Path | None, *, version: int) -> None:
        self._folder = None if folder is None else folder / CELLS
        self._version = f"{__version__}/{version}"

    def find(self, key: Key) -> Any | None:
        """Return the stored result, or None if it is absent, damaged or of another version."""
        path = self._path(key)
        if path is None or not path.is_file():
            return None
        try:
            kept = files.read_json(path)
        except OutputError:  # The file is damaged: the cell is computed again.
            return None
        if not isinstance(kept, dict) or kept.get("key") != self._key(key):
            return None
        return kept.get("found")

    def keep(self, key: Key, found: Any) -> Any:
        """Store a result and return it as a later run will read it from JSON."""
        plain = json.loads(json.dumps(found))
        path = self._path(key)
        if path is not None:
            with files.explain_os_errors("create", path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, {"key": self._key(key), "found": plain})
        return plain

    def _key(self, key: Key) -> dict[str, Any]:
        return {"version": self._version, **json.loads(json.dumps(dict(key)))}

    def _path(self, key: Key) -> Path | None:
        if self._folder is None:
            return None
        text = json.dumps(self._key(key), sort_keys=True)
        return self._folder / f"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}.json"
