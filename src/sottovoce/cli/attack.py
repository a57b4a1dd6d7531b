"""The commands `sottovoce attack`, which measure what a run's model or messages leak."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sottovoce.cli.data import DataDir, set_data_folder
from sottovoce.cli.options import AllowCode, Device, FinishedRun, check_plot
from sottovoce.cli.output import Json, draw, print_json, print_table, report_progress, say

app = typer.Typer(help="Attack a finished run to measure what it leaks.", no_args_is_help=True)


@app.command()
def membership(
    run: FinishedRun,
    shadows: Annotated[int, typer.Option(help="Number of shadow models to train; even.")] = 64,
    candidates: Annotated[
        int | None,
        typer.Option(
            help="Number of samples whose membership is guessed, half of them members [2000]."
        ),
    ] = None,
    fpr: Annotated[
        list[float] | None,
        typer.Option(
            help="False-positive rate at which to report the true-positive rate (TPR); repeatable "
            "[0.01, and 0.001 if there are enough candidates]."
        ),
    ] = None,
    attack: Annotated[
        str,
        typer.Option(
            help="shokri, lira-offline, lira-online, canary, all of these, or a plug-in's name."
        ),
    ] = "all",
    device: Device = None,
    allow_code: AllowCode = False,
    data_dir: DataDir = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the ROC curves into this SVG file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Guess who was in the training data: Shokri's attack, LiRA and canaries, with intervals.

    Shadow models are trained as the run was and kept in RUN/attack; after an interruption, run the
    same command to continue. The result is also written to RUN/attack-membership.json.
    """
    check_plot(plot)
    set_data_folder(data_dir)
    with report_progress() as bars:
        from sottovoce.auditing.attacks.context import own_attacks
        from sottovoce.auditing.finished_run import open_run
        from sottovoce.auditing.run_membership import MembershipPlan
        from sottovoce.auditing.run_membership import attack as attacked

        plan = MembershipPlan(
            shadows=shadows,
            candidates=candidates,
            fprs=fpr,
            attacks=own_attacks() if attack == "all" else (attack,),
            device=device,
        )
        result, chart = attacked(open_run(run, allow_code=allow_code), plan, bars.update)
    if plot is not None:
        draw(plot, chart)
    if as_json:
        print_json(result)
    else:
        _print_membership(result)


def _print_membership(result: dict[str, Any]) -> None:
    attacks = result["attacks"]
    fprs = [one["fpr"] for one in next(iter(attacks.values()))["tpr_at_fpr"]]
    rows = [["chance", *(f"{fpr:g}" for fpr in fprs), "0.5", "0.5"]]
    for name, found in attacks.items():
        figures = [*found["tpr_at_fpr"], found["balanced_accuracy"], found["auc"]]
        rows.append([name, *map(_in_brackets, figures)])
    rates = [f"TPR at {100 * fpr:g}% FPR" for fpr in fprs]
    print_table(["attack", *rates, "balanced accuracy", "AUC"], rows)
    inside, outside = result["accuracy_on_members"], result["accuracy_on_non_members"]
    say(
        f"{result['verdict']}\n\nThe model's accuracy is {_in_brackets(inside)} on members and "
        f"{_in_brackets(outside)} on others; {result['shadows']} shadow models, "
        f"{result['candidates']} candidates."
    )
    for note in result["notes"]:
        say(note)


def _in_brackets(one: dict[str, Any]) -> str:
    return f"{one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"


