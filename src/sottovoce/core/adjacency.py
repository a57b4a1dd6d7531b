"""What 'neighbouring' means: what differs, and how. Every result names both."""

from enum import StrEnum

from sottovoce.core.errors import UnknownNameError


class Unit(StrEnum):
    """What neighbours differ in, and so what is protected.

    SAMPLE  one training sample of a client, whose number of samples is public.
    CLIENT  everything that a client contributes.
    """

    SAMPLE = "sample"
    CLIENT = "client"

    @classmethod
    def parse(cls, name: str) -> "Unit":
        """Return the unit of this name; UnknownNameError if there is none."""
        try:
            return cls(name)
        except ValueError:
            raise UnknownNameError.among("unit", name, list(cls)) from None


class Adjacency(StrEnum):
    """Which change of the protected data the guarantee hides.

    ZERO_OUT     one contribution is replaced by the zero vector; counts do not change.
    REPLACE_ONE  one contribution is replaced by any other; counts do not change.
    """

    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @classmethod
    def parse(cls, name: str) -> "Adjacency":
        """Return the adjacency of this name; UnknownNameError if there is none."""
        try:
            return cls(str(name).replace("_", "-"))
        except ValueError:
            raise UnknownNameError.among("adjacency", name, list(cls)) from None
