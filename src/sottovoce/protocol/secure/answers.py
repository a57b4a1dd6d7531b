"""Answering each step of a protocol once, whatever is sent and however often."""

import hashlib
import threading
from collections.abc import Callable, Sequence

from sottovoce.core.errors import WireError


class AnswersOnce:
    """The replies of a party, which takes the messages of a protocol in their order.

    Threads may share it: while one message is answered, another one waits.

    Args:
        steps: The names of the messages, in their order.
    """

    def __init__(self, steps: Sequence[str]) -> None:
        self._steps = list(steps)
        self._replies: dict[str, tuple[bytes, bytes]] = {}
        # Two messages of one step at the same time could otherwise both be answered. What makes a
        # reply may close the party, so its thread may enter again.
        self._turn = threading.RLock()

    def reply(self, step: str, message: bytes, make: Callable[[], bytes]) -> bytes:
        """Return the reply to a message: the stored one if the same message came before.

        Args:
            step: The name of the message.
            message: Its bytes.
            make: Returns the reply; called once in a step. If it raises, the step is still open.

        Returns:
            The reply.

        Raises:
            WireError: Another message of this step was answered, or the step is not the next one.
        """
        with self._turn:
            stored = self.stored(step, message)
            if stored is not None:
                return stored
            made = make()
            self._replies[step] = hashlib.sha256(message).digest(), made
            self._steps = self._steps[1:]
            return made

    def stored(self, step: str, message: bytes) -> bytes | None:
        """Return the reply to a message that was answered; None if the message may be answered now.

        Raises:
            WireError: As for `reply`.
        """
        with self._turn:
            if step in self._replies:
                earlier, reply = self._replies[step]
                if earlier != hashlib.sha256(message).digest():
                    raise WireError(
                        f"another message '{step}' was answered before; it stays the only"
                    )
                return reply
            if not self._steps or step != self._steps[0]:
                expected = f"the message '{self._steps[0]}'" if self._steps else "no more messages"
                raise WireError(f"expected {expected}, got '{step}'")
            return None

    def close(self) -> None:
        """Forget all replies and answer nothing any more."""
        with self._turn:
            self._steps.clear()
            self._replies.clear()
