"""`sottovoce privacy`: what a mechanism spends, and what it takes to stay within a budget."""

from typing import Annotated, Any

import typer

from sottovoce.cli.output import Json, print_fields, print_json, progress_bars

app = typer.Typer(help="Account for privacy, or calibrate to a budget.", no_args_is_help=True)

Mechanism = Annotated[str, typer.Option(help="A name from 'sottovoce mechanism list'.")]
Param = Annotated[list[str] | None, typer.Option(help="A parameter as name=value; repeatable.")]
Rounds = Annotated[int, typer.Option(help="How often a client takes part.")]
Delta = Annotated[float, typer.Option(help="The failure probability, such as 1e-5.")]
Dimension = Annotated[int, typer.Option(help="Coordinates of an update.")]
ClipNorm = Annotated[float, typer.Option(help="The largest norm of a contribution.")]
ClipGeometry = Annotated[
    str | None, typer.Option(help="l2, l1 or linf [what the mechanism is made for].")
]
AdjacencyName = Annotated[str, typer.Option(help="zero-out or replace-one.")]


def _given(param: list[str] | None) -> dict[str, Any]:
    from sottovoce.config.loading import parse_assignments

    return parse_assignments(param or [], "--param")


@app.command()
def spend(
    mechanism: Mechanism,
    delta: Delta,
    param: Param = None,
    rounds: Rounds = 1,
    dimension: Dimension = 1,
    clip_norm: ClipNorm = 1.0,
    clip_geometry: ClipGeometry = None,
    adjacency: AdjacencyName = "zero-out",
    as_json: Json = False,
) -> None:
    """The epsilon that a client spends over some rounds."""
    from sottovoce import parameters
    from sottovoce.mechanisms import registry

    parameters.delta(delta)
    registration = registry.find(mechanism)
    domain = _domain(registration, clip_geometry, dimension, clip_norm)
    built = registration.build(domain, _given(param))
    _report(
        built,
        clip_norm=clip_norm,
        rounds=rounds,
        delta=delta,
        adjacency_name=adjacency,
        as_json=as_json,
    )


@app.command()
def calibrate(
    mechanism: Mechanism,
    epsilon: Annotated[float, typer.Option(help="The budget over all rounds.")],
    delta: Delta,
    param: Param = None,
    rounds: Rounds = 1,
    dimension: Dimension = 1,
    clip_norm: ClipNorm = 1.0,
    clip_geometry: ClipGeometry = None,
    adjacency: AdjacencyName = "zero-out",
    as_json: Json = False,
) -> None:
    """The parameters that just stay within (epsilon, delta)."""
    from sottovoce import parameters
    from sottovoce.adjacency import Adjacency
    from sottovoce.mechanisms import registry

    parameters.integer("rounds", rounds, low=1, high=10**12)
    registration = registry.find(mechanism)
    domain = _domain(registration, clip_geometry, dimension, clip_norm)
    with progress_bars() as bars:
        bars.update("calibrating", 0, 1, "seconds, or up to a minute for designed tables")
        found = registration.calibrated(
            domain,
            _given(param),
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
            adjacency=Adjacency.parse(adjacency),
        )
        bars.update("calibrating", 1, 1, "done")
    built = registration.build(domain, found)
    _report(
        built,
        clip_norm=clip_norm,
        rounds=rounds,
        delta=delta,
        adjacency_name=adjacency,
        as_json=as_json,
    )


def _domain(registration: Any, geometry: str | None, dimension: int, clip_norm: float) -> Any:
    """As asked, else what the mechanism is made for."""
    from sottovoce.domains import clipped, geometry_of

    return clipped(geometry or geometry_of(registration.example_domain), dimension, clip_norm)


def _report(
    mechanism: Any,
    *,
    clip_norm: float,
    rounds: int,
    delta: float,
    adjacency_name: str,
    as_json: bool,
) -> None:
    import math

    from sottovoce import parameters
    from sottovoce.adjacency import Adjacency
    from sottovoce.domains import geometry_of
    from sottovoce.mechanisms.mechanism import bits_per_coordinate
    from sottovoce.mechanisms.registry import public_parameters
    from sottovoce.privacy.accounting import privacy_spent
    from sottovoce.privacy.events import Repeated

    parameters.integer("rounds", rounds, low=1, high=10**12)
    adjacency = Adjacency.parse(adjacency_name)
    spent = privacy_spent(Repeated(event=mechanism.privacy(adjacency), count=rounds), delta)
    public = public_parameters(mechanism)
    finite = math.isfinite(spent.epsilon)
    result = {
        "epsilon": spent.epsilon if finite else None,
        "delta": delta,
        "adjacency": str(adjacency),
        "accountant": spent.accountant,
        "private": finite,
        "mechanism": public["kind"],
        "parameters": public["parameters"],
        "dimension": public["domain"]["dimension"],
        "clip_norm": clip_norm,
        "clip_geometry": geometry_of(mechanism.input_domain),
        "noise_stddev": getattr(mechanism, "noise_stddev", None),
        "rounds": rounds,
        "bits_per_coordinate": bits_per_coordinate(mechanism),
        "sampling_grade": mechanism.sampling,
        "bounds": {name: bound if math.isfinite(bound) else None for name, bound in spent.bounds},
    }
    if as_json:
        print_json(result)
        return
    fields = {**result, "epsilon": spent.epsilon}
    if mechanism.sampling == "float":
        fields["sampling_grade"] = "float (simulation only: float noise leaks in its last bits)"
    print_fields(fields)
