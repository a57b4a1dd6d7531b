"""UDP-FL, table 5: seconds and bytes of each mechanism, by rounds."""

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.runs.loading import parse
from sottovoce_papers.experiment import (
    Experiment,
    Figure,
    Findings,
    Row,
    Settings,
    number,
    register_experiment,
)
from sottovoce_papers.learning.study import default_train, use_data_dir
from sottovoce_papers.sweep import Choice, Trial, TrialResult, expand, label, run_trials
from sottovoce_papers.workers import Train

NAME = "udp-cost"
NO_PRIVACY = "no privacy"
MECHANISMS: Mapping[str, dict[str, Any]] = {
    NO_PRIVACY: {"kind": "no_privacy"},
    "Gaussian (DP-SGD)": {"kind": "gaussian"},
    "Laplace": {"kind": "laplace"},
    "staircase": {"kind": "staircase", "nu": "auto", "step_multiplier": 1.0},
    "one bit": {"kind": "gauss_hermite", "levels": 2},
}
ROUNDS, FAST_ROUNDS = (50, 100, 500, 1000), (3, 6)
NUM_TRAIN, FAST_NUM_TRAIN = 5000, 1000
# Table 5, MNIST with 50 clients: seconds of training, and of computing the noise.
PRINTED = {50: 1049.71, 100: 2056.34, 500: 10500.80, 1000: 20803.10}
PRINTED_NOISE = {50: 50.50, 100: 50.60, 500: 51.60, 1000: 54.30}
BASE: dict[str, Any] = {
    "name": NAME,
    "seed": 1,
    "rounds": 50,
    "randomness": "seeded",
    "data": {"dataset": "mnist", "clients": 50, "num_train": NUM_TRAIN, "num_test": 200},
    "model": {"kind": "udp_mnist_cnn"},
    "algorithm": {"kind": "fedavg", "server_learning_rate": 0.1},
    "privacy": {
        "level": "sample",
        "adjacency": "zero-out",
        "clip_norm": 1.0,
        "epsilon": 4.0,
        "delta": 1e-5,
        "record_sampling_rate": 0.05,
    },
    "mechanism": {"kind": "gaussian"},
    "runtime": {"messages": "packed", "device": "auto"},
}


def grid(settings: Settings) -> list[Trial]:
    """Return the trials: mechanisms, rounds and seeds, with messages encoded and packed."""
    base = copy.deepcopy(BASE)
    if settings.fast:
        base["data"]["num_train"] = FAST_NUM_TRAIN
    if settings.device is not None:
        base["runtime"]["device"] = settings.device
    open_budget = ["privacy.epsilon"]
    axes = {
        "mechanism": [
            Choice(
                value=name,
                overrides={"mechanism": given},
                removed=open_budget if name == NO_PRIVACY else [],
            )
            for name, given in MECHANISMS.items()
        ],
        "rounds": [
            Choice(value=count, overrides={"rounds": count})
            for count in (FAST_ROUNDS if settings.fast else ROUNDS)
        ],
        "seed": [Choice(value=n, overrides={"seed": n}) for n in range(1, settings.seeds + 1)],
    }
    return expand(base, axes)


def calibration_seconds(trial: Trial) -> float:
    """Return the time to calibrate the noise.

    It is the time to resolve a run minus the time to resolve it with the noise given.
    """
    from sottovoce.runs.inputs import load_inputs
    from sottovoce.runs.resolve import resolve

    begun = time.perf_counter()
    resolved = resolve(load_inputs(trial.spec)).spec
    found = time.perf_counter()
    resolve(load_inputs(parse(resolved.plain(), NAME)))
    return max(0.0, (found - begun) - (time.perf_counter() - found))


def study(settings: Settings, train: Train | None = None) -> Findings:
    """Train one model at a time, for any number of jobs, so that they do not slow each other."""
    assert settings.folder is not None, "a study needs a folder for its trials"
    wanted = grid(settings)
    with use_data_dir(settings.data_dir):
        first = {_cell(trial.key): trial for trial in reversed(wanted)}
        # The first call loads data and libraries, whose time is not measured below.
        calibration_seconds(wanted[0])
        # Measured before training, which would fill the caches of the accountants.
        noise = {cell: calibration_seconds(trial) for cell, trial in first.items()}
        results = run_trials(
            wanted,
            settings.folder,
            jobs=1,
            on_step=settings.on_step,
            train=train or default_train(),
        )
    rows = [
        row(cell, [r for r in results if _cell(r.key) == cell], noise[cell])
        for cell in dict.fromkeys(_cell(trial.key) for trial in wanted)
    ]
    return Findings(
        rows=rows,
        figures=[figure(rows)],
        verdict=verdict(rows),
        method=METHOD,
        tuning="The learning rate is a constant that was not tuned; accuracy is not compared here.",
        reduced=f"{', '.join(map(str, FAST_ROUNDS))} rounds on {FAST_NUM_TRAIN} images, not "
        f"{', '.join(map(str, ROUNDS))} on {NUM_TRAIN}; {settings.seeds} seeds."
        if settings.fast
        else "",
        failures=[f"{label(r.key)}: {r.error}" for r in results if r.error],
        trials=[_trial_row(result) for result in results],
    )


