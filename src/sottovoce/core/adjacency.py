"""The definition of neighboring inputs: what differs between them, and how.

Every privacy result names both, a `Unit` and an `Adjacency`.
"""

from enum import StrEnum

from sottovoce.core.errors import UnknownNameError


class Unit(StrEnum):
    """The part of the data in which neighboring inputs differ, and so what the guarantee protects.

    Attributes:
        SAMPLE: One training sample of a client, whose number of samples is public.
        CLIENT: Everything that a client contributes.
    """

    SAMPLE = "sample"
    CLIENT = "client"

    @classmethod
    def parse(cls, name: str) -> "Unit":
        """Return the unit of this name.

        Args:
            name: "sample" or "client".

        Returns:
            The unit.

        Raises:
            UnknownNameError: There is no such unit.
        """
        try:
            return cls(name)
        except ValueError:
            raise UnknownNameError.among("unit", name, list(cls)) from None


class Adjacency(StrEnum):
    """The change of the protected data that the guarantee hides.

    Attributes:
        ZERO_OUT: One contribution is replaced by the zero vector (in a `Box` without it, by the
            point nearest to it); counts do not change.
        REPLACE_ONE: One contribution is replaced by any other; counts do not change.
    """

    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @classmethod
    def parse(cls, name: str) -> "Adjacency":
        """Return the adjacency of this name.

        Args:
            name: "zero-out" or "replace-one"; an underscore may stand for the hyphen.

        Returns:
            The adjacency.

        Raises:
            UnknownNameError: There is no such adjacency.

        Examples:
            >>> Adjacency.parse("zero_out")
            <Adjacency.ZERO_OUT: 'zero-out'>
        """
        try:
            return cls(str(name).replace("_", "-"))
        except ValueError:
            raise UnknownNameError.among("adjacency", name, list(cls)) from None
