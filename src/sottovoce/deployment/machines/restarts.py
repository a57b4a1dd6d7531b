"""Pauses between the starts of programs that end by themselves."""

import sys
import time
from collections.abc import Callable, Iterator

from sottovoce.core.errors import DeploymentError
from sottovoce.core.printable_text import printable_lines
from sottovoce.deployment.machines.processes import Child, watch

# Pauses before programs that ended are restarted; after a long run the first one comes again.
_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
_STEADY_SECONDS = 60.0


def restart_pauses(
    children: list[Child], final_problem: Callable[[], str | None] = lambda: None
) -> Iterator[float]:
    """Watch programs; whenever one ends, stop the others and yield the pause before a restart.

    Args:
        children: The programs. The caller replaces them after each pause.
        final_problem: Returns why they must not be started again, if there is a reason.

    Yields:
        Seconds to wait.

    Raises:
        DeploymentError: A program ended soon after every start, or must not be started again.
    """
    tries = 0
    while True:
        started = time.monotonic()
        try:
            watch(children)
        except DeploymentError as error:
            if problem := final_problem():
                raise DeploymentError(problem) from error
            tries = 0 if time.monotonic() - started > _STEADY_SECONDS else tries + 1
            if tries > len(_PAUSES_SECONDS):
                raise
            pause_seconds = _PAUSES_SECONDS[max(tries - 1, 0)]
            print(
                f"{printable_lines(error)}\nstarting again in {pause_seconds:g} s",
                file=sys.stderr,
                flush=True,
            )
        for child in reversed(children):
            child.stop()
        yield pause_seconds
