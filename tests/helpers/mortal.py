"""A process that is killed after a durable commit, before it can do anything with it."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sottovoce.ledger.database import Database
from sottovoce.protocol.secure.state_file import StateFile

DIES_AT = "dies_at.txt"  # in a party's folder: after how many more commits it is killed, once


def die_after_commits(folder: Path) -> None:
    """Be killed after as many commits from now on as the file says, if there is one by then."""
    for file in (StateFile, Database):
        class_of_file: Any = file
        class_of_file.transaction = _counting(class_of_file.transaction, folder / DIES_AT)


def _counting(
    transaction: Callable[[Any], AbstractContextManager[None]], path: Path
) -> Callable[[Any], AbstractContextManager[None]]:
    @contextlib.contextmanager
    def counted(file: Any) -> Iterator[None]:
        with transaction(file):
            yield
        if not path.exists():
            return
        left = int(path.read_text()) - 1
        path.write_text(str(left))
        if not left:
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    return counted
