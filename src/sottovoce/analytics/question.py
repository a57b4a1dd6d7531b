"""What a question is: plain data that a phone or a site could be sent, and both sides of it.

The client's side turns values into codes (`answer`), one for each person, and those are all that
leaves. The server's side adds codes up (`tally`; tallies are added with +) and reads the sum
(`estimate`). Whether a person is asked this or that follows from the question's public seed and
the person's number, `first` plus the place in the batch.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from numpy.typing import ArrayLike

from sottovoce.analytics.result import FLOAT, WHOM, Estimate, Number
from sottovoce.analytics.tallies import Tally
from sottovoce.core import bounded_json
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.randomness import Randomness
from sottovoce.mechanisms.mechanism import CodeFormat, Codes, Sampling
from sottovoce.privacy.events import PrivacyEvent, PureDp, basic_counts
from sottovoce.privacy.pure import pure_epsilon

MAX_BATCH = 1_000_000  # people privatised at a time


class Question(Protocol):
    """One thing that every person is asked, once."""

    kind: ClassVar[str]
    least_people: ClassVar[int]

    @property
    def event(self) -> PrivacyEvent:
        """What one person's code is charged with."""
        ...

    @property
    def mechanism_kind(self) -> str:
        """The registered mechanism whose law the codes follow; a site's policy names it."""
        ...

    @property
    def sampling(self) -> Sampling: ...

    @property
    def code_format(self) -> CodeFormat:
        """Of one person's code."""
        ...

    @property
    def digest(self) -> str:
        """Stands for the tables that both sides must hold alike."""
        ...

    def answer(self, values: ArrayLike, randomness: Randomness, first: int = 0) -> Codes:
        """One code for each value, of persons first, first + 1, ...; on the clients' side."""
        ...

    def tally(self, codes: Codes, first: int = 0) -> Tally:
        """What the server keeps of the codes of persons first, first + 1, ..."""
        ...

    def estimate(self, tally: Tally, confidence: float = 0.95) -> Estimate:
        """What the tally says."""
        ...


Q = TypeVar("Q", bound=type)
_KINDS: dict[str, Callable[..., Question]] = {}


def question(kind: Q) -> Q:
    """Class decorator: a question that can be written down and read again by its `kind`."""
    _KINDS[kind.kind] = kind  # type: ignore[attr-defined]
    return kind


def to_dict(asked: Question, digest: str | None = None) -> dict[str, Any]:
    """The question as plain data, with the digest of its tables [worked out, if not given]."""
    fields = dataclasses.asdict(asked)  # type: ignore[call-overload]
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}
    return {"kind": asked.kind, **plain, "digest": asked.digest if digest is None else digest}


def to_json(asked: Question) -> str:
    return json.dumps(to_dict(asked), sort_keys=True, allow_nan=False)


def from_dict(plain: Mapping[str, Any]) -> Question:
    """The question that plain data describes; whatever is odd about it is refused."""
    found = described(plain)
    check_tables(found, plain)
    return found


def described(plain: Mapping[str, Any]) -> Question:
    """The same before its tables are solved: for whoever may refuse it, whatever they are."""
    kind = plain.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UnknownNameError.among("kind of question", str(kind), _KINDS)
    factory = _KINDS[kind]
    expected = {field.name for field in dataclasses.fields(factory)}  # type: ignore[arg-type]
    given = {name: value for name, value in plain.items() if name not in ("kind", "digest")}
    if unknown := sorted(set(given) - expected):
        raise UnknownNameError.among(f"field of a question about the {kind}", unknown[0], expected)
    if missing := sorted(expected - set(given)):
        raise ParameterError(f"a question about the {kind} needs '{missing[0]}'; it is missing")
    try:
        return factory(
            **{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        )
    except (TypeError, AttributeError) as error:
        raise ParameterError(f"a question about the {kind} cannot be read: {error}") from None


def check_tables(found: Question, plain: Mapping[str, Any]) -> None:
    """Refuse a question that was made with other tables; they are solved here, if need be."""
    if plain.get("digest") != found.digest:
        raise ParameterError(
            f"the question about the {found.kind} was made with other tables than this version's "
            f"(digest {plain.get('digest')!r}, here {found.digest!r}); use the same version on "
            "both sides"
        )


def from_json(text: str) -> Question:
    try:
        plain = bounded_json.loads(text.encode(errors="replace"))
    except bounded_json.JsonError as error:
        raise ParameterError(f"a question is JSON; this {error}") from None
    if not isinstance(plain, dict):
        raise ParameterError(f"a question is a JSON object, got {type(plain).__name__}")
    return from_dict(plain)


def finished(
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
    """The estimate with what every one states: people, epsilon, bits, grade and notes."""
    label = (FLOAT,) if asked.sampling == "float" else ()
    few = () if people >= asked.least_people else (too_few(asked, people),)
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
        notes=(*few, *([WHOM] if not few else []), *label, *notes),
        details=details or {},
    )


def epsilon_of(event: PrivacyEvent) -> float:
    """The event's pure epsilon: a single one exactly, a composition rounded up."""
    match list(basic_counts(event).items()):
        case [(PureDp(epsilon=epsilon), 1)]:
            return epsilon
        case _:
            return pure_epsilon(event)


def too_few(asked: Question, people: int) -> str:
    return (
        f"no interval: {people} people answered, and one for the {asked.kind} that covers as often "
        f"as it says takes {asked.least_people}"
    )


def check_people(people: int) -> None:
    if people < 1:
        raise ParameterError("nobody answered; an estimate needs at least one person")
