"""Local randomizers: what turns each person's value into one private code.

Each is a registered mechanism with a coordinate for each person. What one code is charged with is
said by `release_event`, and codes are drawn by `encode_packed`, as for any other message.
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Categories
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.design.store import table_epsilon
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.mechanism import CodeFormat, Codes, Mechanism, Sampling
from sottovoce.mechanisms.randomized_response import GeneralisedRandomisedResponse
from sottovoce.mechanisms.release import release_event
from sottovoce.privacy.events import PrivacyEvent


class Randomizer:
    """Base of the randomizers: they add parameters and `build`."""

    __slots__ = ()

    def build(self, people: int) -> Mechanism:
        """Return the mechanism for so many people's values: each coordinate is one person's."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """The name of the registered mechanism; a site's policy lists it."""
        return registry.kind_of(self.build(1))

    @property
    def event(self) -> PrivacyEvent:
        """What one person's code is charged with."""
        return release_event(self.build(1), adjacency=Adjacency.REPLACE_ONE)

    @property
    def sampling(self) -> Sampling:
        return self.build(1).sampling

    @property
    def code_format(self) -> CodeFormat:
        """Of one person's code."""
        return self.build(1).code_format()

    @property
    def digest(self) -> str:
        """Stands for all that both sides must hold alike, tables included."""
        return registry.parameter_hash(self.build(1)).hex()

    def answer(self, values: NDArray[Any], keystream: Keystream) -> Codes:
        """Return one code for each person's value; numbers are clipped to their interval."""
        packed = encode_packed(prepare(self.build(len(values)), values), [keystream])
        return packed.codes()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryRandomizer(Randomizer):
    """One of the categories 0 ... num_categories - 1, kept with probability `kept`.

    `other` is the probability of any one other; both are those of the integer table that runs.
    """

    epsilon: float
    num_categories: int

    def __post_init__(self) -> None:
        self.build(1)

    def build(self, people: int) -> GeneralisedRandomisedResponse:
        """Return the mechanism for so many people's categories."""
        domain = Categories(dimension=people, num_categories=self.num_categories)
        return GeneralisedRandomisedResponse(
            input_domain=domain, epsilon=table_epsilon(self.epsilon), bits=domain.bits
        )

    @property
    def digest(self) -> str:
        """Stands for the table, which holds all that both sides must hold alike."""
        return self.build(1).design_digest()

    @property
    def kept(self) -> float:
        """P(code = category)."""
        return float(self.build(1).table.channel.rows[0, 0])

    @property
    def other(self) -> float:
        """P(code = any one other)."""
        return float(self.build(1).table.channel.rows[0, -1])


class RandomizedQuestion:
    """Base of questions whose every answer goes through one randomizer, whoever is asked what."""

    __slots__ = ()

    @property
    def randomizer(self) -> Randomizer:
        raise NotImplementedError

    @property
    def mechanism_kind(self) -> str:
        return self.randomizer.kind

    @property
    def event(self) -> PrivacyEvent:
        return self.randomizer.event

    @property
    def sampling(self) -> Sampling:
        return self.randomizer.sampling

    @property
    def code_format(self) -> CodeFormat:
        return self.randomizer.code_format

    @property
    def digest(self) -> str:
        return self.randomizer.digest
