"""The command `sottovoce benchmark`: speed on this machine, compared with the machine's own limits.

Results are checked before they are timed. The exit code is 1 if a result is wrong, and does not
depend on the speed.
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

Seconds = Annotated[float, typer.Option(help="About how many seconds to measure.")]
Dimension = Annotated[int, typer.Option(help="Coordinates of an update.")]
Threads = Annotated[int, typer.Option(help="Threads of our code and of what it is compared with.")]


@app.callback()
def benchmarks() -> None:
    """Measure speed on this machine; exit with 1 if a result is wrong, never because it is slow."""


# The earlier names of commands, which are still accepted but not listed.
_EARLIER_NAMES = {"privatize": "privatise"}


def _command(measure: Callable[..., dict[str, Any]]) -> None:
    """Add a command that takes the parameters of `measure` and prints what it returns."""

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
        int | None,
        typer.Option(help="Bits per coordinate; by default those usual for the mechanism."),
    ] = None,
    dimension: Dimension = 1_000_000,
    mechanism: Annotated[
        str, typer.Option(help="gauss_hermite, mvu or discrete_gaussian.")
    ] = "gauss_hermite",
    threads: Threads = 1,
    seconds: Seconds = 3.0,
) -> dict[str, Any]:
    """Measure a client: coordinates per second for clipping, coding and packing an update."""
    from sottovoce_papers.benchmarks.privatize import measure

    return measure(
        mechanism=mechanism, bits=bits, dimension=dimension, threads=threads, seconds=seconds
    )


@_command
def aggregate(
    bits: Annotated[int, typer.Option(help="Bits per coordinate, 1 to 8.")] = 1,
    dimension: Dimension = 1_000_000,
    clients: Annotated[int, typer.Option(help="Payloads to add up.")] = 1000,
    threads: Threads = 1,
    seconds: Seconds = 5.0,
) -> dict[str, Any]:
    """Measure a server: clients per second from packed payloads to their mean."""
    from sottovoce_papers.benchmarks.aggregate import measure

    return measure(
        bits=bits, dimension=dimension, clients=clients, threads=threads, seconds=seconds
    )


@_command
def seeded(
    dimension: Dimension = 1_000_000,
    mu: Annotated[
        float, typer.Option(help="Clip norm divided by the standard deviation of the noise.")
    ] = 1.0,
    blocks: Annotated[
        int | None, typer.Option(help="Seeds in an update; by default as few as possible.")
    ] = None,
    updates: Annotated[int, typer.Option(help="Updates sent to measure errors.")] = 100,
    clients: Annotated[int, typer.Option(help="Messages that the server adds up.")] = 1000,
    seconds: Seconds = 5.0,
) -> dict[str, Any]:
    """Compare 16-byte updates with one bit per coordinate at equal zCDP: bytes, errors, times."""
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
    bits: Annotated[
        str, typer.Option(help="Bits per coordinate, or auto: as levels = 'auto' chooses.")
    ] = "1",
    messages: Annotated[
        str,
        typer.Option(
            help="stored: charged, sealed and stored, as runs do by default; packed: exact codes "
            "alone; none: codes drawn by torch."
        ),
    ] = "stored",
    rotation: Annotated[
        str, typer.Option(help="auto: rotate updates, as runs do by default; off: do not rotate.")
    ] = "auto",
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option(help="Threads of our code and of torch; by default one per core.")
    ] = None,
    seconds: Seconds = 5.0,
) -> dict[str, Any]:
    """Measure whole simulated rounds: clients per second, and the share that each stage takes."""
    from sottovoce_papers.benchmarks.simulate import measure

    return measure(
        clients=clients,
        dimension=dimension,
        bits=bits,
        messages=messages,
        rotation=rotation,
        device=device or "auto",
        threads=threads,
        seconds=seconds,
    )


@_command
def train(
    clients: Annotated[int, typer.Option(help="Clients in a round.")] = 50,
    records: Annotated[int, typer.Option(help="Images of 28x28 pixels of each client.")] = 50,
    batch_size: Annotated[int, typer.Option(help="Images of a local step.")] = 10,
    messages: Annotated[
        str,
        typer.Option(help="packed: exact codes, packed and unpacked; none: codes drawn by torch."),
    ] = "packed",
    device: Device = "auto",
    seconds: Seconds = 10.0,
) -> dict[str, Any]:
    """Measure whole rounds in which clients train a network of 94,410 parameters for one epoch."""
    from sottovoce_papers.benchmarks.train import measure

    return measure(
        clients=clients,
        records=records,
        batch_size=batch_size,
        messages=messages,
        device=device or "auto",
        seconds=seconds,
    )


@_command
def design(
    epsilon: Annotated[float, typer.Option(help="Epsilon between any two inputs.")] = 1.0,
    input_bits: Annotated[int, typer.Option(help="2^bits input points, 1 to 10.")] = 3,
    continuous: Annotated[
        bool,
        typer.Option("--continuous", help="Design for all inputs in the interval, not for points."),
    ] = False,
    output_bits: Annotated[int, typer.Option(help="Bits that are sent, 1 to 8.")] = 3,
    seconds: Seconds = 3.0,
) -> dict[str, Any]:
    """Measure MVU designs per second, solved and certified, compared with scipy's solver."""
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
        str, typer.Option(help="gaussian, one_bit or randomized_response.")
    ] = "gaussian",
    rho: Annotated[float, typer.Option(help="zCDP of one release, before subsampling.")] = 0.5,
    dimension: Annotated[int, typer.Option(help="Coordinates, for one_bit.")] = 1000,
    sampling_rate: Annotated[
        float, typer.Option(help="Probability that a record takes part.")
    ] = 0.01,
    rounds: Annotated[int, typer.Option(help="Releases that are composed.")] = 1000,
    seconds: Seconds = 3.0,
) -> dict[str, Any]:
    """Measure epsilons per second, without caches, compared with Google's dp-accounting."""
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
    """Yield names and values; a value that is a dict gives one line for each of its items."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", item) for key, item in value.items())
        else:
            yield name, value
