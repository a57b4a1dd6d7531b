"""When a run's progress is saved, and where a resumed run goes on."""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from sottovoce.federated.progress import Progress
from sottovoce.ledger.records import SpendingRecord
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.parts import Assembly
from sottovoce.runs.spec import RunSpec

SECONDS_BETWEEN = 60.0  # of work that a crash may cost, or one round where rounds take longer


class Checkpoints:
    """Saves finished rounds: every so many, once a minute, after the last one and on interruption.

    When they are saved changes nothing in what a run comes to: the last round is always saved.
    """

    def __init__(
        self,
        folder: RunFolder,
        assembly: Assembly,
        record: SpendingRecord,
        *,
        done: Progress,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._folder, self._run, self._record = folder, assembly.run, record
        self._rounds, self._every = assembly.spec.rounds, assembly.spec.checkpoint_every
        if assembly.spec.runtime.backend != "fast":
            self._every = 1  # a round there takes seconds, and sites keep one round's messages
        self._clock = clock or time.monotonic
        self._done, self._saved, self._saved_at = done, done.rounds_done, self._clock()

    def after_round(self, progress: Progress) -> None:
        """Note that a round is finished, its metrics written, and save it if that is due."""
        self._done = progress
        number = progress.rounds_done
        overdue = self._clock() - self._saved_at >= SECONDS_BETWEEN
        if overdue or number == self._rounds or number % self._every == 0:
            self.save()

    def save(self) -> None:
        """Save the last finished round; then its stored messages are no longer needed."""
        self._folder.save_checkpoint(self._done, self._record.num_charges)
        self._record.discard_messages(self._run, before_round=self._done.rounds_done + 1)
        self._saved, self._saved_at = self._done.rounds_done, self._clock()

    @contextlib.contextmanager
    def saved_if_interrupted(self) -> Iterator[None]:
        """Save what is finished when the user, or a signal, ends the work within.

        The round at work is given up: what it charged stays charged, and a resumed run sends the
        messages that it stored.
        """
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            if self._done.rounds_done > self._saved:
                self.save()
            raise


def where_it_resumes(folder: RunFolder, spec: RunSpec) -> str:
    """Say at which round a resumed run goes on, and from what."""
    saved = folder.checkpoint_saved()
    if saved is None:
        kept = "; its charges are kept and their stored messages are sent again"
        stored = spec.runtime.messages == "stored"
        return f"no checkpoint yet: begins again at round 1{kept if stored else ''}"
    done, seconds = saved
    when = f"saved {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if done >= spec.rounds:
        return f"all {spec.rounds} rounds are done (checkpoint of round {done}, {when})"
    return f"resuming at round {done + 1} of {spec.rounds} (checkpoint of round {done}, {when})"
