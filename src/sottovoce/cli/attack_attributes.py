"""`sottovoce attack attributes`: what a model says of people beside its own task."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.data import DataDir, use
from sottovoce.cli.options import AllowCode, FinishedRun
from sottovoce.cli.output import Json, print_json, print_table, progress_bars, say
from sottovoce.cli.setting import check_plot


def attributes(
    run: FinishedRun,
    attribute: Annotated[
        str | None, typer.Option(help="Which [the first that the data set has].")
    ] = None,
    hidden_units: Annotated[int, typer.Option(help="Of the attacker's network.")] = 64,
    epochs: Annotated[int, typer.Option(help="Epochs that the attacker learns for.")] = 40,
    seed: Annotated[int, typer.Option(help="Of the attacker's network.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="An SVG of the accuracies.")] = None,
    allow_code: AllowCode = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Infer an attribute of the training people from the model's inner representation.

    The result is also written to RUN/attack-attributes.json.
    """
    check_plot(plot)
    use(data_dir)
    use(data_dir)
    with progress_bars():
        from sottovoce.auditing.attacks.attributes import AttributeClassifier
        from sottovoce.auditing.finished_run import open_run
        from sottovoce.auditing.run_attributes import attack_attributes

        attack = AttributeClassifier(hidden_units=hidden_units, epochs=epochs)
        result = attack_attributes(
            open_run(run, allow_code=allow_code), attribute, attack, seed=seed
        )
    if plot is not None:
        from sottovoce.auditing.run_attributes import chart
        from sottovoce.core.charts.style import standalone
        from sottovoce.core.files import write_atomic

        write_atomic(plot, standalone(chart(result).svg()).encode())
    if as_json:
        print_json(result)
    else:
        _print(result, plot)


def _print(result: dict[str, Any], plot: Path | None) -> None:
    rows = [["the model's embeddings", *_shown(result), ""]]
    for name, one in result["baselines"].items():
        rows.append([name, *_shown(one), _with_interval(one["gain_of_the_model"])])
    print_table(["guess", "accuracy (95%)", "F1 (95%)", "gain of the model (95%)"], rows)
    beaten = [name for name, better in result["beats"].items() if better]
    rest = [name for name, better in result["beats"].items() if not better]
    sentences = []
    if beaten:
        sentences.append(f"The model's embeddings tell more than: {', '.join(beaten)}.")
    if rest:
        sentences.append(f"The model's embeddings do not tell more than: {', '.join(rest)}.")
    sentences.insert(0, f"Attribute '{result['attribute']}'.")
    say(" ".join(sentences) + f"\n{result['setting']}")
    if plot is not None:
        say(f"Chart: {plot}")


def _shown(one: dict[str, Any]) -> list[str]:
    return [_with_interval(one["accuracy"]), _with_interval(one["f1"])]


def _with_interval(value: dict[str, float]) -> str:
    return f"{value['mean']:.4f} ({value['low']:.4f} to {value['high']:.4f})"
