"""Atomic writing, private modes and locks of files, with errors that say what to do."""

import contextlib
import json
import math
import os
import secrets
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from sottovoce.core import bounded_json
from sottovoce.core.errors import OutputError

PUBLIC, PRIVATE, PRIVATE_FOLDER = 0o644, 0o600, 0o700  # File modes.
_AS_BYTES = getattr(os, "O_BINARY", 0)  # This flag exists only on Windows.

# The exceptions that reading a damaged archive of arrays, or an array's header, can raise.
ARRAY_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    EOFError,
    MemoryError,
    OverflowError,
    RuntimeError,  # The archive is encrypted, or its compression is unknown.
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)

try:
    import fcntl
except ImportError:  # On Windows two processes in one folder are not detected.
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def explain_os_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into an OutputError that says what to do.

    Args:
        action: What is done with the file, such as "read" or "write", for the message.
        path: The file or folder.

    Raises:
        OutputError: The operating system refused it.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        what_to_do = (
            "check that it exists and that you may read it"
            if action == "read"
            else "check permissions and free space, or choose another place"
        )
        raise OutputError(f"cannot {action} {path}: {reason}; {what_to_do}") from error


def write_atomic(
    path: Path, content: bytes | Callable[[IO[bytes]], object], *, mode: int = PUBLIC
) -> None:
    """Write a whole file or nothing: a temporary file is written, synced, then renamed.

    Args:
        path: The file, which is replaced if it exists.
        content: Its content, or a function that writes it into the open file.
        mode: Its mode, less the user's umask, from the moment it is created.

    Raises:
        OutputError: The file cannot be written. The old one is then unchanged, unless only the
            last step failed, which makes the rename durable.
    """
    with explain_os_errors("write", path):
        temporary = path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _AS_BYTES, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def rename_if_absent(temporary: Path, path: Path) -> bool:
    """Give a finished temporary file its name, durably, unless the name is taken.

    Two processes may do this at once: exactly one of them gets the name. The file of that name is
    complete from the moment it exists, if the file system has hard links.

    Args:
        temporary: The finished file, which is removed in any case.
        path: Its new name.

    Returns:
        Whether the file has the new name; False if the name is taken, and the file of that name is
        then unchanged.

    Raises:
        OSError: The new name cannot be written.
    """
    try:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # The file system has no hard links.
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
        os.unlink(path)  # A part of a ledger would look like a damaged ledger.
        raise


def check_writable(path: Path) -> None:
    """Raise OutputError if `write_atomic` could not write this file; nothing is changed.

    It could not if the path is a folder, or if its parent folder is missing or not writable.
    """
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        why = f"{path.parent} cannot be written to"
        if path.is_dir():
            why = "it is a folder"
        elif not path.parent.exists():
            why = f"there is no folder {path.parent}"
        raise OutputError(f"cannot write {path}: {why}; nothing was started, name another file")


def sync_folder(folder: Path) -> None:
    """Make renames and new files in a folder durable, so that a power failure does not undo them.

    Windows cannot sync a folder and does not need to: there this does nothing. Raises OSError if
    the folder cannot be opened or synced.
    """
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, *, sort_keys: bool = True, mode: int = PUBLIC) -> None:
    """Write a value as indented JSON, atomically: a whole file or nothing.

    Args:
        path: The file, which is replaced if it exists.
        value: The value, of the types that `json.dumps` accepts.
        sort_keys: Whether the keys of objects are sorted.
        mode: The file's mode, less the user's umask.

    Raises:
        OutputError: The file cannot be written.
    """
    text = json.dumps(value, indent=2, sort_keys=sort_keys) + "\n"
    write_atomic(path, text.encode(), mode=mode)


