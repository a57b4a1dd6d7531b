"""The command `sottovoce tune`, which chooses settings by private selection and charges for it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sottovoce.cli.data import DataDir, set_data_folder
from sottovoce.cli.mistakes import missing_spec_message
from sottovoce.cli.options import AllowCode, Overrides, SpecFile
from sottovoce.cli.output import Json, report_progress, say
from sottovoce.cli.summary import print_result
from sottovoce.core.errors import ConfigError

if TYPE_CHECKING:
    from sottovoce.runs.tune import TuningPlan


def tune(
    spec: SpecFile,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            help="A key and its values, as algorithm.server_learning_rate=0.3,1; repeatable.",
        ),
    ] = None,
    law: Annotated[
        Literal["geometric", "negative_binomial", "poisson"],
        typer.Option(help="The law of the secret number of trials."),
    ] = "geometric",
    expected_trials: Annotated[
        float, typer.Option(help="The expected number of trials, above 1.")
    ] = 10.0,
    eta: Annotated[float, typer.Option(help="The shape of the law negative_binomial.")] = 1.0,
    score: Annotated[
        Literal["accuracy", "loss", "private_accuracy", "private_loss"],
        typer.Option(
            help="What is compared: a figure on the public test data, or a private estimate."
        ),
    ] = "accuracy",
    set_: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder of the best trial [runs/NAME-tuned].")
    ] = None,
    allow_code: AllowCode = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Choose settings by a secret, random number of trials, and charge for the choice as well.

    Each trial is a simulated run with values drawn from the grid; only the best one is kept. Its
    epsilon covers the run and its choice, and stays within privacy.epsilon of the spec.
    """
    from sottovoce.runs.folder import RunFolder
    from sottovoce.runs.loading import load, parse_assignments

    if not spec.exists():
        raise ConfigError(missing_spec_message(spec))
    overrides = parse_assignments(set_ or [], "--set")
    folder = out or Path("runs") / f"{load(spec, set_ or []).name}-tuned"
    set_data_folder(data_dir)

    def print_plan(plan: "TuningPlan") -> None:
        say(str(plan), err=True)
        bars.announce("making trials; neither their number nor the time they take may be published")

    with report_progress() as bars:
        from sottovoce.runs.tune import tune as choose  # torch takes a while to load

        run = choose(
            spec,
            grid=_grid(grid or []),
            law=law,
            expected_trials=expected_trials,
            eta=eta,
            score=score,
            out=folder,
            overrides=overrides,
            allow_code=allow_code,
            on_plan=print_plan,
        )
    result = RunFolder(run.folder).result()
    assert result is not None
    if not as_json:
        chosen = result["tuning"]["chosen"]
        say("chosen: " + ", ".join(f"{key} = {value}" for key, value in chosen.items()))
    print_result(result, folder, as_json=as_json)


def _grid(texts: list[str]) -> dict[str, list[Any]]:
    """Return the values of each key; a text is a TOML list without brackets, or plain words."""
    from sottovoce.runs.loading import parse_value

    found: dict[str, list[Any]] = {}
    for text in texts:
        key, _, listed = (part.strip() for part in text.partition("="))
        if not key or not listed:
            raise ConfigError(
                f"--grid needs KEY=VALUE,VALUE, got '{text}'; write it as --grid rounds=10,20"
            )
        if key in found:
            raise ConfigError(f"--grid gives '{key}' twice; give it once, with all values")
        values = parse_value(f"[{listed}]")
        if not isinstance(values, list):
            values = [parse_value(one.strip()) for one in listed.split(",") if one.strip()]
        found[key] = values
    return found
