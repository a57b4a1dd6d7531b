"""The commands `sottovoce benchmark`, which measure speed on this machine.

A result is checked before it is timed: exit with 1 if it is wrong, never because it is slow.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from sottovoce.cli.commands import register_command
from sottovoce.cli.options import Device, with_parameters
from sottovoce.cli.output import Json, print_fields, print_json, report_progress, say

app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)
register_command("benchmark", app, module=__name__)

Seconds = Annotated[float, typer.Option(help="About how long to measure.")]
Dimension = Annotated[int, typer.Option(help="Coordinates of an update.")]
Threads = Annotated[int, typer.Option(help="Threads, for us and for what we are compared with.")]


@app.callback()
def benchmarks() -> None:
    """Measure speed on this machine: a wrong result exits 1, slowness never does."""


# Commands by their earlier names, which are accepted and not listed.
_EARLIER_NAMES = {"privatize": "privatise"}


def _command(measure: Callable[..., dict[str, Any]]) -> None:
    """Add the command that takes what `measure` takes and prints what it returns."""

    def call(*, as_json: Json = False, **given: Any) -> None:
        from sottovoce_papers.benchmarks.measurement import WrongResult

        try:
            with report_progress() as bars:
                bars.update(measure.__name__, 0, 1, "measuring")
                found = measure(**given)
        except WrongResult as wrong:
            say(f"wrong result, nothing was timed: {wrong}", err=True)
            raise typer.Exit(1) from None
        if as_json:
            print_json(found)
        else:
            print_fields(dict(_lines(found)))

    last = inspect.signature(call).parameters["as_json"]
    command = with_parameters([*inspect.signature(measure).parameters.values(), last], measure)(
        call
    )
    app.command()(command)
    if earlier := _EARLIER_NAMES.get(measure.__name__):
        app.command(earlier, hidden=True)(command)


@_command
def privatize(
    bits: Annotated[
        int | None, typer.Option(help="Bits a coordinate; the mechanism's usual ones if not given.")
    ] = None,
    dimension: Dimension = 1_000_000,
    mechanism: Annotated[
        str, typer.Option(help="gauss_hermite, mvu or discrete_gaussian.")
    ] = "gauss_hermite",
    threads: Threads = 1,
    seconds: Seconds = 3.0,
) -> dict[str, Any]:
    """Coordinates a second at a client: float32 update, clip, codes, packed payload."""
    from sottovoce_papers.benchmarks.privatise import measure

    return measure(
        mechanism=mechanism, bits=bits, dimension=dimension, threads=threads, seconds=seconds
    )


@_command
def aggregate(
    bits: Annotated[int, typer.Option(help="Bits a coordinate, 1 to 8.")] = 1,
    dimension: Dimension = 1_000_000,
    clients: Annotated[int, typer.Option(help="Payloads to add up.")] = 1000,
    threads: Threads = 1,
    seconds: Seconds = 5.0,
) -> dict[str, Any]:
    """Clients a second at the server: packed payloads in, their mean out."""
    from sottovoce_papers.benchmarks.aggregate import measure

    return measure(
        bits=bits, dimension=dimension, clients=clients, threads=threads, seconds=seconds
    )


@_command
def seeded(
    dimension: Dimension = 1_000_000,
    mu: Annotated[float, typer.Option(help="Clip norm over the stddev of the noise.")] = 1.0,
    blocks: Annotated[
        int | None, typer.Option(help="Seeds in an update; as few as it takes if not given.")
    ] = None,
    updates: Annotated[int, typer.Option(help="Updates that are sent, for the errors.")] = 100,
    clients: Annotated[int, typer.Option(help="Messages that the server adds up.")] = 1000,
    seconds: Seconds = 5.0,
) -> dict[str, Any]:
    """Updates in 16 bytes beside one bit a coordinate at equal zCDP: bytes, errors, times."""
    from sottovoce_papers.benchmarks.seeded import measure

    return measure(
        dimension=dimension,
        mu=mu,
        blocks=blocks,
        updates=updates,
        clients=clients,
        seconds=seconds,
    )


@_command
def simulate(
    clients: Annotated[int, typer.Option(help="Clients in a round, one sample each.")] = 1000,
    dimension: Annotated[int, typer.Option(help="Parameters of the linear model.")] = 20_000,
    bits: Annotated[int, typer.Option(help="Bits a coordinate.")] = 1,
    messages: Annotated[
        str, typer.Option(help="packed: exact codes, packed and unpacked; none: drawn by torch.")
    ] = "packed",
    rotation: Annotated[
        str, typer.Option(help="auto: rotate updates, as a run does by default; off: do not.")
    ] = "auto",
    device: Device = "auto",
    seconds: Seconds = 5.0,
) -> dict[str, Any]:
    """Clients a second through whole rounds: gradient, clip, codes, packing, sum, new model."""
    from sottovoce_papers.benchmarks.simulate import measure

    return measure(
        clients=clients,
        dimension=dimension,
        bits=bits,
        messages=messages,
        rotation=rotation,
        device=device or "auto",
        seconds=seconds,
    )


@_command
def design(
    epsilon: Annotated[float, typer.Option(help="Over the whole interval.")] = 1.0,
    input_bits: Annotated[int, typer.Option(help="2^bits input points, 1 to 10.")] = 3,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Any input in the interval: no input points.")
    ] = False,
    output_bits: Annotated[int, typer.Option(help="Bits that are sent, 1 to 8.")] = 3,
    seconds: Seconds = 3.0,
) -> dict[str, Any]:
    """MVU designs a second, solved and certified, beside scipy's generic solver."""
    from sottovoce_papers.benchmarks.design import measure

    return measure(
        epsilon=epsilon,
        input_bits=None if continuous else input_bits,
        bits=output_bits,
        seconds=seconds,
    )


@_command
def account(
    mechanism: Annotated[
        str, typer.Option(help="gaussian, one_bit or randomised_response.")
    ] = "gaussian",
    rho: Annotated[float, typer.Option(help="zCDP of one release, before sampling.")] = 0.5,
    dimension: Annotated[int, typer.Option(help="Coordinates, for one_bit.")] = 1000,
    sampling_rate: Annotated[
        float, typer.Option(help="Probability that a record takes part.")
    ] = 0.01,
    rounds: Annotated[int, typer.Option(help="Releases that are composed.")] = 1000,
    seconds: Seconds = 3.0,
) -> dict[str, Any]:
    """Epsilons a second, nothing remembered, beside Google's dp-accounting if installed."""
    from sottovoce_papers.benchmarks.account import measure

    return measure(
        mechanism=mechanism,
        rho=rho,
        dimension=dimension,
        rate=sampling_rate,
        rounds=rounds,
        seconds=seconds,
    )


def _lines(found: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Names and values, one a line; what a value holds itself gets lines of its own."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", item) for key, item in value.items())
        else:
            yield name, value
