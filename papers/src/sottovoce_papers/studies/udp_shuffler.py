"""UDP-FL, figure 6: learning with and without a shuffler, at the same epsilon."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.release import local_event
from sottovoce.privacy import accounting
from sottovoce.privacy.events import Repeated
from sottovoce.runs.loading import override, parse
from sottovoce_papers.experiment import (
    HELD_OUT,
    Experiment,
    Figure,
    Findings,
    Row,
    Settings,
    number,
    register_experiment,
)
from sottovoce_papers.grid_files import RATE, SEED
from sottovoce_papers.learning.study import default_train, use_data_dir
from sottovoce_papers.learning.tuning import (
    FIRST_TUNING_SEED,
    Group,
    TunedRate,
    choose_rates,
    group_of,
)
from sottovoce_papers.sweep import Choice, Trial, TrialResult, expand, label, run_trials
from sottovoce_papers.workers import Train

NAME = "udp-shuffler"
DIRECT, SHUFFLED = "no shuffler", "shuffler"
MECHANISMS: Mapping[str, dict[str, Any]] = {
    "Laplace": {"kind": "laplace"},
    "one bit": {"kind": "gauss_hermite", "levels": 2},
}
CLIENTS, FAST_CLIENTS = (10, 100, 1000, 10_000), (100, 10_000)
EPSILONS, FAST_EPSILONS = (1.0, 2.0, 8.0), (2.0,)
RATES, FAST_RATES = (0.3, 1.0, 3.0, 10.0, 30.0), (1.0, 10.0)
# Less noise by this fraction or more counts as a gain from the shuffler.
GAIN = 0.01
# Pure epsilons grow like the root of the dimension, so it is small: 21 features for ten digits.
BASE: dict[str, Any] = {
    "name": NAME,
    "seed": 1,
    "rounds": 10,
    "randomness": "seeded",
    "rotation": "off",
    "data": {"dataset": "mnist", "clients": 10},
    "features": [{"kind": "precondition", "images": "strokes", "count": 4000, "components": 20}],
    "model": {"kind": "linear", "bias": False},
    "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0, "local_learning_rate": 1.0},
    "privacy": {"level": "client", "adjacency": "replace-one", "clip_norm": 0.1, "delta": 1e-6},
    "mechanism": {"kind": "laplace"},
    "runtime": {"messages": "none", "device": "auto"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCell:
    """One mechanism with its noise for an epsilon, and the spec that trains with that noise.

    A shuffler changes the order of messages but not their sum, so training is the same without it;
    it may change the noise that an epsilon needs.
    """

    mechanism: str
    channel: str
    clients: int
    epsilon: float
    noise_multiplier: float
    local_epsilon: float
    spent: float
    table: Mapping[str, Any]

    @property
    def key(self) -> dict[str, str | int | float]:
        names = ("mechanism", "channel", "clients", "epsilon")
        return {name: getattr(self, name) for name in names}


def cells(settings: Settings) -> Iterator[ChannelCell]:
    """Yield the cells of both channels in pairs; if their noise hardly differs, they share it."""
    epsilons = FAST_EPSILONS if settings.fast else EPSILONS
    for clients in FAST_CLIENTS if settings.fast else CLIENTS:
        for name in MECHANISMS:
            for epsilon in epsilons:
                direct = cell(name, DIRECT, clients, epsilon, settings.device)
                hidden = cell(name, SHUFFLED, clients, epsilon, settings.device)
                if hidden.noise_multiplier > (1.0 - GAIN) * direct.noise_multiplier:
                    hidden = dataclasses.replace(direct, channel=SHUFFLED, spent=hidden.spent)
                yield from (direct, hidden)


def cell(name: str, channel: str, clients: int, epsilon: float, device: str | None) -> ChannelCell:
    """Return a cell with noise calibrated to `epsilon` over all rounds through the channel."""
    from sottovoce.runs.inputs import load_inputs
    from sottovoce.runs.resolve import resolve

    table = copy.deepcopy(BASE)
    table["data"]["clients"] = clients
    table["mechanism"] = dict(MECHANISMS[name])
    asked = copy.deepcopy(table)
    asked["privacy"]["epsilon"] = epsilon
    if channel == SHUFFLED:
        asked["channel"] = {"kind": "shuffler", "minimum_clients": clients}
        asked["runtime"] = {"messages": "stored"}  # A shuffler needs messages; none are sent here.
    resolved = resolve(load_inputs(parse(asked, f"{name}, {channel}, {clients} clients")))
    mechanism, privacy = resolved.parts[0].mechanism, resolved.spec.privacy

    def spent(event: Any) -> float:
        return accounting.epsilon(Repeated(event=event, count=BASE["rounds"]), privacy.delta)

    parameters = registry.parameters_of(mechanism)
    table["mechanism"] = {"kind": registry.kind_of(mechanism), **parameters}
    if device is not None:
        table["runtime"]["device"] = device
    return ChannelCell(
        mechanism=name,
        channel=channel,
        clients=clients,
        epsilon=epsilon,
        noise_multiplier=float(parameters["noise_multiplier"]),
        local_epsilon=spent(local_event(mechanism, adjacency=privacy.adjacency)),
        spent=spent(resolved.terms(mechanism)),
        table=table,
    )


def trials(
    found: Sequence[ChannelCell], rates: Sequence[float], seeds: Sequence[int]
) -> list[Trial]:
    """Return every cell with every rate and seed."""
    axes = {
        RATE: [Choice(value=r, overrides={"algorithm.server_learning_rate": r}) for r in rates],
        SEED: [Choice(value=seed, overrides={"seed": seed}) for seed in seeds],
    }
    return [
        Trial(key={**one.key, **trial.key}, spec=trial.spec)
        for one in found
        for trial in expand(one.table, axes)
    ]


def held_out(found: Sequence[ChannelCell], rates: Sequence[float]) -> list[Trial]:
    """Return the trials on nine tenths of the training data, tested on the rest."""
    tables = []
    for one in found:
        table = copy.deepcopy(dict(one.table))
        override(table, "data.validation_fraction", 0.1, source=NAME)
        tables.append(dataclasses.replace(one, table=table))
    return trials(tables, rates, [FIRST_TUNING_SEED])


def row(one: ChannelCell, tuned: Mapping[Group, TunedRate], final: Sequence[TrialResult]) -> Row:
    """Return noise, both epsilons and the accuracy over seeds."""
    group = group_of(one.key)
    results = [result for result in final if group_of(result.key) == group]
    accuracies = [float(r.result["accuracy"]) for r in results if r.result is not None]
    mean, half = mean_and_half_width(accuracies) if len(accuracies) > 1 else (None, None)
    return {
        **one.key,
        "noise_multiplier": one.noise_multiplier,
        "epsilon_if_all_is_seen": one.local_epsilon,
        "epsilon_spent": one.spent,
        RATE: tuned[group].rate,
        "accuracy": mean,
        "accuracy_low": None if mean is None or half is None else mean - half,
        "accuracy_high": None if mean is None or half is None else mean + half,
        "seeds": len(accuracies),
        "failed": len(results) - len(accuracies),
    }


def study(settings: Settings, train: Train | None = None) -> Findings:
    """Calibrate through both channels, tune, train and compare."""
    assert settings.folder is not None, "a study needs a folder for its trials"
    folder, rates = settings.folder, FAST_RATES if settings.fast else RATES
    training = train or default_train()

    def run(wanted: Sequence[Trial], what: str) -> list[TrialResult]:
        return run_trials(
            wanted, folder, jobs=settings.jobs, on_step=settings.on_step, train=training, what=what
        )

    with use_data_dir(settings.data_dir):
        found = list(cells(settings))
        tried = run(held_out(found, rates), "tuning")
        tuned = choose_rates(tried)
        every = trials(found, rates, range(1, settings.seeds + 1))
        final = run([t for t in every if tuned[group_of(t.key)].rate == t.key[RATE]], "trials")
    rows = [row(one, tuned, final) for one in found]
    stages = [*(("tuning", result) for result in tried), *(("final", result) for result in final)]
    return Findings(
        rows=rows,
        figures=[figure(rows)],
        verdict=verdict(rows),
        method=METHOD,
        tuning=TUNING,
        reduced=_reduced(settings) if settings.fast else "",
        failures=[f"{stage}, {label(r.key)}: {r.error}" for stage, r in stages if r.error],
        trials=[_trial_row(stage, result) for stage, result in stages],
    )


METHOD = (
    "Whole clients are protected, replace-one, delta = 1e-6 over 10 rounds with all clients. "
    "MNIST in 21 coordinates learned from synthetic images, a linear model: 210 coordinates. "
    "Noise is calibrated to epsilon as the server sees the messages: each with its sender, or "
    "shuffled (the clones bound, composed over rounds, or the local bound where that is smaller). "
    "Shuffling needs a pure epsilon of each message. Gaussian noise has none, and the Renyi curve "
    "with which staircase noise is charged under an L2 clip does not state it, so neither has a "
    "row. Models are trained without shuffling messages, as a sum has no order. Accuracies are "
    "means over seeds with Student's 95% interval, on test data."
)


TUNING = f"Rates are chosen for each row on a held-out tenth of the training data. {HELD_OUT}"


def _reduced(settings: Settings) -> str:
    kept = (("clients", FAST_CLIENTS, CLIENTS), ("epsilon", FAST_EPSILONS, EPSILONS))
    parts = [
        f"{name} {', '.join(f'{value:g}' for value in few)} only, of "
        f"{', '.join(f'{value:g}' for value in every)}"
        for name, few, every in (*kept, ("learning rate", FAST_RATES, RATES))
    ]
    return "; ".join([*parts, f"{settings.seeds} seeds"]) + "."


def _trial_row(stage: str, result: TrialResult) -> Row:
    return {
        "stage": stage,
        **result.key,
        "accuracy": (result.result or {}).get("accuracy"),
        "seconds": round(result.seconds, 3),
        "spec_hash": result.spec_hash,
        "error": result.error,
    }


def figure(rows: Sequence[Row]) -> Figure:
    """Return the picture of accuracy by clients, per mechanism, channel and epsilon."""
    lines: dict[str, list[Row]] = {}
    for one in rows:
        if one["accuracy"] is not None:
            name = f"{one['mechanism']}, {one['channel']}, epsilon {one['epsilon']:g}"
            lines.setdefault(name, []).append(one)
    return Figure(
        name="accuracy-by-clients",
        caption="Means over seeds at the same epsilon; bands are Student's 95% intervals.",
        chart=LineChart(
            title="Test accuracy by clients, with and without a shuffler",
            x_label="clients",
            y_label="test accuracy",
            lines=[
                ChartLine(
                    name=name,
                    x=[number(one, "clients") for one in found],
                    y=[number(one, "accuracy") for one in found],
                    low=[max(0.0, number(one, "accuracy_low")) for one in found],
                    high=[min(1.0, number(one, "accuracy_high")) for one in found],
                )
                for name, found in lines.items()
            ],
            x_log=True,
        ),
    )


def verdict(rows: Sequence[Row]) -> str:
    """Return what the shuffler gained in each setting, in noise and in accuracy."""
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    idle = [one for one, two in pairs if one["noise_multiplier"] == two["noise_multiplier"]]
    lines = [
        f"In {len(idle)} of {len(pairs)} settings the shuffler gains nothing (less than "
        f"{GAIN:.0%} of the noise): noise, model and accuracy are the same with it and without."
    ]
    for one, two in pairs:
        where = f"{one['mechanism']}, {one['clients']} clients, epsilon {one['epsilon']:g}"
        if one["noise_multiplier"] == two["noise_multiplier"]:
            lines.append(f"{where}: no change.")
            continue
        less = 1.0 - number(two, "noise_multiplier") / number(one, "noise_multiplier")
        change = "accuracy was not measured in both"
        if one["accuracy"] is not None and two["accuracy"] is not None:
            gain = number(two, "accuracy") - number(one, "accuracy")
            above = number(two, "accuracy_low") > number(one, "accuracy_high")
            below = number(two, "accuracy_high") < number(one, "accuracy_low")
            told = "intervals apart" if above or below else "intervals overlap"
            change = f"accuracy changes by {100 * gain:+.2f} points ({told})"
        lines.append(f"{where}: {less:.0%} less noise, {change}.")
    return "\n".join(lines)


register_experiment(
    Experiment(
        name=NAME,
        title="Learning with and without a shuffler at the same epsilon (UDP-FL, figure 6)",
        claim="The utility of UDP-FL is marginally improved with the shuffler, convergence is "
        "slightly faster, and the staircase mechanism performs best; the benefits increase with "
        "the number of clients.",
        default_seeds=5,
        fast_seeds=3,
        run=study,
        data="mnist",
        trains=True,
    ),
    module=__name__,
)
