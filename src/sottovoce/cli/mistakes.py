"""Messages for errors: what is wrong and what to do, in one line.

Errors of the operating system are told by file or connection, with the reason and a remedy.
"""

import difflib
import errno
import os
import socket
import ssl
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sottovoce.cli.commands import CommandGroup
from sottovoce.core import extras
from sottovoce.core.errors import DeploymentError, SottovoceError, UnknownNameError, WireError
from sottovoce.core.printable_text import printable, printable_lines

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
_ADDRESS = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
_NO_ROUTE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENOTCONN}
_TOO_MANY = {errno.EMFILE, errno.ENFILE}


def describe_os_error(error: OSError, *, is_output: bool = False) -> str:
    """Return a message for an error of the operating system.

    Args:
        error: The error.
        is_output: Whether it was raised by writing to standard output.

    Returns:
        What failed, why, and what to do.
    """
    reason = error.strerror or str(error) or type(error).__name__
    if is_output:
        return f"cannot write to standard output: {reason}; free some space, or redirect the output"
    if error.filename is not None:
        return _about_file(error, os.fsdecode(error.filename), reason)
    if error.errno in _NO_SPACE:
        return f"cannot write a file: {reason}; free some space, or choose another place"
    if error.errno in _TOO_MANY:
        return f"{reason}; close other programs, or raise the limit (ulimit -n)"
    if error.errno in _ADDRESS:
        return f"cannot listen at an address: {reason}; choose another address or port"
    connections = (ConnectionError, TimeoutError, socket.gaierror, socket.herror, ssl.SSLError)
    if isinstance(error, connections) or error.errno in _NO_ROUTE:
        return (
            f"a network connection failed: {reason}; check the address, and that the other side "
            "is running"
        )
    return f"the operating system reported an error: {reason}; run with --debug to see where"


def _about_file(error: OSError, name: str, reason: str) -> str:
    match error:
        case FileNotFoundError():
            return f"there is no file or folder {name}; check the path"
        case PermissionError():
            return f"cannot open {name}: {reason}; check who owns it and its permissions"
        case IsADirectoryError():
            return f"{name} is a folder, but a file is needed; name a file"
        case NotADirectoryError():
            return f"a part of the path {name} is a file, not a folder; check the path"
        case FileExistsError():
            return f"{name} exists already; choose another name, or move it away"
    if error.errno in _NO_SPACE:
        return f"cannot write {name}: {reason}; free some space, or choose another place"
    if error.errno in _TOO_MANY:
        return f"cannot open {name}: {reason}; close other programs, or raise the limit (ulimit -n)"
    return f"cannot use {name}: {reason}; check the path and the file"


_SHOWN_SPECS = 6
# Other words that users try, and the command that does it.
_ALSO_CALLED = {"median": "quantiles", "count": "histogram", "train": "run", "simulate": "run"}


