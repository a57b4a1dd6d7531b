"""A client that answers announcements: what it does again if the relay could not take it."""

import contextlib
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import pytest
import two_servers

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.operators.calls import RefusedError
from sottovoce.deployment.operators.device import RelayLink
from sottovoce.deployment.operators.participant import Participant
from sottovoce.deployment.site import Site
from sottovoce.protocol.secure.announcement import Announcement


class Link:
    """A way to a relay that hands out one announcement."""

    def __init__(self, announcement: bytes) -> None:
        self._announcement = announcement
        self.confirmed = self.read = 0
        self.status = 0

    def announced(self) -> bytes:
        return Announcement.read(self._announcement).ann

    def announcement(self) -> tuple[bytes, bytes]:
        self.read += 1
        return self._announcement, b""

    def confirm(self, **_: Any) -> None:
        self.confirmed += 1
        if self.status:
            raise RefusedError(self.status, "the relay refuses")


class SiteWithLedger:
    """A site whose ledger is not needed."""

    def open_ledger(self) -> Any:
        return contextlib.nullcontext()


@pytest.mark.parametrize(
    ("status", "is_sent_again"),
    [
        (HTTPStatus.SERVICE_UNAVAILABLE, True),
        (HTTPStatus.INTERNAL_SERVER_ERROR, True),
        (HTTPStatus.BAD_REQUEST, False),
    ],
)
def test_what_a_busy_relay_could_not_take_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, is_sent_again: bool
) -> None:
    with two_servers.world_in(tmp_path) as world:
        link = Link(world.announce_shuffle())
    sites: list[Site] = []

    def read_site() -> Site:
        sites.append(cast(Site, SiteWithLedger()))
        return sites[-1]

    participant = Participant(cast(RelayLink, link), read_site)
    answers: list[int] = []

    def refuse(*_: object) -> None:
        answers.append(status)
        raise RefusedError(status, "the relay refuses")

    monkeypatch.setattr(Participant, "_answer", refuse)
    with pytest.raises(DeploymentError):
        participant.look()
    if is_sent_again:
        with pytest.raises(DeploymentError):
            participant.look()
        monkeypatch.setattr(Participant, "_answer", lambda *_: None)
        assert participant.look() == "answered attempt 1 at round 1 of the run 'run'"
        link.status = status
        for _ in range(2):
            with pytest.raises(DeploymentError):
                participant.look()
        link.status = 0
        assert participant.look() == "confirmed attempt 1 at round 1 of the run 'run'"
        assert link.confirmed == 3
    assert participant.look() is None
    assert len(answers) == 1 + is_sent_again
    # The whole announcement, with its model, and the policy are read for an answer only.
    assert link.read == len(sites) - 1 == 1 + 2 * is_sent_again
