"""Requests of the server to one site, and the site's replies, as bytes.

An order asks a site to train for one round. It is public: the spec, the client's mechanism, and the
model that the server has released. The site takes from it what to compute, but nothing about its
own data: the number of its records, and hence how far one of them moves the update, comes from the
site itself.

An inquiry asks a question about a site's people. It is public as well: the question, and the name
of what it is about, which each site's own file maps to a column. Every person's value becomes one
code. The site adds the codes of its people, which reveals no more than the codes, and sends the
tally. The number of people is public.
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

ORDER = "order"  # the part of a message that contains the order
REFUSED = "refused"  # the part of a reply that says why there is no message
ROUNDS_CHARGED = "rounds_charged"  # the number of rounds of the run that the site has charged
STATEMENT = "ledger"  # the site's signed statement about its ledger
OPTIONAL_PARTS = {ROUNDS_CHARGED, STATEMENT}  # parts that any reply may have
MOST_VECTORS = 16
# The spec of 65,536 sites with names of 40 letters in three lists takes 8.7 MiB.
MOST_JSON_BYTES = 16 * 2**20
MOST_VALUES = 2**19
_MOST_NESTED = 32  # a spec is nested far less deep
_LARGEST = 2**32 - 1  # the largest count, as for rounds on the wire
_LONGEST_NAME = 256
_LONGEST_REASON = 300
Blobs = Mapping[str, bytes]


def printable_name(value: object) -> str:
    """Return the value if it is a name: 1 to 256 printable characters; else raise WireError."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or not value.isprintable():
        raise WireError(f"a name must be text of 1 to {_LONGEST_NAME} characters, all printable")
    return value


