"""The names of the views of scattering, kept in a module that does not import torch."""

from collections.abc import Sequence
from typing import Literal, get_args

from sottovoce.core.errors import ParameterError, UnknownNameError

View = Literal["plain", "log", "opponent"]
ONLY_PLAIN: tuple[View, ...] = ("plain",)


def check(views: Sequence[str]) -> None:
    """Check that there is at least one view, and that each is known and named once."""
    if not isinstance(views, list | tuple):
        raise ParameterError(
            f"views must be a list of names, got {views!r}; "
            f"choose among {', '.join(get_args(View))}"
        )
    for name in views:
        if name not in get_args(View):
            raise UnknownNameError.among("view", name, get_args(View))
    if not views or len(set(views)) < len(views):
        raise ParameterError(
            f"views must name at least one view, and none twice, got {list(views)}; "
            f"choose among {', '.join(get_args(View))}"
        )
