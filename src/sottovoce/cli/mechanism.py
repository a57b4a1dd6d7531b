"""The commands `sottovoce mechanism`, which list, show, check and design mechanisms."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.options import MechanismKind, check_plot
from sottovoce.cli.output import (
    Json,
    draw,
    print_fields,
    print_json,
    print_table,
    report_progress,
    say,
    show,
)
from sottovoce.core.errors import SottovoceError

app = typer.Typer(help="List, show, check and design mechanisms.", no_args_is_help=True)


def _row(registration: Any) -> dict[str, Any]:
    from sottovoce.mechanisms.mechanism import bits_per_coordinate

    mechanism = registration.build(registration.example_domain, registration.examples[0])
    return {
        "kind": registration.kind,
        "summary": registration.summary,
        "parameters": registration.parameters,
        "example": dict(registration.examples[0]),
        "calibrated_by": registration.calibrated_parameter.parameter
        if registration.calibrated_parameter
        else None,
        "automatic": sorted(registration.automatic),
        "bits_per_coordinate": bits_per_coordinate(mechanism),
        "sampling_grade": mechanism.sampling,
    }


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List every registered mechanism."""
    from sottovoce.mechanisms import registry

    rows, broken = [], []
    for registration in registry.registrations():
        try:
            rows.append(_row(registration))
        except SottovoceError as error:  # the example of a plug-in fails
            broken.append(str(error))
    if as_json:
        print_json(rows)
        return
    print_table(
        ["kind", "parameters of an example", "sampling", "what it is"],
        [[row["kind"], _parameters(row), row["sampling_grade"], row["summary"]] for row in rows],
    )
    problems = [one.problem for one in registry.MECHANISMS.listed() if one.problem]
    for problem in [*problems, *broken]:
        say(f"left out: {problem}")


def _parameters(row: dict[str, Any]) -> str:
    """Return the example's parameters, and the names of those that it leaves out."""
    others = [name for name in row["parameters"] if name not in row["example"]]
    return ", ".join(filter(None, [show(row["example"], "example"), *others]))


@app.command("show")
def show_(kind: MechanismKind, as_json: Json = False) -> None:
    """Show one mechanism: its parameters, an example, its formula and reference."""
    import inspect

    from sottovoce.mechanisms import registry

    registration = registry.find(kind)
    description = inspect.getdoc(registration.factory) or ""
    row = {**_row(registration), "description": description}
    if as_json:
        print_json(row)
        return
    print_fields({name: value for name, value in row.items() if name != "description"})
    say(f"\n{description}")


@app.command()
def check(kind: MechanismKind, as_json: Json = False) -> None:
    """Check that a mechanism keeps the contract that accounting relies on; exit with 1 if not.

    Every registered example, also a plug-in's, is checked on each of its domains: samples, declared
    privacy, codes, keys, input and calibration.
    """
    from sottovoce.auditing.contract import CHECKS, cases
    from sottovoce.auditing.contract import check as checked
    from sottovoce.mechanisms import registry

    total = len(cases(registry.find(kind))) * len(CHECKS)
    findings = []
    with report_progress() as bars:
        for finding in checked(kind):
            findings.append(finding)
            bars.update("checking", len(findings), total, finding.check)
    broken = [finding for finding in findings if finding.kept is False]
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        print_table(
            ["check", "example", "kept", "remark"],
            [[one.check, one.case, _KEPT[one.kept], one.remark] for one in findings],
        )
        say(
            f"{len(broken)} of {total} checks failed: '{kind}' does not keep the contract."
            if broken
            else f"'{kind}' keeps the contract on these inputs; tests on inputs are not a proof."
        )
    if broken:
        raise typer.Exit(1)


_KEPT = {True: "yes", False: "NO", None: "not checked"}


