"""The largest reply that a running server waits for, announced to the gate in front of the link.

Before a server asks, it writes how many bytes one reply may have, and until when, into a file of
its own in the link's folder; the gate refuses a longer one by its declared length. The folder's
name is in the environment of the servers that a link starts; elsewhere nothing is announced.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sottovoce.core import files
from sottovoce.core.errors import OutputError, WireError

FOLDER_VARIABLE = "SOTTOVOCE_REPLIES_DUE"
# Around a reply's own bytes: Flower's metadata, a refusal's reason, what the site's ledger says.
OVERHEAD_BYTES = 2**16
_FRESH_NS = 2 * 10**9
_GRACE_SECONDS = 60.0  # a late reply is refused by Flower, in words that its node understands


def announce(reply_bytes: int, *, seconds: float) -> None:
    """Tell the gate that replies of up to `reply_bytes` may come within the next `seconds`."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    for path, _, until in _announced(Path(folder)):
        if until < time.time():
            path.unlink(missing_ok=True)
    due = {"bytes": reply_bytes, "until": time.time() + seconds + _GRACE_SECONDS}
    # It stays when this process ends, since replies may still be on their way.
    files.write_json(Path(folder) / f"{os.getpid()}.json", due, mode=files.PRIVATE)


def _announced(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Yield each announcement: its file, the bytes, and until when."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OutputError, KeyError, TypeError, ValueError):
            due = files.read_json(path)
            yield path, int(due["bytes"]), float(due["until"])


def check_length(blobs: Mapping[str, bytes] | None, most_bytes: int) -> None:
    """Raise WireError for a reply that is longer than any that is due, before it is parsed."""
    length = sum(map(len, blobs.values())) if blobs else 0
    if length > most_bytes:
        raise WireError(f"a reply of {length} bytes, where at most {most_bytes} are due")


class RepliesDue:
    """What the servers of a link have announced; read again whenever the folder changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed_ns = -1
        self._due: list[tuple[int, float]] = []  # bytes, and until when

    def largest_bytes(self) -> int:
        """Return the most bytes that a reply may have now, 0 where nobody waits for one."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:
            return 0
        # A folder that has just changed may change again within the same tick of its clock.
        is_fresh = time.time_ns() - changed_ns < _FRESH_NS
        if is_fresh or changed_ns != self._changed_ns:
            self._changed_ns = changed_ns
            self._due = [(size, until) for _, size, until in _announced(self._folder)]
        now = time.time()
        return max((size for size, until in self._due if until > now), default=0)
