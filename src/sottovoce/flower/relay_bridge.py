"""The bridge between a relay and its link, run as a module with the relay's folder.

For each announcement of the collector it submits a run to the link, which passes the announcement
to the link's sites (`relay_server`). If the run or the link ends before the announcement is over,
it submits another one; sites answer it with the same bytes.
"""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sottovoce.core import printable_text
from sottovoce.core.errors import SottovoceError
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.submitted_runs import RunSubmission
from sottovoce.deployment.operators.application import unpack_announcement
from sottovoce.deployment.operators.bridge import federation_of
from sottovoce.deployment.operators.calls import RefusedError, RelayCalls
from sottovoce.deployment.operators.folders import RELAY_CARD, RelayFolder
from sottovoce.deployment.operators.routes import Route
from sottovoce.flower.link import running_link
from sottovoce.flower.relay_server import ANN_KEY, RELAY_KEY
from sottovoce.flower.runs import run_row, submit
from sottovoce.protocol.secure.announcement import Announcement

_POLL_SECONDS = 1.0
_AGAIN_SECONDS = 5.0  # before a run that failed is submitted again
_LOG = printable_text.logger()


class AnnouncementRuns(Protocol):
    """The runs of a link that pass announcements on."""

    def start(self, ann: bytes) -> int:
        """Stop those of earlier announcements, and submit one; return its number."""

    def outcome(self, run: int) -> str | None:
        """Return how a run has ended; None if it has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerRuns:
    """The runs of a link of Flower.

    Args:
        relay: The relay's folder.
        federation: The link's.
    """

    relay: RelayFolder
    federation: Federation

    def start(self, ann: bytes) -> int:
        """Stop runs of earlier announcements, and submit one; raise DeploymentError if it fails."""
        out = str(self.relay.state_folder)  # which no other run has
        # To be asked for its runs makes the link delete what it has stored for those that ended.
        with running_link(self.federation) as control:
            for run in control.runs():
                if not run.has_ended and run_row(self.federation, run)["folder"] == out:
                    control.stop_run(run.run_id)
        order = RunSubmission(
            name=f"relay {ann.hex()[:8]}",
            task={RELAY_KEY: str(self.relay.folder / RELAY_CARD), ANN_KEY: ann.hex()},
            rounds=1,
            out=Path(out),
        )
        return submit(order, self.federation)

    def outcome(self, run: int) -> str | None:
        """Return how a run has ended; None if it has not."""
        with running_link(self.federation) as control:
            found = control.run(run)
        return (found.failure or found.state) if found.has_ended else None


@dataclass(slots=True)
class Bridge:
    """What the bridge does again and again.

    Args:
        calls: Calls of the relay.
        runs: The runs of the link.
        clock: Returns the time in seconds since 1970.
    """

    calls: RelayCalls
    runs: AnnouncementRuns
    clock: Callable[[], float] = time.time
    _ann: bytes = field(init=False, default=b"")
    _ends: float = field(init=False, default=0.0)
    _run: int | None = field(init=False, default=None)
    _not_before: float = field(init=False, default=0.0)

    def look(self) -> str | None:
        """Look for an announcement, and pass it to the link.

        Returns:
            What was done, as a sentence; None if there was nothing to do.

        Raises:
            SottovoceError: The relay or the link does not answer, or refuses. The next call tries
                again.
        """
        try:
            ann = self.calls.ask(Route.ANNOUNCED)
            if ann != self._ann:
                self._begin()
        except RefusedError as refused:
            if refused.is_too_early:
                return None
            raise
        now = self.clock()
        if now >= self._ends or now < self._not_before:
            return None
        self._not_before = now + _AGAIN_SECONDS
        if self._run is None:
            self._run = self.runs.start(self._ann)
            return f"run {self._run} of the link passes the announcement {self._ann.hex()[:8]} on"
        ended, self._run = self._run, None  # Submitted again if the link does not answer.
        outcome = self.runs.outcome(ended)
        if outcome is None:
            self._run = ended
            return None
        if outcome == "finished:completed":
            self._ends = 0.0
            return f"run {ended} of the link has ended"
        return f"run {ended} of the link has ended early ({outcome}); another one follows"

    def _begin(self) -> None:
        """Take note of a new announcement."""
        asked, _ = unpack_announcement(self.calls.ask(Route.ANNOUNCEMENT))
        found = Announcement.read(asked)
        self._ann, self._ends = found.ann, float(max(found.closes, found.confirm_by))
        self._run, self._not_before = None, 0.0


def main(folder: str) -> None:
    """Pass the announcements of a relay to its link until a signal ends this process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # It logs every call as INFO.
    relay = RelayFolder.read(Path(folder))
    runs = FlowerRuns(relay=relay, federation=federation_of(relay))
    local = Address(host="localhost", port=relay.address.port)
    with RelayCalls(local, relay.card.certificate) as calls:
        bridge, last = Bridge(calls, runs), ""
        while True:
            try:
                told = bridge.look()
            except SottovoceError as error:
                told = str(error)
            if told and told != last:
                _LOG.info("%s", told)
                last = told
            time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
