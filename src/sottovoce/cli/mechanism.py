"""`sottovoce mechanism`: what there is."""

from typing import Any

import typer

from sottovoce.cli.output import Json, print_fields, print_json, print_table, show

app = typer.Typer(help="List and describe mechanisms.", no_args_is_help=True)


def _row(registration: Any) -> dict[str, Any]:
    from sottovoce.mechanisms.mechanism import bits_per_coordinate

    mechanism = registration.build(registration.example_domain, registration.examples[0])
    return {
        "kind": registration.kind,
        "summary": registration.summary,
        "parameters": registration.parameters,
        "example": dict(registration.examples[0]),
        "calibrated_by": registration.knob.parameter if registration.knob else None,
        "automatic": sorted(registration.automatic),
        "bits_per_coordinate": bits_per_coordinate(mechanism),
        "sampling_grade": mechanism.sampling,
    }


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Every registered mechanism."""
    from sottovoce.mechanisms import registry

    rows = [_row(registration) for registration in registry.registrations()]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["kind", "parameters", "example", "what it is"],
        [
            [
                row["kind"],
                ", ".join(row["parameters"]),
                show(row["example"], "example"),
                row["summary"],
            ]
            for row in rows
        ],
    )


@app.command("show")
def show_(kind: str, as_json: Json = False) -> None:
    """One mechanism: its parameters, an example, its formula and reference."""
    import inspect

    from sottovoce.mechanisms import registry

    registration = registry.find(kind)
    description = inspect.getdoc(registration.factory) or ""
    row = {**_row(registration), "description": description}
    if as_json:
        print_json(row)
        return
    print_fields({name: value for name, value in row.items() if name != "description"})
    typer.echo(f"\n{description}")
