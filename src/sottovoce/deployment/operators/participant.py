"""A client that looks for announcements at the relay over HTTPS, and answers them."""

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from sottovoce.core import printable_text
from sottovoce.core.errors import DeploymentError, SottovoceError
from sottovoce.deployment.machines.processes import hold_supervisor_lock
from sottovoce.deployment.operators.answering import AnsweringClient
from sottovoce.deployment.operators.calls import RefusedError
from sottovoce.deployment.operators.device import DeviceFolder, RelayLink
from sottovoce.deployment.site import Site, read_site
from sottovoce.protocol.secure.announcement import Announcement

POLL_SECONDS = 2.0
START_SECONDS = 60.0
_LOG = printable_text.logger()


@dataclass(slots=True)
class Participant:
    """A client with its connection to the relay and what it has answered in this process.

    Args:
        link: The way to the relay.
        read_site: Reads policy, ledger and data, for each announcement again.
    """

    link: RelayLink
    read_site: Callable[[], Site]
    _site: Site = field(init=False, repr=False)
    _seen: bytes = field(init=False, default=b"", repr=False)
    _unconfirmed: Announcement | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self._site = self.read_site()

    def look(self) -> str | None:
        """Look for an announcement or a list to confirm, and answer it.

        Returns:
            What was done, as a sentence; None if there was nothing to do.

        Raises:
            SottovoceError: The client refuses or fails; nothing more of this announcement is sent.
        """
        try:
            if self.link.announced() == self._seen:
                return self._confirm()
            asked, content = self.link.announcement()
        except RefusedError as refused:
            if refused.is_too_early:
                return None
            raise
        found = Announcement.read(asked)
        if found.ann == self._seen:
            return self._confirm()
        self._site = self.read_site()
        self._seen, self._unconfirmed = found.ann, None
        try:
            self._answer(asked, found, content)
        except DeploymentError as error:
            if not isinstance(error, RefusedError) or error.is_busy:
                self._seen = b""  # The relay is away: the report is sent later.
            raise
        if found.is_confirmed:
            self._unconfirmed = found
        return f"answered {found.place}"

    def _confirm(self) -> str | None:
        """Send the confirmation of the own message once there is a list."""
        found = self._unconfirmed
        if found is None or time.time() < found.closes:
            return None
        try:
            with self._site.open_ledger() as ledger:
                self.link.confirm(ledger=ledger)
        except RefusedError as refused:
            if refused.is_too_early:
                return None
            if not refused.is_busy:
                self._unconfirmed = None
            raise
        self._unconfirmed = None
        return f"confirmed {found.place}"

    def _answer(self, asked: bytes, found: Announcement, content: bytes) -> None:
        answer = AnsweringClient(self.link, self._site).report(asked, content)
        try:
            self.link.send(answer.report)
        except RefusedError as refused:
            # The relay may have had it before this client was stopped, and wait for a confirmation.
            is_late = found.closes <= time.time() < found.confirm_by
            if answer.is_new or refused.is_busy or not is_late:
                raise


def keep_participant(
    device: DeviceFolder,
    *,
    on_ready: Callable[[], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Answer announcements until a signal ends this process.

    A refusal or a failure is told and logged at the client only, and the next announcement is
    looked for.

    Args:
        device: The client's folder, which has a site.toml.
        on_ready: Called once, before the first announcement is looked for.
        pause: Sleeps for a number of seconds.

    Raises:
        SottovoceError: The folder is not complete, or another process runs this client.
    """
    _read_own_site(device)  # Before anything is written or waited for.
    with (
        RelayLink(device) as link,
        hold_supervisor_lock(device.node_folder, what=f"the client '{device.name}'") as announce,
    ):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
        announce({"connected": True})
        on_ready()
        participant, last = Participant(link, lambda: _read_own_site(device)), ""
        while True:
            try:
                told = participant.look()
            except SottovoceError as error:
                told = str(error)
                _LOG.warning("%s", error)
            if told and told != last:
                print(printable_text.printable_lines(told), file=sys.stderr, flush=True)
                last = told
            pause(POLL_SECONDS)


def _read_own_site(device: DeviceFolder) -> Site:
    site = read_site(device.site_file)
    if site.name != device.name:
        raise DeploymentError(
            f"{device.site_file} is the file of '{site.name}', and this client is '{device.name}'; "
            "correct its name"
        )
    return site


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)
