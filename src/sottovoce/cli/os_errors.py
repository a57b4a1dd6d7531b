"""What the operating system refused, in words: which file or connection, why, and what to do."""

import errno
import os
import socket
import ssl

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