@app.command()
def design(
    kind: Annotated[str, typer.Argument(help="mvu, or metric_mvu (the same with --metric l1).")],
    epsilon: Annotated[
        float,
        typer.Option(
            help="Epsilon over the whole interval; with --metric, per unit of the metric."
        ),
    ],
    output_bits: Annotated[int, typer.Option(help="Bits of a message, 1 to 8.")],
    input_bits: Annotated[
        int | None, typer.Option(help="Number of input points is 2^bits; 1 to 10.")
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Accept any input in the interval.")
    ] = False,
    metric: Annotated[
        str | None, typer.Option(help="Design for metric DP: l1 or l2_squared, on [0, 1].")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the matrix and the alphabet (SVG).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder for the design's two files ($SOTTOVOCE_CACHE/designs is read)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Design the unbiased table of least variance on [0, 1], and certify its epsilon.

    A table gives the probability of each output value (letter) for each input.
    """
    from sottovoce.core.errors import ParameterError, UnknownNameError
    from sottovoce.mechanisms.design import store

    if kind not in ("mvu", "metric_mvu"):
        raise UnknownNameError.among("design", kind, ["mvu", "metric_mvu"])
    if kind == "metric_mvu" and metric is None:
        metric = "l1"
    check_plot(plot)
    if (input_bits is None) != continuous:
        raise ParameterError("give exactly one of --input-bits and --continuous")
    spec = store.spec_of(epsilon, input_bits, output_bits, metric)
    with report_progress() as bars:
        bars.update("solving", 0, 1, "some seconds, unless the design is stored")
        found = store.find(spec)
        bars.update("solving", 1, 1, "done")
        bars.update("bounding", 0, 1, "up to a minute for many bits at a large epsilon")
        variance, lower = found.sum_of_variances(), found.lower_bound()
        bars.update("bounding", 1, 1, "done")
    result = {
        **({"metric": _METRIC_NOTES[metric]} if metric else {}),
        "epsilon": epsilon,
        "input_bits": "continuous" if continuous else input_bits,
        "output_bits": output_bits,
        "sum_of_variances": variance,
        "summed_over": f"{found.spec.inputs} inputs" if found.spec.inputs else "[0, 1] (the mean)",
        "lower_bound": lower,
        "gap": variance / lower - 1.0,
        **_in_units(found.certificate(), epsilon / found.spec.epsilon),
        "solve_seconds": found.solve_seconds,
        "alphabet": found.channel.letters.tolist(),
        "inputs": found.channel.knots.tolist(),
        "probabilities": found.channel.rows.tolist(),
    }
    if out is not None:
        from sottovoce.core.files import explain_os_errors

        with explain_os_errors("create", out):
            out.mkdir(parents=True, exist_ok=True)
        result["saved"] = str(store.save(found, out))
    if plot is not None:
        from sottovoce.reporting.design_matrix import matrix_chart

        draw(plot, matrix_chart(found))
        result["plot"] = str(plot)
    if as_json:
        print_json(result)
        return
    _print_design(result)


_METRIC_NOTES = {
    "l1": "l1: epsilon per unit, between any two inputs",
    "l2_squared": "l2_squared: epsilon per squared unit, between the input points only",
}


def _in_units(certificate: dict[str, float], unit: float) -> dict[str, float]:
    """Return a certificate with epsilons per unit of the metric, as they were asked for."""
    return {
        name: value * unit if name in ("dp_excess", "table_epsilon") else value
        for name, value in certificate.items()
    }


def _print_design(result: dict[str, Any]) -> None:
    tables = ("alphabet", "inputs", "probabilities")
    fields = {name: value for name, value in result.items() if name not in tables}
    # These are printed exactly: the epsilon asked for, and one that is proved not to exceed it.
    fields |= {name: repr(fields[name]) for name in ("epsilon", "table_epsilon")}
    print_fields(fields)
    letters, rows = result["alphabet"], result["probabilities"]
    if len(letters) > 16 or len(rows) > 64:
        say(f"\n{len(rows)} rows of {len(letters)} probabilities: see --json or --plot")
        return
    print_table(
        ["input", *(f"{letter:.4g}" for letter in letters)],
        [
            [f"{x:.4g}", *(f"{p:.4f}" for p in row)]
            for x, row in zip(result["inputs"], rows, strict=True)
        ],
    )
