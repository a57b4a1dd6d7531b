"""What the server asks of one site, and what comes back, as bytes.

An order is for one round, and public: the spec, the client's mechanism, and the model that the
server has released. A site takes from it what to compute, never what its data are: how many records
it has, and so how far one of them moves the update, it knows itself.

An inquiry is about a site's people, and public, too: the question, and the name of what it is
about, which each site's own file explains. Every person's value becomes one code; the site adds its
people's codes up, which tells no more than the codes, and sends the tally. How many people there
are is public.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from sottovoce.analytics.histogram import HistogramQuestion
from sottovoce.analytics.question import Question
from sottovoce.analytics.tallies import CodeCounts, Moments, Tally
from sottovoce.core import bounded_json
from sottovoce.core.errors import DomainError, WireError
from sottovoce.runs.sections import problem_in

ORDER = "order"  # the part of a message that holds it
REFUSED = "refused"  # the part of a reply that says why there is no message
ROUNDS_CHARGED = "rounds_charged"  # in how many rounds of the run the site was charged, it says
STATEMENT = "ledger"  # what the site states about its ledger, signed
_BESIDE = {ROUNDS_CHARGED, STATEMENT}  # parts of a reply that may come with any other
MOST_VECTORS = 16
# The spec of 65,536 sites, each with its name of 40 letters in three lists, takes 8.7 MiB.
MOST_JSON_BYTES = 16 * 2**20
MOST_VALUES = 2**19
_MOST_NESTED = 32  # a spec has tables in tables in tables, and then it ends
_LARGEST = 2**32 - 1  # of a count: rounds on the wire are no larger
_LONGEST_NAME = 256
_LONGEST_REASON = 300
Blobs = Mapping[str, bytes]


def printable_name(value: object) -> str:
    """Return a name that can go into ledgers and logs: text that can be written, on one line."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or not value.isprintable():
        raise WireError(f"a name has 1 to {_LONGEST_NAME} letters, all printable")
    return value


