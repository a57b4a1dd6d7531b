"""What went wrong, in one line that says what to do.

What the operating system refused, in words: which file or connection, why, and what to do.
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

from sottovoce.cli.commands import OpenGroup
from sottovoce.core import extras
from sottovoce.core.errors import DeploymentError, SottovoceError, UnknownNameError, WireError
from sottovoce.core.printable_text import printable, printable_lines

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
_ADDRESS = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
_NO_ROUTE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENOTCONN}
_TOO_MANY = {errno.EMFILE, errno.ENFILE}


def os_error(error: OSError, *, is_output: bool = False) -> str:
    """Say what failed and what to do; with `is_output`, that standard output cannot be written."""
    reason = error.strerror or str(error) or type(error).__name__
    if is_output:
        return f"cannot write to standard output: {reason}; free some space, or send it elsewhere"
    if error.filename is not None:
        return _about_file(error, os.fsdecode(error.filename), reason)
    if error.errno in _NO_ROOM:
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
    return f"the operating system refused something: {reason}; --debug shows what"


def _about_file(error: OSError, name: str, reason: str) -> str:
    match error:
        case FileNotFoundError():
            return f"there is no file or folder {name}; check the path"
        case PermissionError():
            return f"cannot open {name}: {reason}; check who owns it and its permissions"
        case IsADirectoryError():
            return f"{name} is a folder, and a file is needed; name a file"
        case NotADirectoryError():
            return f"a part of the path {name} is a file, not a folder; check the path"
        case FileExistsError():
            return f"{name} exists already; choose another name, or move it away"
    if error.errno in _NO_ROOM:
        return f"cannot write {name}: {reason}; free some space, or choose another place"
    if error.errno in _TOO_MANY:
        return f"cannot open {name}: {reason}; close other programs, or raise the limit (ulimit -n)"
    return f"cannot use {name}: {reason}; check the path and the file"


_SHOWN_SPECS = 6
# What people call commands that have other names.
_ALSO_CALLED = {"median": "quantiles", "count": "histogram", "train": "run", "simulate": "run"}


def explain(error: Exception, *, is_output: bool = False) -> str | None:
    """A user's mistake, or a state of the world, in one line; None for a bug of ours.

    With `is_output` the error is that standard output cannot be written.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error)
    if isinstance(error, DeploymentError):  # the last lines of a log may stand in it
        return f"error: {printable_lines(error)}"
    if isinstance(error, WireError):
        return f"error: {printable(error).rstrip('.')}. {error.remedy}"
    if isinstance(error, SottovoceError):
        return f"error: {printable(error)}"
    if hasattr(error, "format_message"):  # a usage error, wherever typer keeps its click
        return f"error: {printable(_usage(error))}"
    if isinstance(error, ModuleNotFoundError):
        return _missing(error.name or "")
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return (
            "error: out of memory; train fewer clients in a round or a smaller model, or set "
            "runtime.device = 'cpu'. A run goes on from its last checkpoint with --resume"
        )
    if isinstance(error, UnicodeEncodeError):  # half of a character, where a file's name is asked
        return f"error: {error.object!r} is no text that could be written; correct that argument"
    if isinstance(error, OSError):
        return f"error: {printable(os_error(error, is_output=is_output))}"
    return None


def _missing(module: str) -> str | None:
    try:
        return f"error: this needs {module}: {extras.find(module).install}"
    except UnknownNameError:
        return None


def _usage(error: Any) -> str:
    """click's sentence, the value that it leaves out, and the nearest name."""
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
    message = " ".join(error.format_message().split()).rstrip(".")  # choices stand in lines
    if kind == "MissingParameter" and getattr(error.param, "name", "") == "spec":
        return f"{message}, a TOML file that says what to train{_specs_here(Path())}; see --help"
    if kind == "MissingParameter" and len(absent := _absent_options(error)) > 1:
        return f"Missing options {', '.join(absent)}; see --help"
    return f"{message}{_given(error, message)}; see --help"


def _absent_options(error: Any) -> list[str]:
    """All options that the command needs and was not given: click names the first alone."""
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
    """A command of the same group, or one of that name in any other."""
    context = error.ctx
    typed = _ALSO_CALLED.get(typed, typed)
    if near := _near(typed, context.command.list_commands(context)):
        return near
    root = context.find_root().command
    if isinstance(root, OpenGroup):
        root.add_ours()
    paths = list(_paths(root))
    same = [path for path in paths if path[-1] == typed]
    return " ".join(same[0]) if same else ""


def _paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield (*path, name)
        yield from _paths(inner, (*path, name))


def _given(error: Any, message: str) -> str:
    """The value that an option was given, where click's own message leaves it out."""
    for option in getattr(getattr(error, "param", None), "opts", []):
        if option in sys.argv[:-1]:
            value = f"'{sys.argv[sys.argv.index(option) + 1]}'"
            return "" if value in message else f", got {value}"
    return ""


def absent_spec(path: Path) -> str:
    """The sentence for a spec that is not there: the nearest one, and some that are."""
    specs = _specs(path.parent)
    near = _near(path.name, [one.name for one in specs])
    nearest = next((f", did you mean '{one}'?" for one in specs if near and one.name == near), "")
    return f"there is no spec {path}{nearest}{_specs_here(path.parent)}"


def _specs(folder: Path) -> list[Path]:
    """TOML files in a folder, in examples/ and here, each once."""
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
        return "; 'sottovoce run --example' prints one to begin with"
    some = ", ".join(str(one) for one in specs[:_SHOWN_SPECS])
    more = f" and {len(specs) - _SHOWN_SPECS} more" if len(specs) > _SHOWN_SPECS else ""
    return f"; there are {some}{more}"
