"""A site's answer to a question about its people: checked, charged, then one code a person.

The policy is the one for training: its mechanisms, its epsilons, which are those of one person (a
sample), and its adjacency, which must be replace-one. The whole is charged to the same ledger,
before a single code is drawn; asked once more, the site sends the bytes that it sent before.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

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
from sottovoce.deployment.orders import Inquiry, tally_bytes
from sottovoce.deployment.policy import Terms
from sottovoce.deployment.site import OwnColumn, Site
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.protocol.channels.channel import Direct
from sottovoce.protocol.charging import amount_due

# People's values in batches, for a question; what the site's file, or its app, names.
Values = Callable[[Question], Iterable[ArrayLike]]


def answer(inquiry: Inquiry, site: Site, columns: Mapping[str, Values]) -> bytes:
    """The tally of the site's people, or an error and nothing.

    Nothing is read, and no table solved, before the policy has allowed it; a value that cannot be
    read costs nothing.
    """
    with _explained():
        question = questions.described(inquiry.question)
    terms = Terms(
        mechanism=question.mechanism_kind,
        level=Unit.SAMPLE,
        adjacency=Adjacency.REPLACE_ONE,
        channel=Direct(),
        cohort=inquiry.cohort,
        grade=SystemRandomness().grade,
    )
    site.check_terms(inquiry.client, terms)
    if inquiry.about not in columns:
        raise PolicyError(f"this site answers no questions about '{inquiry.about}'")
    with site.open_ledger() as ledger:
        message = _charged(inquiry, question, site, columns[inquiry.about], ledger)
        charged = ledger.standing()
    site.settle(charged)
    return message


def _charged(
    inquiry: Inquiry, question: Question, site: Site, values: Values, ledger: Ledger
) -> bytes:
    """The tally that was stored before, or a new one, charged and stored."""
    randomness = SystemRandomness()
    release = _release(inquiry, question)
    order = OrderName(run=release.run, round=release.round, mechanism=question.mechanism_kind)
    earlier = ledger.latest_of([release]).get(release)
    if earlier is not None and earlier.message is not None:
        if site.audit_log is not None:
            site.audit_log.answered(ledger, order, charged=False)
        return earlier.message
    # A charge beside which nothing was stored has released nothing: it pays for this answer.
    due = amount_due(question.event, release, earlier, randomness)
    dues = [due] if due else []
    site.permit(ledger, dues, planned=1)
    with _explained():
        questions.check_tables(question, inquiry.question)
    batches = [np.asarray(batch) for batch in values(question)]
    if not any(len(batch) for batch in batches):
        raise DataError(f"there are no people in '{inquiry.about}'")
    with ledger.transaction():
        site.permit(ledger, dues, planned=1, charging=True)
        charges = [ledger.charge(one.release, one.attempt, one.event) for one in dues]
    tally = tally_of(question, batches, randomness, first=inquiry.first)
    charge = charges[0] if charges else earlier
    assert charge is not None  # nothing was due, for an earlier charge serves
    message = tally_bytes(tally)
    ledger.store_message(charge, message)
    if site.audit_log is not None:
        people = sum(map(len, batches))
        site.audit_log.answered(ledger, order, charged=bool(charges), records=people)
    return message


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except SottovoceError as error:
        raise PolicyError(f"the question is not valid: {error}") from None


def _release(inquiry: Inquiry, question: Question) -> Release:
    """Another question, or one about something else, is another release, whatever its run."""
    digest = inquiry.question.get("digest")
    if not isinstance(digest, str):
        raise PolicyError("the question is not valid: it has no digest of its tables")
    # Its word is taken for now: where the digest is not the tables' own, nothing is answered.
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
    """What the site's file names, read only when it is asked for."""
    return {name: partial(_read, column) for name, column in site.columns.items()}


def _read(column: OwnColumn, question: Question) -> Iterator[ArrayLike]:
    """Everybody's value; whoever has none counts as the middle, or as another word.

    Left out, or refused, such people would show in the number of people, or in an error that
    nobody is charged for: whether a cell is a number would be told.
    """
    table = CsvColumns(path=column.csv, columns=column.columns, missing="keep")
    if isinstance(question, HistogramQuestion) and question.categories is not None:
        yield from table.words()
        return
    middle = _middle(question)
    for batch in table.numbers():
        yield np.where(np.isnan(batch), middle, batch)


def _middle(question: Question) -> float | tuple[float, float]:
    """A public value that anybody could have."""
    if isinstance(question, PlacesQuestion):
        return question.latitude, question.longitude
    assert isinstance(
        question, MeanQuestion | VarianceQuestion | HistogramQuestion | QuantilesQuestion
    )
    assert question.lower is not None
    assert question.upper is not None
    return (question.lower + question.upper) / 2.0