def open_private(path: Path, *, append: bool = False) -> IO[bytes]:
    """Open a file for writing bytes; if it is new, only its owner may read it from the start.

    An existing file is emptied, or with `append` extended, and keeps its mode. Raises OSError if
    the file cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | _AS_BYTES | (os.O_APPEND if append else os.O_TRUNC)
    return os.fdopen(os.open(path, flags, PRIVATE), "ab" if append else "wb")


def make_private(folder: Path) -> None:
    """Remove the rights of the group and of other users on a folder and everything in it.

    Symbolic links are left alone, and so are files whose mode this user may not change. Raises
    OutputError if the folder does not exist, or if the disk refuses a change for another reason.
    """
    with explain_os_errors("change the mode of", folder):
        for path in (folder, *folder.rglob("*")):
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                # The file may belong to another user, or the disk may have no modes.
                with contextlib.suppress(PermissionError):
                    path.chmod(stat.S_IMODE(mode) & PRIVATE_FOLDER)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise OutputError if it is missing or damaged."""
    try:
        with explain_os_errors("read", path):
            content = path.read_bytes()
        return bounded_json.loads(content)
    except bounded_json.JsonError as error:
        raise OutputError(
            f"{path} is damaged: it {error}; restore it from a backup, or repeat in a new folder "
            "what wrote it"
        ) from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the folder of `path` while the `with` block runs, or raise at once.

    The lock is one of the operating system on the file `path`. It is advisory: it keeps out only
    processes, and other blocks of this process, that lock the same file. The operating system
    releases it when the process that holds it ends, even if that process is killed. On Windows
    nothing is locked.

    Args:
        path: An existing file in the folder, such as a run's run.json.

    Raises:
        OutputError: The file cannot be opened, or another process or block holds the lock. Where
            Linux shows the process, the message names it and the command that ends it.
    """
    with contextlib.ExitStack() as opened:
        with explain_os_errors("open", path):
            file = opened.enter_context(path.open("rb"))
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(_in_use(path)) from None
        yield


def _in_use(path: Path) -> str:
    """Return which processes lock `path`, and what to do about them."""
    pids = lock_holders(path)
    if os.getpid() in pids:
        return (
            f"another part of this program is running in {path.parent}; wait for it to end, or "
            "take another folder"
        )
    if not pids:
        return f"another process is running in {path.parent}; wait for it to end"
    named = ", ".join(f"process {pid} ({_command(pid)})" for pid in pids)
    return (
        f"another process is running in {path.parent}: {named}; wait for it to end, or end it "
        f"with: kill {' '.join(map(str, pids))}"
    )


def lock_holders(path: Path) -> list[int]:
    """Return the ids of the processes that lock a file, as far as Linux shows them to this user.

    If none is shown, the other processes that have the file open are returned, since a child of the
    process that took the lock holds it too. The list is empty if there are none, and on other
    systems. Raises OSError if the file does not exist.
    """
    found = path.stat()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    holders = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            # A line reads: 12: FLOCK  ADVISORY  WRITE 4711 fd:01:1048602 0 EOF
            _, kind, _, _, pid, place, *_ = line.split()
            if kind != "FLOCK" or not place.endswith(f":{found.st_ino}"):
                continue
            # Some file systems show another device here; other users' files are not shown.
            if place.startswith(device) or _has_open(int(pid), found):
                holders.append(int(pid))
    holders = [pid for pid in holders if Path(f"/proc/{pid}").exists()]
    if holders:
        return holders
    # A child forked from the process that took the lock holds it too, and may outlive it.
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
    except OSError:  # The process has ended or is another user's, or this is not Linux.
        return []


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "it has just ended"
    return b" ".join(words).decode(errors="replace").strip()[:200]


def wait_for_lock(handle: int) -> None:
    """Wait, without a time limit, until no other process or thread locks the same file; lock it.

    `handle` is the file's descriptor, as `os.open` returns it. The lock is held until it is closed.
    The operating system closes the descriptors of a process that ends, even if it is killed. On
    Windows nothing is locked.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)


def finite_or_none(value: float) -> float | None:
    """Return the value, or None (null in JSON, which has no infinity) if it is not finite."""
    return value if math.isfinite(value) else None


def finite(value: Any) -> Any:
    """Return a copy of nested data, for JSON, with None for every float that is not finite.

    Tuples become lists.
    """
    match value:
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case float():
            return finite_or_none(value)
        case _:
            return value
