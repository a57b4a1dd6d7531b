"""Tests of answering each step once."""

import threading

import pytest

from sottovoce.core.errors import WireError
from sottovoce.protocol.secure.answers import AnswersOnce


def never() -> bytes:
    pytest.fail("a reply was made twice")


def test_the_same_message_gets_the_stored_reply_also_after_later_steps() -> None:
    answers = AnswersOnce(["open", "close"])
    assert answers.reply("open", b"a", lambda: b"1") == b"1"
    assert answers.reply("close", b"b", lambda: b"2") == b"2"
    assert answers.reply("open", b"a", never) == b"1"


def test_another_message_of_an_answered_step_is_refused() -> None:
    answers = AnswersOnce(["open"])
    answers.reply("open", b"a", lambda: b"1")
    with pytest.raises(WireError, match="answered before"):
        answers.reply("open", b"b", never)


def test_a_step_that_is_not_the_next_is_refused() -> None:
    answers = AnswersOnce(["open", "close"])
    with pytest.raises(WireError, match="expected the message 'open', got 'close'"):
        answers.reply("close", b"", never)
    with pytest.raises(WireError, match="got 'dance'"):
        answers.reply("dance", b"", never)


def test_a_step_that_failed_is_still_open() -> None:
    answers = AnswersOnce(["open"])

    def fail() -> bytes:
        raise WireError("a signature is wrong")

    with pytest.raises(WireError, match="wrong"):
        answers.reply("open", b"a", fail)
    assert answers.reply("open", b"b", lambda: b"1") == b"1"


def test_nothing_is_answered_after_closing_also_if_a_step_closes() -> None:
    answers = AnswersOnce(["open", "close"])
    answers.reply("open", b"a", lambda: b"1")

    def close() -> bytes:
        answers.close()
        raise WireError("the charge is refused")

    with pytest.raises(WireError, match="refused"):
        answers.reply("close", b"b", close)
    for step in ("open", "close"):
        with pytest.raises(WireError, match="no more messages"):
            answers.reply(step, b"a", never)


def test_of_two_messages_of_a_step_at_the_same_time_one_is_answered() -> None:
    """Two lists at once would deal the same secrets twice."""
    answers = AnswersOnce(["list"])
    inside, go_on = threading.Event(), threading.Event()
    refused: list[str] = []

    def slow() -> bytes:
        inside.set()
        go_on.wait(10.0)
        return b"1"

    def ask_second() -> None:
        try:
            answers.reply("list", b"b", lambda: b"2")
        except WireError as error:
            refused.append(str(error))

    first = threading.Thread(target=lambda: answers.reply("list", b"a", slow))
    second = threading.Thread(target=ask_second)
    first.start()
    inside.wait(10.0)
    second.start()
    second.join(0.05)  # without a lock it would be answered by now
    go_on.set()
    first.join()
    second.join()
    assert len(refused) == 1
    assert answers.reply("list", b"a", never) == b"1"
