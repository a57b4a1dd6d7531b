"""Local randomizers, which turn each person's value into one private code.

Each is a registered mechanism with one coordinate for each person. As for every other message,
`release_event` gives the event that one code is charged with, and `encode_packed` draws the codes.
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from sottovoce.analytics.question import event_of_counts
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Categories
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.design.store import table_epsilon
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.mechanism import CodeFormat, Codes, Mechanism, Sampling
from sottovoce.mechanisms.randomized_response import GeneralizedRandomizedResponse
from sottovoce.mechanisms.release import release_event
from sottovoce.privacy.events import PrivacyEvent


class Randomizer:
    """The base of randomizers: a subclass adds parameters and `build`, which makes a mechanism."""

    __slots__ = ()

    def build(self, people: int) -> Mechanism:
        """Return the mechanism for the values of `people` people, one coordinate each."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """The name of the registered mechanism; a site's policy lists it."""
        return registry.kind_of(self.build(1))

    @property
    def event(self) -> PrivacyEvent:
        """The privacy event that one person's code is charged with."""
        return release_event(self.build(1), adjacency=Adjacency.REPLACE_ONE)

    @property
    def sampling(self) -> Sampling:
        """The sampling grade of the mechanism: exact or float."""
        return self.build(1).sampling

    @property
    def code_format(self) -> CodeFormat:
        """The format of one person's code: its number of levels, or float32."""
        return self.build(1).code_format()

    @property
    def digest(self) -> str:
        """A digest of all that must be the same for clients and server, tables included."""
        return registry.parameter_hash(self.build(1)).hex()

    def answer(self, values: NDArray[Any], keystream: Keystream) -> Codes:
        """Return one code for each person's value; numbers are clipped to their bounds."""
        packed = encode_packed(prepare(self.build(len(values)), values), [keystream])
        return packed.codes()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryRandomizer(Randomizer):
    """K-ary randomized response on the categories 0 ... num_categories - 1.

    A category is kept with probability `kept` and replaced by any given other one with probability
    `other`; both are the probabilities of the integer table that the sampler uses.
    """

    epsilon: float
    num_categories: int

    def __post_init__(self) -> None:
        self.build(1)

    def build(self, people: int) -> GeneralizedRandomizedResponse:
        """Return the mechanism for the categories of `people` people."""
        domain = Categories(dimension=people, num_categories=self.num_categories)
        return GeneralizedRandomizedResponse(
            input_domain=domain, epsilon=table_epsilon(self.epsilon), bits=domain.bits
        )

    @property
    def digest(self) -> str:
        """A digest of the table, which must be the same for clients and server."""
        return self.build(1).design_digest()

    @property
    def kept(self) -> float:
        """The probability that the code is the category."""
        return float(self.build(1).table.channel.rows[0, 0])

    @property
    def other(self) -> float:
        """The probability that the code is a given other category."""
        return float(self.build(1).table.channel.rows[0, -1])


class RandomizedQuestion:
    """The base class of questions whose answers all go through one randomizer.

    This holds even where different people are asked different things.
    """

    __slots__ = ()

    @property
    def randomizer(self) -> Randomizer:
        """The randomizer of one person's answer."""
        raise NotImplementedError

    @property
    def mechanism_kind(self) -> str:
        return self.randomizer.kind

    @property
    def event(self) -> PrivacyEvent:
        return self.randomizer.event

    def event_among(self, people: int) -> PrivacyEvent:
        """Return the event of one code if only counts over `people` codes are revealed."""
        return event_of_counts(self.randomizer.build(1), people)

    @property
    def sampling(self) -> Sampling:
        """The sampling grade of the randomizer."""
        return self.randomizer.sampling

    @property
    def code_format(self) -> CodeFormat:
        return self.randomizer.code_format

    @property
    def digest(self) -> str:
        return self.randomizer.digest