METHOD = (
    "MNIST, 50 clients with 100 images each in the full version, a network of 21,840 parameters, "
    "epsilon = 4 at delta = 1e-5, sample level, zero-out, a secret 5% sample of each client's "
    "records a round. Models are trained one after another; seconds are those of the rounds with "
    "encoding, packing, unpacking, decoding and up to 40 tests on 200 images, on this machine. "
    "Time must not reveal who was sampled, so all gradients are computed. Bytes are those of "
    "all clients and rounds together, with headers; down goes the model in float32."
)


def _cell(key: Mapping[str, Any]) -> tuple[str, int]:
    return str(key["mechanism"]), int(key["rounds"])


def row(cell: tuple[str, int], results: Sequence[TrialResult], noise_seconds: float) -> Row:
    """Return the seconds over seeds, and the bytes in both directions."""
    name, rounds = cell
    whole = [result.result for result in results if result.result is not None]
    seconds = [float(result["training_seconds"]) for result in whole]
    mean, half = mean_and_half_width(seconds) if len(seconds) > 1 else (None, None)
    first = whole[0] if whole else {}
    messages = BASE["data"]["clients"] * rounds

    def total(direction: str) -> int | None:
        each = first.get(f"total_bytes_{direction}_per_message")
        return None if each is None else round(each * messages)

    return {
        "mechanism": name,
        "rounds": rounds,
        "training_seconds": mean,
        "training_seconds_low": None if mean is None or half is None else mean - half,
        "training_seconds_high": None if mean is None or half is None else mean + half,
        "noise_seconds": noise_seconds,
        "bytes_up": total("up"),
        "bytes_down": total("down"),
        "bits_per_coordinate": first.get("bits_per_coordinate"),
        "seeds": len(whole),
        "printed_training_seconds": PRINTED.get(rounds),
        "printed_noise_seconds": PRINTED_NOISE.get(rounds),
    }


def _trial_row(result: TrialResult) -> Row:
    found = result.result or {}
    return {
        "stage": "final",
        **result.key,
        "training_seconds": found.get("training_seconds"),
        "seconds": round(result.seconds, 3),
        "spec_hash": result.spec_hash,
        "error": result.error,
    }


def figure(rows: Sequence[Row]) -> Figure:
    """Return the picture of training time by rounds, with a line for each mechanism."""
    lines = []
    for name in MECHANISMS:
        mine = [r for r in rows if r["mechanism"] == name and r["training_seconds"] is not None]
        lines.append(
            ChartLine(
                name=name,
                x=[number(r, "rounds") for r in mine],
                y=[number(r, "training_seconds") for r in mine],
                low=[max(0.0, number(r, "training_seconds_low")) for r in mine],
                high=[number(r, "training_seconds_high") for r in mine],
            )
        )
    return Figure(
        name="seconds-by-rounds",
        caption="Means over seeds of the seconds of all rounds; bands are Student's 95% intervals.",
        chart=LineChart(
            title="Seconds of training by rounds",
            x_label="rounds",
            y_label="seconds",
            lines=[line for line in lines if line.x],
        ),
    )


def verdict(rows: Sequence[Row]) -> str:
    """Return time relative to no privacy, calibration time, and bytes, at the most rounds."""
    most = max(int(number(one, "rounds")) for one in rows)
    last = {
        str(one["mechanism"]): one
        for one in rows
        if one["rounds"] == most and one["training_seconds"] is not None
    }
    plain = last.get(NO_PRIVACY)
    lines = []
    for name, one in last.items():
        seconds = number(one, "training_seconds")
        more = ""
        if plain is not None and one is not plain:
            more = f", {seconds / number(plain, 'training_seconds'):.2f} times no privacy's"
        lines.append(
            f"{name}: {seconds:.1f} s for {most} rounds{more}; finding the noise took "
            f"{number(one, 'noise_seconds'):.2f} s; {number(one, 'bytes_up') / 1e6:.1f} MB up and "
            f"{number(one, 'bytes_down') / 1e6:.1f} MB down."
        )
    printed = PRINTED.get(most)
    if printed is not None:
        lines.append(
            f"Printed for MNIST and 50 clients: {printed:.0f} s for {most} rounds, and "
            f"{PRINTED_NOISE[most]:.1f} s for the noise, on other machines and all of MNIST."
        )
    return "\n".join(lines)


register_experiment(
    Experiment(
        name=NAME,
        title="Seconds and bytes of each mechanism by rounds (UDP-FL, table 5)",
        claim="Training on MNIST with 50 clients takes 1050, 2056, 10501 and 20803 s for 50, 100, "
        "500 and 1000 iterations and computing the noise 50 to 54 s; as convergence is faster, "
        "bandwidth is reduced by more than half, for instance by 40 GB for 10 clients.",
        default_seeds=3,
        fast_seeds=3,
        run=study,
        data="mnist",
        trains=True,
    ),
    module=__name__,
)
