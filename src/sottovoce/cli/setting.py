"""The options that say what a round releases, apart from the mechanism's own parameters."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sottovoce.planning.release import Release

Kind = Annotated[str, typer.Option("--mechanism", help="A name from 'sottovoce mechanism list'.")]
Dimension = Annotated[
    int | None,
    typer.Option(help="Coordinates of an update [1; for one-bit codes, any number]."),
]
ClipNorm = Annotated[float, typer.Option(help="The largest norm of a contribution.")]
ClipGeometry = Annotated[
    str | None, typer.Option(help="l2, l1 or linf [what the mechanism is made for].")
]
Records = Annotated[
    int,
    typer.Option(
        help="Contributions whose mean a message is: 1 at client level, a client's samples at "
        "sample level."
    ),
]
AdjacencyName = Annotated[str, typer.Option(help="zero-out or replace-one.")]
SamplingRate = Annotated[
    float | None,
    typer.Option(
        help="Each round works on a secret sample of contributions (see --records), each taken "
        "with this probability."
    ),
]
Sampling = Annotated[str, typer.Option(help="poisson or fixed-size.")]
SamplingHiddenBy = Annotated[
    str,
    typer.Option(
        help="What keeps the sample secret: own-records (a client samples its own records), "
        "central-noise, secure-sum, or nothing (the server sees who sends: refused)."
    ),
]
ShuffledClients = Annotated[
    int | None,
    typer.Option(
        help="Messages that a shuffler mixes in each round, or a secret order in each epoch; each "
        "of a whole client (--records 1), under --adjacency replace-one."
    ),
]
SecureSumClients = Annotated[
    int | None,
    typer.Option(help="Clients of whom a secure sum reveals nothing but the sum, at least."),
]


def option(name: str) -> str:
    """An argument's name as it is typed: --sampling-rate."""
    return f"--{name.replace('_', '-')}"


def _setting(
    mechanism: Kind,
    dimension: Dimension = None,
    clip_norm: ClipNorm = 1.0,
    clip_geometry: ClipGeometry = None,
    records: Records = 1,
    adjacency: AdjacencyName = "zero-out",
    sampling_rate: SamplingRate = None,
    sampling: Sampling = "poisson",
    sampling_hidden_by: SamplingHiddenBy = "own-records",
    shuffled_clients: ShuffledClients = None,
    secure_sum_clients: SecureSumClients = None,
) -> "Release":
    from sottovoce.planning.release import release_of

    return release_of(
        mechanism,
        dimension=dimension,
        clip_norm=clip_norm,
        clip_geometry=clip_geometry,
        records=records,
        adjacency=adjacency,
        sampling_rate=sampling_rate,
        sampling=sampling,
        sampling_hidden_by=sampling_hidden_by,
        shuffled_clients=shuffled_clients,
        secure_sum_clients=secure_sum_clients,
        named=option,
    )


def check_plot(plot: Path | None) -> None:
    """A file that can be drawn to, checked before anything is computed."""
    from sottovoce.core.errors import OutputError, ParameterError

    if plot is None:
        return
    if plot.suffix != ".svg":
        raise ParameterError(f"--plot draws SVG: name a file that ends in .svg, got '{plot}'")
    if not plot.parent.is_dir():
        raise OutputError(f"there is no folder '{plot.parent}' for --plot; make it first")


def with_setting(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `_setting`, which takes what they say as its `setting`."""
    options, own = (inspect.signature(call).parameters for call in (_setting, command))

    def call(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in options}
        command(setting=_setting(**chosen), **given)

    both = [*options.values(), *(one for name, one in own.items() if name != "setting")]
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in both]
    call.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in named}
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    return call
