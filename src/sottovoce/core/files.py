"""Files that are whole or absent, and errors that say what to do."""

import contextlib
import json
import math
import os
import secrets
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sottovoce.core import bounded_json
from sottovoce.core.errors import OutputError

PUBLIC, PRIVATE, PRIVATE_FOLDER = 0o644, 0o600, 0o700  # modes: what others may read, and may not
_AS_BYTES = getattr(os, "O_BINARY", 0)  # of Windows

# Whatever a damaged archive of arrays, or the header of one, makes its readers raise.
ARRAY_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,  # encrypted, or compressed in an unknown way
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)

try:
    import fcntl
except ImportError:  # Windows: two processes in one folder are not noticed there
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn an operating system's refusal into one clear sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        what_to_do = (
            "check that it is there and that you may read it"
            if action == "read"
            else "check permissions and free space, or choose another place"
        )
        raise OutputError(f"cannot {action} {path}: {reason}; {what_to_do}") from error


def write_atomic(path: Path, content: bytes, *, mode: int = PUBLIC) -> None:
    """Write a whole file or nothing: a temporary file, synced, then renamed.

    It has its mode, less what the user's umask takes away, from the moment it is there.
    """
    with explained("write", path):
        temporary = path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _AS_BYTES, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def place_new(temporary: Path, path: Path) -> bool:
    """Give a finished file its name, durably; False, and nothing is changed, if the name is taken.

    Two processes may do this at once: exactly one of them gets the name, for a whole file.
    """
    try:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            _copy_new(temporary, path)
        sync_folder(path.parent)
        return True
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _copy_new(source: Path, path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _AS_BYTES, PRIVATE)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(source.read_bytes())
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(path)  # a part of a ledger would look like one that was damaged
        raise


def check_writable(path: Path) -> None:
    """Refuse what `write_atomic` could not write, and leave everything as it is."""
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        why = f"{path.parent} cannot be written to"
        if path.is_dir():
            why = "it is a folder"
        elif not path.parent.exists():
            why = f"there is no folder {path.parent}"
        raise OutputError(f"cannot write {path}: {why}; name another file, nothing was begun")


def sync_folder(folder: Path) -> None:
    """Make a rename, or a new file, durable; Windows has no way to, and needs none."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, *, sort_keys: bool = True, mode: int = PUBLIC) -> None:
    text = json.dumps(value, indent=2, sort_keys=sort_keys) + "\n"
    write_atomic(path, text.encode(), mode=mode)


def open_private(path: Path, *, append: bool = False) -> IO[bytes]:
    """A file for writing that is the owner's alone from the moment it is there."""
    flags = os.O_WRONLY | os.O_CREAT | _AS_BYTES | (os.O_APPEND if append else os.O_TRUNC)
    return os.fdopen(os.open(path, flags, PRIVATE), "ab" if append else "wb")


def make_private(folder: Path) -> None:
    """Take the rights of other users from a folder and all that is in it."""
    with explained("change the mode of", folder):
        for path in (folder, *folder.rglob("*")):
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                with contextlib.suppress(PermissionError):  # another's, or a disk without modes
                    path.chmod(stat.S_IMODE(mode) & PRIVATE_FOLDER)


def read_json(path: Path) -> Any:
    try:
        with explained("read", path):
            content = path.read_bytes()
        return bounded_json.loads(content)
    except bounded_json.JsonError as error:
        raise OutputError(f"{path} is damaged: it {error}; restore it or start a new run") from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes out while `path`, a file in their common folder, is held open.

    A killed process leaves no lock behind; one that holds it is named in the error.
    """
    with contextlib.ExitStack() as opened:
        with explained("open", path):
            file = opened.enter_context(path.open("rb"))
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(
                    f"another process is running in {path.parent}{_holders(path)}"
                ) from None
        yield


def _holders(path: Path) -> str:
    """Who holds a lock on `path`, and what to do about it."""
    pids = lock_holders(path)
    if not pids:
        return "; wait for it to end"
    named = [f"process {pid} ({_command(pid)})" for pid in pids]
    end = " ".join(map(str, pids))
    return f": {', '.join(named)}; wait for it to end, or end it with: kill {end}"


def lock_holders(path: Path) -> list[int]:
    """The processes that keep others from locking a file, as far as Linux tells this user."""
    found = path.stat()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    holders = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            # 12: FLOCK  ADVISORY  WRITE 4711 fd:01:1048602 0 EOF
            _, kind, _, _, pid, place, *_ = line.split()
            if kind != "FLOCK" or not place.endswith(f":{found.st_ino}"):
                continue
            # Some file systems tell another device here; another user's files are not shown.
            if place.startswith(device) or _has_open(int(pid), found):
                holders.append(int(pid))
    holders = [pid for pid in holders if Path(f"/proc/{pid}").exists()]
    if holders:
        return holders
    # A child that was forked from the process that took the lock has it too, and may outlive it.
    others = [int(name) for name in _listed("/proc") if name.isdecimal()]
    return [pid for pid in others if pid != os.getpid() and _has_open(pid, found)]


def _has_open(pid: int, found: os.stat_result) -> bool:
    for name in _listed(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), found):
                return True
    return False


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # no such process, or another user's, or not Linux
        return []


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "it has just ended"
    return b" ".join(words).decode(errors="replace").strip()[:200]


def wait_for_lock(handle: int) -> None:
    """Wait until nobody else, of any process or thread, holds a lock of the same file.

    It is held until the handle is closed; a killed process leaves none behind.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)


def finite_or_none(value: float) -> float | None:
    """JSON has no infinity: no guarantee is null."""
    return value if math.isfinite(value) else None


def finite(value: Any) -> Any:
    """Nested data as JSON can hold it: what is not finite is null."""
    match value:
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case float():
            return finite_or_none(value)
        case _:
            return value
