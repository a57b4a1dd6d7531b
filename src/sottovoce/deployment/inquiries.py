"""What the server asks of one site about its people, and the tally that comes back, as bytes.

An inquiry is public: the question, and the name of what it is about, which each site's own file
explains. Every person's value becomes one code; the site adds its people's codes up, which tells no
more than the codes, and sends the tally. How many people there are is public.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from sottovoce.analytics.histogram import HistogramQuestion
from sottovoce.analytics.question import Question
from sottovoce.analytics.tallies import CodeCounts, Moments, Tally
from sottovoce.core.errors import DomainError, WireError
from sottovoce.deployment.orders import STATEMENT, Blobs, Name, Request, Table, strict_json

INQUIRY, TALLY = "inquiry", "tally"  # the one part of a message, there and back
MOST_SITES = 2**16
MOST_PEOPLE = 2**32  # of one site: people are numbered over all sites
# Of a float32 code less the middle of the bounds: what is larger nobody can have sent.
_MOST_SQUARE = (2.0 * float(np.finfo(np.float32).max)) ** 2
_LONGEST_NUMBER = 32  # bytes of a number in a tally, with its comma and brackets
_SPARE = 1024  # bytes and values around a tally's numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry(Request):
    """One site's part of a question; the site's people are numbered from `first`."""

    part: ClassVar[str] = INQUIRY
    version: ClassVar[int] = 2
    message_type: ClassVar[str] = "query"
    round: ClassVar[int] = 1  # everybody is asked once

    cohort: Annotated[int, Field(strict=True, ge=1, le=MOST_SITES)]
    first: Annotated[int, Field(strict=True, ge=0, le=MOST_SITES * MOST_PEOPLE)]
    about: Name
    question: Table

    def blobs(self) -> dict[str, bytes]:
        """As it travels."""
        return self.table()


def read_inquiry(blobs: Blobs) -> Inquiry:
    """The inquiry in a server's message, or WireError."""
    if set(blobs) != {INQUIRY}:
        raise WireError(f"an inquiry is the part '{INQUIRY}' and nothing else")
    return Inquiry.read(blobs[INQUIRY])


def tally_bytes(tally: Tally) -> bytes:
    """A tally as it travels: whole counts, or moments to the last bit."""
    match tally:
        case CodeCounts():
            plain = {"counts": tally.counts.tolist()}
        case Moments():
            plain = {"moments": tally.sums.tolist()}
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def largest_tally_bytes(question: Question) -> int:
    """Return the most bytes that a tally of this question has: no number is longer than 25."""
    like = _empty_tally(question)
    numbers = like.counts if isinstance(like, CodeCounts) else like.sums
    return 64 + 26 * numbers.size + 3 * len(numbers)


def _empty_tally(question: Question) -> Tally:
    return question.tally(np.zeros(1, dtype=question.code_format.dtype))


def read_tally(blobs: Blobs, question: Question) -> Tally:
    """The tally of a site's reply, checked against the question; WireError for anything else.

    That the counts are those of honest codes nobody can check: whoever is asked may lie.
    """
    if set(blobs) - {STATEMENT} != {TALLY}:
        raise WireError(f"a reply has the part '{TALLY}' and nothing else")
    like = _empty_tally(question)
    numbers = like.counts if isinstance(like, CodeCounts) else like.sums
    plain = strict_json(
        "the tally",
        blobs[TALLY],
        most_bytes=_SPARE + _LONGEST_NUMBER * numbers.size,
        most_values=_SPARE + len(numbers) + numbers.size,
    )
    if not isinstance(plain, dict) or len(plain) != 1:
        raise WireError("a tally is 'counts' or 'moments'")
    ((name, rows),) = plain.items()
    match like:
        case CodeCounts() if name == "counts":
            counts = _numbers(rows, like.counts.shape, np.int64)
            _check_counts(counts)
            tally: Tally = CodeCounts(counts=counts)
        case Moments() if name == "moments":
            sums = _numbers(rows, like.sums.shape, np.float64)
            _check_moments(sums)
            tally = Moments(sums=sums)
        case _:
            raise WireError(f"a tally of '{name}' is no answer to this question")
    if isinstance(question, HistogramQuestion):
        try:
            question.check_rows(tally)
        except DomainError as error:
            raise WireError(str(error)) from None
    if not 1 <= tally.people <= MOST_PEOPLE:
        raise WireError(f"a tally is of 1 to {MOST_PEOPLE} people, got {tally.people}")
    return tally


def _numbers(rows: object, shape: tuple[int, ...], dtype: type) -> Any:
    whole = dtype is np.int64
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise WireError("a tally is rows of numbers")
    wanted = (int,) if whole else (int, float)
    if any(type(number) not in wanted for row in rows for number in row):
        raise WireError("a tally holds numbers only")
    if [len(row) for row in rows] != [shape[1]] * shape[0]:
        raise WireError(f"a tally of this question has {shape[0]} rows of {shape[1]} numbers")
    try:
        return np.asarray(rows, dtype=dtype).reshape(shape)
    except OverflowError:
        raise WireError("a count is too large") from None


def _check_counts(counts: Any) -> None:
    if counts.size and not 0 <= int(counts.min()) <= int(counts.max()) <= MOST_PEOPLE:
        raise WireError(f"a count is a whole number from 0 to {MOST_PEOPLE}")


def _check_moments(sums: Any) -> None:
    """People are counted in whole numbers, and no sum is larger than its squares allow."""
    people, totals, squares = sums.T
    if not (np.isfinite(sums).all() and (people >= 0).all() and (people == np.rint(people)).all()):
        raise WireError("moments are finite, and people are counted in whole numbers")
    if (people > MOST_PEOPLE).any() or (squares < 0).any():
        raise WireError(f"moments are of at most {MOST_PEOPLE} people, their squares not negative")
    if (squares > MOST_PEOPLE * _MOST_SQUARE).any():
        raise WireError("a sum of squares is larger than any float32 codes have")
    with np.errstate(over="ignore"):
        if (totals**2 > people * squares * (1.0 + 1e-9)).any():
            raise WireError("a sum is larger than its squares allow")
