"""`sottovoce attack reconstruction`: training images, from an update or from the model."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sottovoce.cli.data import DataDir, use
from sottovoce.cli.options import AllowCode, FinishedRun
from sottovoce.cli.output import Json, print_json, print_table, progress_bars, say
from sottovoce.cli.setting import check_plot


def reconstruction(
    run: FinishedRun,
    method: Annotated[
        Literal["inversion", "learned"],
        typer.Option(help="From the update that leaves a client, or from the model's outputs."),
    ] = "inversion",
    images: Annotated[int, typer.Option(help="Training images to attack.")] = 8,
    batch: Annotated[int, typer.Option(help="Images behind each update, at most 100.")] = 1,
    model_at: Annotated[
        Literal["initial", "final"], typer.Option(help="The model that clients start from.")
    ] = "initial",
    labels: Annotated[
        Literal["known", "inferred"], typer.Option(help="What the attacker knows of labels.")
    ] = "known",
    iterations: Annotated[int, typer.Option(help="Steps of the inversion.")] = 1000,
    restarts: Annotated[int, typer.Option(help="Starts of the inversion; the best is kept.")] = 1,
    total_variation: Annotated[
        float, typer.Option(help="Weight of the images' smoothness.")
    ] = 1e-3,
    epochs: Annotated[int, typer.Option(help="Epochs that the decoder is learned for.")] = 30,
    seed: Annotated[int, typer.Option(help="Which images, which starts.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="An SVG of originals beside guesses.")] = None,
    allow_code: AllowCode = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Reconstruct training images of a run, and compare with guesses that need no attack.

    The result is also written to RUN/attack-reconstruction.json.
    """
    check_plot(plot)
    use(data_dir)
    use(data_dir)
    with progress_bars() as bars:
        from sottovoce.auditing.attacks.inversion import Inversion
        from sottovoce.auditing.attacks.learned_reconstruction import LearnedReconstruction
        from sottovoce.auditing.finished_run import open_run
        from sottovoce.auditing.run_reconstruction import (
            Request,
            attack_reconstruction,
            has_pictures,
        )

        request = Request(
            method=method,
            images=images,
            batch=batch,
            # Outputs of a model that has not been trained say nothing of what it was trained on.
            model_at="final" if method == "learned" else model_at,
            known_labels=labels == "known",
            inversion=Inversion(
                iterations=iterations, restarts=restarts, total_variation=total_variation
            ),
            learned=LearnedReconstruction(epochs=epochs),
            seed=seed,
        )
        finished = open_run(run, allow_code=allow_code)
        if plot is not None:
            has_pictures(finished.spec, finished.data.input_shape)

        def on_step(done: int, total: int) -> None:
            bars.update("inverting", done, total, "")

        outcome = attack_reconstruction(finished, request, on_step=on_step)
    if plot is not None:
        from sottovoce.auditing.run_reconstruction import picture_grid
        from sottovoce.core.charts.style import standalone
        from sottovoce.core.files import write_atomic

        write_atomic(plot, standalone(picture_grid(outcome).svg()).encode(), mode=0o600)
    if as_json:
        print_json(outcome.result)
    else:
        _print(outcome.result, plot)


def _print(result: dict[str, Any], plot: Path | None) -> None:
    names = [name for name in ("mse", "mae", "psnr", "ssim") if result[name] is not None]
    rows = [[result["attack"], *(_with_interval(result[name]) for name in names)]]
    for baseline, measured in result["baselines"].items():
        rows.append([f"{baseline}, no attack", *(_with_interval(measured[name]) for name in names)])
    print_table(["guess", *(f"{name.upper()} (95%)" for name in names)], rows)
    won = [name.upper() for name, better in result["beats_mean_image"].items() if better]
    verdict = (
        f"The attack beats the mean image in {', '.join(won)}."
        if won
        else "The attack does not beat the mean image, which needs no attack."
    )
    if leaked := result["mse_less_on_own_rows"]:
        better = "better" if leaked["low"] > 0.0 else "not told apart from chance"
        verdict += (
            f" Training images are guessed with an MSE {_with_interval(leaked)} below that of "
            f"images the model never saw: {better}."
        )
    say(f"{verdict}\n{result['setting']}")
    if plot is not None:
        say(f"Pictures: {plot}")


def _with_interval(value: dict[str, float]) -> str:
    return f"{value['mean']:.4g} ({value['low']:.4g} to {value['high']:.4g})"