@app.command()
def reconstruction(
    run: FinishedRun,
    method: Annotated[
        Literal["inversion", "learned"],
        typer.Option(
            help="inversion: from the update that a client sends; learned: from the outputs of "
            "the final model, by a decoder."
        ),
    ] = "inversion",
    images: Annotated[int, typer.Option(help="Training images to attack.")] = 8,
    batch: Annotated[int, typer.Option(help="Number of images in each update, at most 100.")] = 1,
    model_at: Annotated[
        Literal["initial", "final"],
        typer.Option(help="With inversion, the model from which the update is computed."),
    ] = "initial",
    labels: Annotated[
        Literal["known", "inferred"], typer.Option(help="Whether the attacker knows the labels.")
    ] = "known",
    iterations: Annotated[int, typer.Option(help="Optimization steps of the inversion.")] = 1000,
    restarts: Annotated[
        int, typer.Option(help="Random starts of the inversion; the best result is kept.")
    ] = 1,
    total_variation: Annotated[
        float, typer.Option(help="Weight of the inversion's total variation penalty.")
    ] = 1e-3,
    epochs: Annotated[
        int, typer.Option(help="With learned, epochs for which the decoder is trained.")
    ] = 30,
    seed: Annotated[int, typer.Option(help="Seed that selects images and starts.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(help="Draw originals and guesses into this SVG file.")
    ] = None,
    allow_code: AllowCode = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Reconstruct training images of a run and compare with guesses that need no attack.

    The result is also written to RUN/attack-reconstruction.json.
    """
    check_plot(plot)
    set_data_folder(data_dir)
    with report_progress() as bars:
        from sottovoce.auditing.attacks.inversion import GradientInversion
        from sottovoce.auditing.attacks.learned_reconstruction import LearnedReconstruction
        from sottovoce.auditing.finished_run import open_run
        from sottovoce.auditing.run_reconstruction import (
            ReconstructionRequest,
            attack_reconstruction,
            check_drawable,
        )

        request = ReconstructionRequest(
            method=method,
            images=images,
            batch=batch,
            # The outputs of the initial model do not depend on the training images.
            model_at="final" if method == "learned" else model_at,
            known_labels=labels == "known",
            inversion=GradientInversion(
                iterations=iterations, restarts=restarts, total_variation=total_variation
            ),
            learned=LearnedReconstruction(epochs=epochs),
            seed=seed,
        )
        finished = open_run(run, allow_code=allow_code)
        if plot is not None:
            check_drawable(finished.spec, finished.data.input_shape)

        def on_step(done: int, total: int) -> None:
            bars.update("inverting", done, total, "")

        outcome = attack_reconstruction(finished, request, on_step=on_step)
    if plot is not None:
        from sottovoce.auditing.run_reconstruction import picture_grid

        draw(plot, picture_grid(outcome), mode=0o600)
    if as_json:
        print_json(outcome.result)
    else:
        _print_reconstruction(outcome.result, plot)


def _print_reconstruction(result: dict[str, Any], plot: Path | None) -> None:
    names = [name for name in ("mse", "mae", "psnr", "ssim") if result[name] is not None]
    rows = [[result["attack"], *(_with_interval(result[name], "g") for name in names)]]
    for baseline, measured in result["baselines"].items():
        rows.append(
            [f"{baseline}, no attack", *(_with_interval(measured[name], "g") for name in names)]
        )
    print_table(["guess", *(f"{name.upper()} (95%)" for name in names)], rows)
    won = [name.upper() for name, better in result["beats_mean_image"].items() if better]
    verdict = (
        f"The attack beats the mean image in {', '.join(won)}."
        if won
        else "The attack does not beat the mean image, which needs no attack."
    )
    if leaked := result["mse_less_on_own_rows"]:
        better = "significantly" if leaked["low"] > 0.0 else "not significantly"
        verdict += (
            f" The MSE on training images is {_with_interval(leaked, 'g')} below that on images "
            f"the model never saw, {better}."
        )
    say(f"{verdict}\n{result['setting']}")
    if plot is not None:
        say(f"Pictures: {plot}")


@app.command()
def attributes(
    run: FinishedRun,
    attribute: Annotated[
        str | None, typer.Option(help="The attribute to infer [the first of the data set].")
    ] = None,
    hidden_units: Annotated[int, typer.Option(help="Hidden units of the attacker's network.")] = 64,
    epochs: Annotated[
        int, typer.Option(help="Epochs for which the attacker's network is trained.")
    ] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the attacker's network.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the accuracies into this SVG file.")
    ] = None,
    allow_code: AllowCode = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Infer an attribute of the people in the training data from the model's embeddings.

    The result is also written to RUN/attack-attributes.json.
    """
    check_plot(plot)
    set_data_folder(data_dir)
    with report_progress():
        from sottovoce.auditing.attacks.attributes import AttributeClassifier
        from sottovoce.auditing.finished_run import open_run
        from sottovoce.auditing.run_attributes import attack_attributes

        attack = AttributeClassifier(hidden_units=hidden_units, epochs=epochs)
        result = attack_attributes(
            open_run(run, allow_code=allow_code), attribute, attack, seed=seed
        )
    if plot is not None:
        from sottovoce.auditing.run_attributes import chart

        draw(plot, chart(result))
    if as_json:
        print_json(result)
    else:
        _print_attributes(result, plot)


def _print_attributes(result: dict[str, Any], plot: Path | None) -> None:
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


def _with_interval(value: dict[str, float], form: str = "f") -> str:
    mean, low, high = (f"{value[name]:.4{form}}" for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"
