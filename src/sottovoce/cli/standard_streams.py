"""Standard output and error that are closed, or whose reader has gone, without a traceback."""

import os
import sys
import traceback

import typer

# What a shell reports of a program that SIGPIPE ended, as it ends `yes | head -1`.
READER_GONE = 141
_STANDARD = {0: os.O_RDONLY, 1: os.O_WRONLY, 2: os.O_WRONLY}


def reopen_closed() -> None:
    """Put the null device where a standard stream was closed (`>&-`).

    Otherwise the first file that is opened, a ledger for one, would get the stream's number, and
    whatever is printed would be written into it.
    """
    for number, mode in _STANDARD.items():
        try:
            os.fstat(number)
        except OSError:
            _point_at_null(number, mode)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # Python's word for a stream that was closed
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def is_of_output(error: Exception) -> bool:
    """Whether an error is that standard output or error cannot be written.

    Both are written by click and rich, and flushed by the entry point; files are not, and neither
    are sockets.
    """
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    *_, (frame, _) = [*traceback.walk_tb(error.__traceback__)] or [(sys._getframe(), 0)]
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("click", "typer", "rich") or name == "sottovoce.cli.main"


def abandon() -> None:
    """Keep the interpreter from complaining at exit of what it can no longer write."""
    for number in (1, 2):
        _point_at_null(number, os.O_WRONLY)


def tell(text: str) -> None:
    """Print to standard error, if it can be written: the exit status tells the rest."""
    try:
        typer.echo(text, err=True)
    except (OSError, ValueError):
        _point_at_null(2, os.O_WRONLY)


def _point_at_null(number: int, mode: int) -> None:
    handle = os.open(os.devnull, mode)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
