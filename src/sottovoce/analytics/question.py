"""Questions about private values: plain data that can be sent to a device or a site.

The client's side turns values into codes (`answer`), one for each person; nothing else leaves it.
The server's side adds codes up (`tally`; tallies are added with +) and computes the statistic from
the sum (`estimate`). Where people are asked different things, the assignment follows from the
question's public seed and the person's number: `first` plus the position in the batch, or a secret
number where only counts over all people are revealed.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from numpy.typing import ArrayLike

from sottovoce.analytics.assignment import PersonNumbers
from sottovoce.analytics.result import FLOAT, POPULATION_NOTE, Estimate, Number
from sottovoce.analytics.tallies import Tally
from sottovoce.core import bounded_json
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.randomness import Randomness
from sottovoce.mechanisms.mechanism import CodeFormat, Codes, Mechanism, Sampling
from sottovoce.mechanisms.release import ShuffledMessages, release_event
from sottovoce.privacy.events import PrivacyEvent, PureDp, basic_counts
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.shuffling import MAX_CLIENTS

MAX_BATCH = 1_000_000  # People whose values are encoded at a time.


class Question(Protocol):
    """A question that every person answers once.

    Attributes:
        kind: Name of the statistic.
        least_people: Least number of people for an interval.
    """

    kind: ClassVar[str]
    least_people: ClassVar[int]

    @property
    def event(self) -> PrivacyEvent:
        """The privacy event that one person's code is charged with."""
        ...

    def event_among(self, people: int) -> PrivacyEvent:
        """Return the event of one person's code if only counts over `people` codes are revealed.

        The counts are those of all people together, and what each person is asked is drawn in
        secret (`assignment.secret_numbers`). So the counts are a function of the messages in
        random order, where a message is what a person was asked, and the code.

        Args:
            people: How many people follow the protocol, this person included.

        Returns:
            The event of shuffled messages, or `event` itself for fewer than two people.
        """
        ...

    @property
    def mechanism_kind(self) -> str:
        """The name of the registered mechanism; a site's policy lists it."""
        ...

    @property
    def sampling(self) -> Sampling:
        """The sampling grade of the mechanism: exact or float."""

    @property
    def code_format(self) -> CodeFormat:
        """The format of one person's code: its number of levels, or float32."""
        ...

    @property
    def digest(self) -> str:
        """A digest of the mechanism and its tables: the same for clients and server."""
        ...

    def answer(self, values: ArrayLike, randomness: Randomness, first: PersonNumbers = 0) -> Codes:
        """Encode values, on the clients' side.

        Args:
            values: One value for each of the persons first, first + 1, ...
            randomness: The source of randomness.
            first: The number of the first person, or the secret number of each; it determines the
                keystream and what is asked.

        Returns:
            One code for each person.
        """
        ...

    def tally(self, codes: Codes, first: PersonNumbers = 0) -> Tally:
        """Add codes up, on the server's side.

        Args:
            codes: The codes of the persons first, first + 1, ...
            first: The number of the first person, or the secret number of each.

        Returns:
            Counts or moments whose size does not depend on the number of people.
        """
        ...

    def estimate(self, tally: Tally, confidence: float = 0.95) -> Estimate:
        """Estimate the statistic from a tally.

        Args:
            tally: The sum of the tallies of all people.
            confidence: Confidence level of the intervals.

        Returns:
            The estimate with its interval; no interval if there are fewer than `least_people`, or
            if the noise is too large (variance, quantiles).

        Raises:
            ParameterError: There are no answers, or the confidence is not from 0.5 to 0.9999.
        """
        ...


Q = TypeVar("Q", bound=type)
_KINDS: dict[str, Callable[..., Question]] = {}


def question(kind: Q) -> Q:
    """Register a class of questions by its `kind`, so that it can be read from JSON.

    It is a decorator that returns the class unchanged.
    """
    _KINDS[kind.kind] = kind  # type: ignore[attr-defined]
    return kind


def to_dict(asked: Question, digest: str | None = None) -> dict[str, Any]:
    """Return the question as plain data, with the digest of its tables (computed if None)."""
    fields = dataclasses.asdict(asked)  # type: ignore[call-overload]
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}
    return {"kind": asked.kind, **plain, "digest": asked.digest if digest is None else digest}


def to_json(asked: Question) -> str:
    """Return the question as JSON.

    Args:
        asked: The question.

    Returns:
        A JSON object with the question's kind, its fields and the digest of its tables.
    """
    return json.dumps(to_dict(asked), sort_keys=True, allow_nan=False)


def from_dict(plain: Mapping[str, Any]) -> Question:
    """Return the question that plain data, as from `to_dict`, describe.

    Raise UnknownNameError if the kind or a field is not known, and ParameterError if a field is
    missing or out of range, or if the question was made with other tables.
    """
    found = parse_question(plain)
    check_tables(found, plain)
    return found