def explain(error: Exception, *, is_output: bool = False) -> str | None:
    """Return a message for an error that a user can act on.

    Args:
        error: The error that ended a command.
        is_output: Whether it was raised by writing to standard output.

    Returns:
        A text that starts with 'error: ', one line unless it quotes a log; the help of a command
        that was given no arguments; None for a bug in this package.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error)
    if isinstance(error, DeploymentError):  # it may quote the last lines of a log
        return f"error: {printable_lines(error)}"
    if isinstance(error, WireError):
        return f"error: {printable(error).rstrip('.')}. {error.remedy}"
    if isinstance(error, SottovoceError):
        return f"error: {printable(error)}"
    if hasattr(error, "format_message"):  # a usage error of click or of typer's copy of it
        return f"error: {printable(_usage(error))}"
    if isinstance(error, ModuleNotFoundError):
        return _missing(error.name or "")
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return (
            "error: out of memory; use less data, fewer coordinates or fewer clients in a round, "
            "or, on a GPU, the device 'cpu'. To continue a run from its last checkpoint use "
            "--resume"
        )
    if isinstance(error, UnicodeEncodeError):  # a lone surrogate in an argument
        return f"error: {error.object!r} cannot be encoded as text; correct that argument"
    if isinstance(error, OSError):
        return f"error: {printable(describe_os_error(error, is_output=is_output))}"
    return None


def _missing(module: str) -> str | None:
    try:
        return f"error: this needs {module}: {extras.find(module).install}"
    except UnknownNameError:
        return None


def _usage(error: Any) -> str:
    """Return click's message with the value that it leaves out and the nearest known name."""
    message = str(getattr(error, "message", "") or error.format_message()).rstrip(".")
    kind = type(error).__name__
    if kind == "NoSuchOption":
        near = _near(error.option_name, error.possibilities or ())
        return f"{message}{_did_you_mean(near)}; see --help"
    if message.startswith("No such command"):
        message = message.partition(". Did you mean")[0]
        typed = message.partition("'")[2].rpartition("'")[0]
        near = _near_command(error, typed)
        return f"{message}{_did_you_mean(near)}; see --help"
    message = " ".join(error.format_message().split()).rstrip(
        "."
    )  # click lists choices in lines of their own
    if kind == "MissingParameter" and getattr(error.param, "name", "") == "spec":
        return f"{message}, a TOML file that says what to train{_specs_here(Path())}; see --help"
    if kind == "MissingParameter" and len(absent := _absent_options(error)) > 1:
        return f"Missing options {', '.join(absent)}; see --help"
    return f"{message}{_given(error, message)}; see --help"


def _absent_options(error: Any) -> list[str]:
    """Return all required options that are missing; click names only the first."""
    typed = {word.partition("=")[0] for word in sys.argv}
    return [
        f"'{option.opts[0]}'"
        for option in error.ctx.command.params
        if option.param_type_name == "option" and option.required and not typed & {*option.opts}
    ]


def _did_you_mean(near: str) -> str:
    return f", did you mean '{near}'?" if near else ""


def _near(name: str, known: Sequence[str]) -> str:
    return next(iter(difflib.get_close_matches(name, known, n=1)), "")


def _near_command(error: Any, typed: str) -> str:
    """Return the nearest command of the same group, or one of that name in another group."""
    context = error.ctx
    typed = _ALSO_CALLED.get(typed, typed)
    if near := _near(typed, context.command.list_commands(context)):
        return near
    root = context.find_root().command
    if isinstance(root, CommandGroup):
        root.add_own_commands()
    paths = list(_paths(root))
    same = [path for path in paths if path[-1] == typed]
    return " ".join(same[0]) if same else ""


def _paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield (*path, name)
        yield from _paths(inner, (*path, name))


def _given(error: Any, message: str) -> str:
    """Return the value that an option was given, where click's message leaves it out."""
    for option in getattr(getattr(error, "param", None), "opts", []):
        if option in sys.argv[:-1]:
            value = f"'{sys.argv[sys.argv.index(option) + 1]}'"
            return "" if value in message else f", got {value}"
    return ""


def missing_spec_message(path: Path) -> str:
    """Return the message for a spec file that does not exist; it names some that do.

    Args:
        path: The file that was named.
    """
    specs = _specs(path.parent)
    near = _near(path.name, [one.name for one in specs])
    nearest = next((f", did you mean '{one}'?" for one in specs if near and one.name == near), "")
    return f"there is no spec {path}{nearest}{_specs_here(path.parent)}"


def _specs(folder: Path) -> list[Path]:
    """Return the TOML files in a folder, in examples/ and in the current folder, each once."""
    found = [file for place in (folder, Path("examples"), Path()) for file in _toml_in(place)]
    return list(dict.fromkeys(found))


def _toml_in(folder: Path) -> list[Path]:
    try:
        files = sorted(file for file in folder.glob("*.toml") if file.is_file())
    except OSError:
        return []
    return [file for file in files if file.name != "pyproject.toml"]


def _specs_here(folder: Path) -> str:
    specs = _specs(folder)
    if not specs:
        return "; run 'sottovoce run --example' to print one"
    some = ", ".join(str(one) for one in specs[:_SHOWN_SPECS])
    more = f" and {len(specs) - _SHOWN_SPECS} more" if len(specs) > _SHOWN_SPECS else ""
    return f"; choose one of {some}{more}"