Name = Annotated[str, BeforeValidator(printable_name)]
Table = Annotated[Mapping[str, Any], Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, le=_LARGEST)]
Digest = Annotated[str, Field(strict=True, pattern="^([0-9a-f]{16})?$")]
CountFromOne = Annotated[Count, Field(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRequest:
    """A request of the server to one site: the fields that orders and questions have in common.

    The fields of a request are sent together as one JSON object, except those in `sent_apart`,
    which are sent as bytes next to it. Nothing in a request is secret.

    Attributes:
        run: Name of the run in ledgers.
        client: Name of the site.
        cohort: Number of sites that the server says it asks.
        receipt: The server's newest receipt for a statement of the site about its ledger; None if
            there is none. `read` does not verify it. The site verifies its two signatures with the
            keys in its own folder (`site_witness.check_witnessed`), and ignores it if they are
            invalid or if the site has no keys.
    """

    part: ClassVar[str]  # the part of a message that contains the table
    version: ClassVar[int]
    message_type: ClassVar[str]
    sent_apart: ClassVar[tuple[str, ...]] = ()  # fields that are sent as bytes next to the JSON

    run: Name
    client: Name
    cohort: CountFromOne
    receipt: Table | None = None

    def with_receipt(self, receipt: Mapping[str, Any] | None) -> Self:
        """Return a copy of the request with this receipt for the site's ledger, or without one."""
        return replace(self, receipt=receipt)

    def table(self) -> dict[str, bytes]:
        """Return the fields and the version as they are sent: JSON bytes by the part's name."""
        public = {"version": self.version, **{key: getattr(self, key) for key in self._keys()}}
        return {self.part: json.dumps(public, separators=(",", ":"), allow_nan=False).encode()}

    @classmethod
    def read(cls, text: bytes, **parts: bytes | tuple[bytes, ...]) -> Self:
        """Return the request in JSON bytes that were received; raise WireError if it is not one.

        `parts` are the fields that were sent as bytes next to the JSON (`sent_apart`).
        """
        public = strict_json(f"the {cls.part}", text)
        if not isinstance(public, dict) or repr(public.pop("version", None)) != str(cls.version):
            raise WireError(
                f"this side reads version {cls.version} of an {cls.part}, and another version "
                "arrived; install the same version of Sottovoce on both sides"
            )
        if set(public) != set(cls._keys()):
            raise WireError(
                f"an {cls.part} must have exactly the keys {', '.join(sorted(cls._keys()))}, and "
                "other keys arrived"
            )
        try:
            found: Self = _adapter(cls).validate_python(  # type: ignore[arg-type]
                {**public, **parts}
            )
        except ValidationError as error:
            raise WireError(f"the {cls.part}: {problem_in(error)}") from None
        return found

    @classmethod
    def _keys(cls) -> list[str]:
        return [field.name for field in fields(cls) if field.name not in cls.sent_apart]


@functools.cache
def _adapter(request: type[SiteRequest]) -> TypeAdapter[Any]:
    return TypeAdapter(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(SiteRequest):
    """One client's part of a training round.

    Attributes:
        spec: The resolved spec as JSON data.
        round: Number of the round.
        mechanism: The client's mechanism: its `kind` and its parameters.
        classes: Number of classes of the run, since a site may have records of only some of them.
        frozen: Digest of the model's frozen parameters and buffers at the server, which are not
            sent; empty if it has none.
        keep_from: Rounds before this one are never asked for again.
        attempt: Number of the attempt at a secure sum that the order opens, from 1; 0 if the reply
            is the message itself.
        vectors: The model and the other vectors that are sent down, packed as the spec says.
    """

    part: ClassVar[str] = ORDER
    version: ClassVar[int] = 5
    message_type: ClassVar[str] = "train"
    sent_apart: ClassVar[tuple[str, ...]] = ("vectors",)

    spec: Table
    round: Count
    mechanism: Table
    classes: CountFromOne | None
    frozen: Digest = ""
    keep_from: Count
    attempt: Count = 0
    vectors: tuple[bytes, ...]

    def blobs(self) -> dict[str, bytes]:
        """Return the order as it is sent: JSON under "order", and "vector0", "vector1", ..."""
        blobs = {f"vector{number}": vector for number, vector in enumerate(self.vectors)}
        return {**self.table(), **blobs}


def read_order(blobs: Blobs) -> Order:
    """Return the order in a server's message; raise WireError if it is not one."""
    if len(blobs) > 1 + MOST_VECTORS:
        raise WireError(
            f"an order must have at most {MOST_VECTORS} vectors, got {len(blobs) - 1} parts"
        )
    names = [f"vector{number}" for number in range(len(blobs) - 1)]
    if set(blobs) != {ORDER, *names}:
        raise WireError("an order must have the part 'order' and vectors numbered from 0")
    return Order.read(blobs[ORDER], vectors=tuple(blobs[name] for name in names))


def strict_json(
    what: str, text: bytes, *, most_bytes: int = MOST_JSON_BYTES, most_values: int = MOST_VALUES
) -> object:
    """Return the value of strict JSON text; raise WireError if it is not that, or is too large.

    The size is checked before parsing. `what` starts the message.
    """
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
    """Return a client's sealed messages as they are sent, as "uplink0", "uplink1", ...

    `rounds_charged` is in how many rounds of the run the site's own ledger has charges; None leaves
    it out.
    """
    blobs = {f"uplink{number}": message for number, message in enumerate(messages)}
    return {**blobs, **_report(rounds_charged)}


def refusal_blobs(reason: str, rounds_charged: int | None = None) -> dict[str, bytes]:
    """Return the refusal of a site as it is sent; its reason is public and cut to 300 characters.

    `rounds_charged` is as in `reply_blobs`.
    """
    return {REFUSED: reason[:_LONGEST_REASON].encode(errors="replace"), **_report(rounds_charged)}


def _report(rounds_charged: int | None) -> dict[str, bytes]:
    return {} if rounds_charged is None else {ROUNDS_CHARGED: b"%d" % rounds_charged}


def read_reply(blobs: Blobs, *, uplinks: int) -> list[bytes]:
    """Return the sealed messages of a reply, unopened, in the order of the uplinks.

    Raises WireError if a message is missing or there is an unknown part.
    """
    wanted = [f"uplink{number}" for number in range(uplinks)]
    if set(blobs) - OPTIONAL_PARTS != set(wanted):
        raise WireError(f"a reply must have {', '.join(wanted)} and no other part")
    return [blobs[name] for name in wanted]


def read_refusal(blobs: Blobs) -> str | None:
    """Return why a site refuses, in its own words; None if the reply is not a refusal.

    The text is cut to 300 characters. Raises WireError if a refusal has messages as well.
    """
    if REFUSED not in blobs:
        return None
    if set(blobs) - OPTIONAL_PARTS != {REFUSED}:
        raise WireError("a refusal must have its reason and no messages")
    reason = blobs[REFUSED][: 4 * _LONGEST_REASON].decode(errors="replace")
    return reason[:_LONGEST_REASON] or "no reason given"


def read_rounds_charged(blobs: Blobs) -> int | None:
    """Return in how many rounds of the run a site claims to be charged; None without a claim.

    The claim is unverified. It is shown next to the server's own count and decides nothing. Raises
    WireError if it is not a count.
    """
    text = blobs.get(ROUNDS_CHARGED)
    if text is None:
        return None
    if len(text) > len(str(_LARGEST)) or not text.isdigit() or int(text) > _LARGEST:
        raise WireError(f"'{ROUNDS_CHARGED}' of a reply must be an integer from 0 to {_LARGEST}")
    return int(text)


INQUIRY, TALLY = "inquiry", "tally"  # the only part of the request and of the reply
MOST_SITES = 2**16  # whose people have public numbers; behind a secure sum they have secret ones
MOST_PEOPLE = 2**32  # of one site; people are numbered over all sites
# The largest square of a float32 code minus the middle of the bounds.
_MOST_SQUARE = (2.0 * float(np.finfo(np.float32).max)) ** 2
_LONGEST_NUMBER = 32  # bytes of a number in a tally, with its comma and brackets
_SPARE = 1024  # bytes and values around a tally's numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRequest(SiteRequest):
    """One site's part of a question about people.

    Attributes:
        first: Number of the site's first person; people are numbered over all sites. It is not
            used in a secure sum, where people draw secret numbers.
        about: Name of what the question is about, which the site's own file maps to a column.
        question: The question as JSON data.
        attempt: Number of the attempt at a secure sum of tallies that the request opens, from 1; 0
            if the reply is the tally itself.
        minimum_clients: Of a secure sum: the number of sites that follow the protocol, on whose
            people the charge counts; else 0.
        colluders: Of a secure sum: the most sites that may work together with the server; else 0.
    """

    part: ClassVar[str] = INQUIRY
    version: ClassVar[int] = 3
    message_type: ClassVar[str] = "query"
    round: ClassVar[int] = 1  # a question has one round

    first: Annotated[int, Field(strict=True, ge=0, le=MOST_SITES * MOST_PEOPLE)]
    about: Name
    question: Table
    attempt: Count = 0
    minimum_clients: Count = 0
    colluders: Count = 0

    def blobs(self) -> dict[str, bytes]:
        """Return the request as it is sent: JSON bytes under "inquiry"."""
        return self.table()


def read_question_request(blobs: Blobs) -> QuestionRequest:
    """Return the question request in a server's message; raise WireError if it is not one."""
    if set(blobs) != {INQUIRY}:
        raise WireError(f"an inquiry must have the part '{INQUIRY}' and no other part")
    return QuestionRequest.read(blobs[INQUIRY])


def tally_bytes(tally: Tally) -> bytes:
    """Return a tally as it is sent, in JSON: whole counts, or moments to the last bit."""
    match tally:
        case CodeCounts():
            plain = {"counts": tally.counts.tolist()}
        case Moments():
            plain = {"moments": tally.sums.tolist()}
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def largest_tally_bytes(question: Question) -> int:
    """Return the most bytes that a tally of this question can have as it is sent."""
    like = _empty_tally(question)
    numbers = like.counts if isinstance(like, CodeCounts) else like.sums
    return 64 + 26 * numbers.size + 3 * len(numbers)


def tally_shape(question: Question) -> tuple[int, ...]:
    """Return the numbers of rows and columns of a question's tally."""
    like = _empty_tally(question)
    return (like.counts if isinstance(like, CodeCounts) else like.sums).shape


def _empty_tally(question: Question) -> Tally:
    return question.tally(np.zeros(1, dtype=question.code_format.dtype))


def read_tally(blobs: Blobs, question: Question) -> Tally:
    """Return the tally of a site's reply, checked against the question; raise WireError otherwise.

    A site can send counts of codes that no mechanism drew; this cannot be detected.
    """
    if set(blobs) - {STATEMENT} != {TALLY}:
        raise WireError(f"a reply must have the part '{TALLY}' and no other part")
    like = _empty_tally(question)
    numbers = like.counts if isinstance(like, CodeCounts) else like.sums
    plain = strict_json(
        "the tally",
        blobs[TALLY],
        most_bytes=_SPARE + _LONGEST_NUMBER * numbers.size,
        most_values=_SPARE + len(numbers) + numbers.size,
    )
    if not isinstance(plain, dict) or len(plain) != 1:
        raise WireError("a tally must be a table with the one key 'counts' or 'moments'")
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
            raise WireError(f"a tally of '{name}' does not answer this question")
    if isinstance(question, HistogramQuestion):
        try:
            question.check_rows(tally)
        except DomainError as error:
            raise WireError(str(error)) from None
    if not 1 <= tally.people <= MOST_PEOPLE:
        raise WireError(f"a tally must be of 1 to {MOST_PEOPLE} people, got {tally.people}")
    return tally


def _numbers(rows: object, shape: tuple[int, ...], dtype: type) -> Any:
    whole = dtype is np.int64
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise WireError("a tally must be a list of rows of numbers")
    wanted = (int,) if whole else (int, float)
    if any(type(number) not in wanted for row in rows for number in row):
        raise WireError("a tally must contain numbers only")
    if [len(row) for row in rows] != [shape[1]] * shape[0]:
        raise WireError(f"a tally of this question must have {shape[0]} rows of {shape[1]} numbers")
    try:
        return np.asarray(rows, dtype=dtype).reshape(shape)
    except OverflowError:
        raise WireError(f"a count must be at most {MOST_PEOPLE}, got a larger number") from None


def _check_counts(counts: Any) -> None:
    if counts.size and not 0 <= int(counts.min()) <= int(counts.max()) <= MOST_PEOPLE:
        raise WireError(f"a count must be an integer from 0 to {MOST_PEOPLE}")


def _check_moments(sums: Any) -> None:
    """Raise WireError for counts of people or sums that no codes can have."""
    people, totals, squares = sums.T
    if not (np.isfinite(sums).all() and (people >= 0).all() and (people == np.rint(people)).all()):
        raise WireError("moments must be finite, and the numbers of people must be integers")
    if (people > MOST_PEOPLE).any() or (squares < 0).any():
        raise WireError(
            f"moments must be of at most {MOST_PEOPLE} people, with squares that are not negative"
        )
    if (squares > MOST_PEOPLE * _MOST_SQUARE).any():
        raise WireError("a sum of squares is larger than float32 codes can have")
    with np.errstate(over="ignore"):
        if (totals**2 > people * squares * (1.0 + 1e-9)).any():
            raise WireError("a sum is larger than its sum of squares allows")