def parse_question(plain: Mapping[str, Any]) -> Question:
    """Return the question that plain data describe, without computing its tables.

    A site can refuse the question by its fields before it spends time on the tables; `check_tables`
    compares them afterwards. Raise UnknownNameError if the kind or a field is not known, and
    ParameterError if a field is missing or out of range.
    """
    kind = plain.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UnknownNameError.among("kind of question", str(kind), _KINDS)
    factory = _KINDS[kind]
    expected = {field.name for field in dataclasses.fields(factory)}  # type: ignore[arg-type]
    given = {name: value for name, value in plain.items() if name not in ("kind", "digest")}
    if unknown := sorted(set(given) - expected):
        raise UnknownNameError.among(f"field of a question about the {kind}", unknown[0], expected)
    if missing := sorted(expected - set(given)):
        raise ParameterError(f"a question about the {kind} must have the field '{missing[0]}'")
    try:
        return factory(
            **{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        )
    except (TypeError, AttributeError) as error:
        raise ParameterError(
            f"a question about the {kind} cannot be read: {error}; check its fields"
        ) from None


def check_tables(found: Question, plain: Mapping[str, Any]) -> None:
    """Raise ParameterError if the digest in `plain` is not that of the question's tables.

    The tables are computed here if needed.
    """
    if plain.get("digest") != found.digest:
        raise ParameterError(
            f"the question about the {found.kind} was made with other tables than this version's "
            f"(digest {plain.get('digest')!r}, here {found.digest!r}); use the same version of "
            "Sottovoce on both sides"
        )


def from_json(text: str) -> Question:
    """Return the question that JSON describes.

    Args:
        text: The text that `to_json` returned.

    Returns:
        The question.

    Raises:
        UnknownNameError: The kind of question, or a field, is not known.
        ParameterError: The text is not JSON, a field is missing or out of range, or the question
            was made with other tables.

    Examples:
        >>> from sottovoce.analytics import question_for, to_json
        >>> question = question_for("mean", lower=0, upper=120, epsilon=1.0)
        >>> from_json(to_json(question)) == question
        True
    """
    try:
        plain = bounded_json.loads(text.encode(errors="replace"))
    except bounded_json.JsonError as error:
        raise ParameterError(f"a question must be JSON; this {error}") from None
    if not isinstance(plain, dict):
        raise ParameterError(f"a question must be a JSON object, got {type(plain).__name__}")
    return from_dict(plain)


def build_estimate(
    asked: Question,
    numbers: tuple[Number, ...],
    *,
    people: int,
    confidence: float,
    mechanism: str,
    is_single: bool = False,
    notes: tuple[str, ...] = (),
    details: Mapping[str, Any] | None = None,
    epsilon_per_km: float | None = None,
) -> Estimate:
    """Return the estimate with the facts that every estimate states: epsilon, bits, notes.

    Epsilon is that of one person's code, or `epsilon_per_km` if it is given. A note says if there
    are too few people for an interval.
    """
    label = (FLOAT,) if asked.sampling == "float" else ()
    few = () if people >= asked.least_people else (too_few_note(asked, people),)
    return Estimate(
        statistic=asked.kind,
        numbers=numbers,
        is_single=is_single,
        confidence=confidence,
        people=people,
        epsilon=epsilon_of(asked.event) if epsilon_per_km is None else epsilon_per_km,
        epsilon_unit="per person" if epsilon_per_km is None else "per kilometre",
        bits=asked.code_format.payload_bits(1),
        mechanism=mechanism,
        sampling=asked.sampling,
        notes=(*few, *([POPULATION_NOTE] if not few else []), *label, *notes),
        details=details or {},
    )


def event_of_counts(mechanism: Mechanism, people: int) -> PrivacyEvent:
    """Return the event of one code of a mechanism among those of `people` people (replace-one)."""
    if people < 2:
        return release_event(mechanism, adjacency=Adjacency.REPLACE_ONE)
    hidden = ShuffledMessages(minimum_clients=min(people, MAX_CLIENTS))
    return release_event(mechanism, adjacency=Adjacency.REPLACE_ONE, visibility=hidden)


def epsilon_of(event: PrivacyEvent) -> float:
    """Return the event's pure epsilon, as stated for a single `PureDp`, else rounded up.

    It is infinite if the event has none.
    """
    match list(basic_counts(event).items()):
        case [(PureDp(epsilon=epsilon), 1)]:
            return epsilon
        case _:
            return pure_epsilon(event)


def too_few_note(asked: Question, people: int) -> str:
    """Return the note that there are too few people for an interval."""
    return (
        f"no interval: {people} people answered, and an interval for the {asked.kind} needs "
        f"{asked.least_people} to cover as often as stated"
    )


def check_people(people: int) -> None:
    """Raise ParameterError unless at least one person answered."""
    if people < 1:
        raise ParameterError("there are no answers; give the values of at least one person")
