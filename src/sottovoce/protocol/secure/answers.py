"""Answering each step of a protocol once, whatever is sent and however often."""

import hashlib
from collections.abc import Callable, Sequence

from sottovoce.core.errors import WireError


class AnswersOnce:
    """The replies of a party, which takes the messages of a protocol in their order.

    Args:
        steps: The names of the messages, in their order.
    """

    def __init__(self, steps: Sequence[str]) -> None:
        self._steps = list(steps)
        self._replies: dict[str, tuple[bytes, bytes]] = {}

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
        request = hashlib.sha256(message).digest()
        if step in self._replies:
            earlier, stored = self._replies[step]
            if earlier != request:
                raise WireError(f"another message '{step}' was answered before; it stays the only")
            return stored
        if not self._steps or step != self._steps[0]:
            expected = f"the message '{self._steps[0]}'" if self._steps else "no more messages"
            raise WireError(f"expected {expected}, got '{step}'")
        made = make()
        self._replies[step] = request, made
        self._steps = self._steps[1:]
        return made

    def close(self) -> None:
        """Forget all replies and answer nothing any more."""
        self._steps.clear()
        self._replies.clear()