Name = Annotated[str, BeforeValidator(printable_name)]
Table = Annotated[Mapping[str, Any], Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, le=_LARGEST)]
CountFromOne = Annotated[Count, Field(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the server asks of one site: its fields but `vectors` are a table that is public.

    `cohort` is how many sites are asked. `receipt` is what the server has witnessed of the site's
    ledger, if it has anything; it is read where the keys are that it is checked against.
    """

    part: ClassVar[str]  # of a message: it holds the table
    version: ClassVar[int]
    message_type: ClassVar[str]

    run: Name
    client: Name
    cohort: CountFromOne
    receipt: Table | None = None

    def with_receipt(self, receipt: Mapping[str, Any] | None) -> Self:
        return replace(self, receipt=receipt)

    def table(self) -> dict[str, bytes]:
        """Return the table as it travels."""
        public = {"version": self.version, **{key: getattr(self, key) for key in self._keys()}}
        return {self.part: json.dumps(public, separators=(",", ":"), allow_nan=False).encode()}

    @classmethod
    def read(cls, text: bytes, **parts: tuple[bytes, ...]) -> Self:
        """Return the request in a table that travelled, with other parts; or WireError."""
        public = strict_json(f"the {cls.part}", text)
        if not isinstance(public, dict) or repr(public.pop("version", None)) != str(cls.version):
            raise WireError(
                f"this side reads an {cls.part} of version {cls.version}; install the same version"
            )
        if set(public) != set(cls._keys()):
            raise WireError(f"an {cls.part} has {', '.join(sorted(cls._keys()))}")
        try:
            found: Self = _adapter(cls).validate_python(  # type: ignore[arg-type]
                {**public, **parts}
            )
        except ValidationError as error:
            raise WireError(f"the {cls.part}: {problem_in(error)}") from None
        return found

    @classmethod
    def _keys(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.name != "vectors"]


@functools.cache
def _adapter(request: type[Request]) -> TypeAdapter[Any]:
    return TypeAdapter(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Request):
    """One client's part of a round.

    `spec` is the resolved spec and `mechanism` the client's own, its `kind` among its parameters,
    both as plain data. A site that has records of only some of the `classes` needs to know how many
    there are. Rounds before `keep_from` will never be asked for again. `vectors` are the model and
    what else goes down, packed as the spec says.
    """

    part: ClassVar[str] = ORDER
    version: ClassVar[int] = 3
    message_type: ClassVar[str] = "train"

    spec: Table
    round: Count
    mechanism: Table
    classes: CountFromOne | None
    keep_from: Count
    vectors: tuple[bytes, ...]

    def blobs(self) -> dict[str, bytes]:
        """As it travels."""
        blobs = {f"vector{number}": vector for number, vector in enumerate(self.vectors)}
        return {**self.table(), **blobs}


def read_order(blobs: Blobs) -> Order:
    """The order in a server's message, or WireError."""
    if len(blobs) > 1 + MOST_VECTORS:
        raise WireError(f"an order has at most {MOST_VECTORS} vectors")
    names = [f"vector{number}" for number in range(len(blobs) - 1)]
    if set(blobs) != {ORDER, *names}:
        raise WireError("an order has 'order' and vectors, counted from 0")
    return Order.read(blobs[ORDER], vectors=tuple(blobs[name] for name in names))


def strict_json(
    what: str, text: bytes, *, most_bytes: int = MOST_JSON_BYTES, most_values: int = MOST_VALUES
) -> object:
    """What JSON in the strict sense says; WireError, before it is parsed, if it is too large."""
    try:
        return bounded_json.loads(
            text,
            most_bytes=most_bytes,
            most_values=most_values,
            most_nested=_MOST_NESTED,
            finite=True,
        )
    except bounded_json.JsonError as error:
        raise WireError(f"{what} {error}") from None


def reply_blobs(messages: list[bytes], rounds_charged: int | None = None) -> dict[str, bytes]:
    """A client's sealed messages, by uplink, as they travel, and what its ledger says, if it does.

    `rounds_charged` is in how many rounds of the run the site's own ledger has charges.
    """
    blobs = {f"uplink{number}": message for number, message in enumerate(messages)}
    return {**blobs, **_report(rounds_charged)}


def refusal_blobs(reason: str, rounds_charged: int | None = None) -> dict[str, bytes]:
    """Why a site sends no message, which is public, and what its ledger says, if it does."""
    return {REFUSED: reason[:_LONGEST_REASON].encode(errors="replace"), **_report(rounds_charged)}


def _report(rounds_charged: int | None) -> dict[str, bytes]:
    return {} if rounds_charged is None else {ROUNDS_CHARGED: b"%d" % rounds_charged}


def read_reply(blobs: Blobs, *, uplinks: int) -> list[bytes]:
    """The sealed messages of a reply, unopened; WireError if there is anything else in it."""
    wanted = [f"uplink{number}" for number in range(uplinks)]
    if set(blobs) - _BESIDE != set(wanted):
        raise WireError(f"a reply has {', '.join(wanted)} and nothing else")
    return [blobs[name] for name in wanted]


def read_refusal(blobs: Blobs) -> str | None:
    """Why a site refuses, in its own words; None where it does not."""
    if REFUSED not in blobs:
        return None
    if set(blobs) - _BESIDE != {REFUSED}:
        raise WireError("a refusal has its reason and no messages")
    reason = blobs[REFUSED][: 4 * _LONGEST_REASON].decode(errors="replace")
    return reason[:_LONGEST_REASON] or "no reason given"


def read_rounds_charged(blobs: Blobs) -> int | None:
    """In how many rounds of the run a site says it was charged; None where it says nothing.

    It is the site's word, to be shown beside the server's own count, and decides nothing.
    """
    text = blobs.get(ROUNDS_CHARGED)
    if text is None:
        return None
    if len(text) > len(str(_LARGEST)) or not text.isdigit() or int(text) > _LARGEST:
        raise WireError(f"'{ROUNDS_CHARGED}' of a reply is a whole number from 0 to {_LARGEST}")
    return int(text)


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
