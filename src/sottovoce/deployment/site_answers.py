"""A site's answer to a question about its people: checked, charged, then one code per person.

The policy is the one for training: its mechanisms, its epsilons, which apply to one person (a
sample), and its adjacency, which must be replace-one. The answer is charged to the same ledger
before any code is drawn. If the same question is asked again, the site sends the stored bytes.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.analytics import question as questions
from sottovoce.analytics.estimates import tally_of
from sottovoce.analytics.histogram import HistogramQuestion
from sottovoce.analytics.mean import MeanQuestion
from sottovoce.analytics.places import PlacesQuestion
from sottovoce.analytics.quantiles import QuantilesQuestion
from sottovoce.analytics.question import Question
from sottovoce.analytics.variance import VarianceQuestion
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import DataError, PolicyError, SottovoceError
from sottovoce.core.randomness import SystemRandomness
from sottovoce.core.table_files import CsvColumns
from sottovoce.deployment.audit_log import OrderName
from sottovoce.deployment.orders import QuestionRequest, tally_bytes
from sottovoce.deployment.policy import Terms
from sottovoce.deployment.site import OwnColumn, Site
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.protocol.channels.channel import Channel, Direct
from sottovoce.protocol.charging import required_charge

#: A function that yields the values of people in batches for a question.
Values = Callable[[Question], Iterable[ArrayLike]]


def answer(inquiry: QuestionRequest, site: Site, columns: Mapping[str, Values]) -> bytes:
    """Return the tally of the site's people as JSON bytes, or raise and release nothing.

    The answer is charged to the site's ledger; if the same question is asked again, the stored
    bytes are returned. Nothing is read and no table is solved before the policy has allowed it. A
    value that cannot be read raises before the charge. Raises PolicyError if the policy or the
    site's [columns] do not allow the question.
    """
    question = allowed_question(inquiry, site, columns, Direct())
    with site.open_ledger() as ledger:
        message = _charged(inquiry, question, site, columns[inquiry.about], ledger)
        charged = ledger.position()
    site.settle(charged)
    return message


def allowed_question(
    inquiry: QuestionRequest, site: Site, columns: Container[str], channel: Channel
) -> Question:
    """Return the question of a request that the policy and [columns] allow; read no data.

    Raises PolicyError if they do not allow it, or if the question cannot be read.
    """
    with explained():
        question = questions.parse_question(inquiry.question)
    terms = Terms(
        mechanism=question.mechanism_kind,
        level=Unit.SAMPLE,
        adjacency=Adjacency.REPLACE_ONE,
        channel=channel,
        cohort=inquiry.cohort,
        grade=SystemRandomness().grade,
    )
    site.check_terms(inquiry.client, terms)
    if inquiry.about not in columns:
        raise PolicyError(
            f"this site answers no questions about '{inquiry.about}'; ask the site to add it to "
            "[columns] of its file"
        )
    return question


def read_people(question: Question, about: str, values: Values) -> list[NDArray[Any]]:
    """Return the values of all people in batches; raise DataError if there are none."""
    batches = [np.asarray(batch) for batch in values(question)]
    if not any(len(batch) for batch in batches):
        raise DataError(
            f"there are no people in '{about}'; check the table that [columns] of the "
            "site's file names"
        )
    return batches


def _charged(
    inquiry: QuestionRequest, question: Question, site: Site, values: Values, ledger: Ledger
) -> bytes:
    """Return the stored tally, or a new one that is charged and stored."""
    randomness = SystemRandomness()
    release = _release(inquiry, question)
    order = OrderName(run=release.run, round=release.round, mechanism=question.mechanism_kind)
    earlier = ledger.latest_of([release]).get(release)
    if earlier is not None and earlier.message is not None:
        if site.audit_log is not None:
            site.audit_log.answered(ledger, order, charged=False)
        return earlier.message
    # A charge without a stored message has released nothing, so it pays for this answer.
    due = required_charge(question.event, release, earlier, randomness)
    pending = [due] if due else []
    site.check_charges(ledger, pending, planned=1)
    with explained():
        questions.check_tables(question, inquiry.question)
    batches = read_people(question, inquiry.about, values)
    with ledger.transaction():
        site.check_charges(ledger, pending, planned=1, charging=True)
        charges = [ledger.charge(one.release, one.attempt, one.event) for one in pending]
    tally = tally_of(question, batches, randomness, first=inquiry.first)
    charge = charges[0] if charges else earlier
    assert charge is not None  # without a pending charge, an earlier one pays
    message = tally_bytes(tally)
    ledger.store_message(charge, message)
    if site.audit_log is not None:
        people = sum(map(len, batches))
        site.audit_log.answered(ledger, order, charged=bool(charges), records=people)
    return message


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn an error about the question, which is public, into a PolicyError."""
    try:
        yield
    except SottovoceError as error:
        raise PolicyError(
            f"the question is not valid: {error}; correct the question at the server"
        ) from None


def _release(inquiry: QuestionRequest, question: Question) -> Release:
    """Return the release of an inquiry, whose run contains a digest of the question.

    So another question, or one about something else, is another release even under the same run.
    """
    digest = inquiry.question.get("digest")
    if not isinstance(digest, str):
        raise PolicyError(
            "the question is not valid: it has no digest of its tables; ask with the same version "
            "of Sottovoce"
        )
    # The digest is checked later: if it is not that of the tables, nothing is answered.
    plain = questions.to_dict(question, digest)
    asked = {"question": plain, "about": inquiry.about, "first": inquiry.first}
    name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return Release(
        unit=Unit.SAMPLE,
        run=f"{inquiry.run}/{name[:16]}",
        client=inquiry.client,
        round=inquiry.round,
        uplink=0,
    )


def own_columns(site: Site) -> dict[str, Values]:
    """Return what questions may be about, by name: functions that read the values of the people.

    A table is read only when its function is called.
    """
    return {name: partial(_read, column) for name, column in site.columns.items()}


def _read(column: OwnColumn, question: Question) -> Iterator[ArrayLike]:
    """Yield everyone's value; a missing one counts as the middle of the range, or as another word.

    If people without a value were left out or raised an error, the number of people or the error
    would reveal without a charge whether a cell is a number.
    """
    table = CsvColumns(path=column.csv, columns=column.columns, missing="keep")
    if isinstance(question, HistogramQuestion) and question.categories is not None:
        yield from table.words()
        return
    middle = _middle(question)
    for batch in table.numbers():
        yield np.where(np.isnan(batch), middle, batch)


def _middle(question: Question) -> float | tuple[float, float]:
    """Return a public value in the question's range."""
    if isinstance(question, PlacesQuestion):
        return question.latitude, question.longitude
    assert isinstance(
        question, MeanQuestion | VarianceQuestion | HistogramQuestion | QuantilesQuestion
    )
    assert question.lower is not None
    assert question.upper is not None
    return (question.lower + question.upper) / 2.0
