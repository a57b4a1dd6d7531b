"""Figures about the first private model, and the commands that a new user types first."""

from collections.abc import Iterator

from figures.figure import (
    Figure,
    Model,
    Output,
    Source,
    UnreadableError,
    at_least,
    at_most,
    between,
    field,
    wall_seconds,
)

DEMO = Source(name="demo", command="sottovoce demo --out {out}/demo --json", minutes=0.6)
SPEND = Source(
    name="spend",
    command="sottovoce privacy spend --mechanism gaussian --param noise_multiplier=10 "
    "--rounds 100 --delta 1e-5 --json",
    minutes=0.1,
)
IMPORT = Source(name="import", command="python -c 'import sottovoce'", minutes=0.1, repeats=5)
HELP = Source(name="help", command="sottovoce --help", minutes=0.1, repeats=5)


def private_accuracy(output: Output) -> float:
    """Return the least mean accuracy of the private variants, which must have epsilon <= 6."""
    private = [one for one in output.json()["variants"] if one["private"]]
    if not private or any(one["epsilon"] > 6.0 or one["delta"] != 1e-5 for one in private):
        raise UnreadableError("no variants at epsilon <= 6, delta = 1e-5")
    return min(float(one["accuracy_mean"]) for one in private)


def demo_models(output: Output) -> Iterator[Model]:
    """Return the private variants; half of a 95% interval over eight seeds is below one stddev."""
    for one in output.json()["variants"]:
        if one["private"]:
            yield Model(
                name=str(one["variant"]),
                accuracy_low=float(one["accuracy_mean"]) - float(one["accuracy_stddev"]),
                constant=0.102,  # a tenth of the digits, and a little
            )


def points_lost(output: Output) -> float:
    """Return the accuracy of the Gaussian minus that of one bit, in points, mean over seeds."""
    return -100.0 * float(output.json()["comparison"]["accuracy_difference_mean"])


FIGURES = (
    Figure(
        name="demo-seconds",
        asked="the demo ends within a minute of its start, on two cores",
        bound=at_most(60.0),
        source=DEMO,
        read=wall_seconds,
        unit="s",
        timed=True,
    ),
    Figure(
        name="demo-one-bit",
        asked="in the demo one bit loses at most a point to the Gaussian at equal epsilon",
        bound=at_most(1.0),
        source=DEMO,
        read=points_lost,
        models=demo_models,
        unit="points lost",
    ),
    Figure(
        name="demo-payload",
        asked="one bit sends 31 times fewer payload bytes up than float32",
        bound=at_least(31.0),
        source=DEMO,
        read=field("comparison.payload_ratio_up"),
        unit="times",
    ),
    Figure(
        name="demo-accuracy",
        asked="every private variant of the demo is right on 0.88 of the test data, epsilon <= 6",
        bound=at_least(0.88),
        source=DEMO,
        read=private_accuracy,
        models=demo_models,
    ),
    Figure(
        name="import-seconds",
        asked="`import sottovoce` in a fresh interpreter",
        bound=at_most(0.3),
        source=IMPORT,
        read=wall_seconds,
        unit="s",
        timed=True,
    ),
    Figure(
        name="help-seconds",
        asked="`sottovoce --help`",
        bound=at_most(0.5),
        source=HELP,
        read=wall_seconds,
        unit="s",
        timed=True,
    ),
    Figure(
        name="spend-gaussian",
        asked="100 rounds of Gaussian noise of ten clips, delta 1e-5: not below the exact 4.377",
        bound=between(4.377, 4.73),
        source=SPEND,
        read=field("epsilon"),
    ),
)
