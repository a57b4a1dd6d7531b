"""The function `tune`: choose settings by private selection, and charge for the choice.

A random number of trials is made. Each is a run of the spec with values drawn at random from a
grid, and only the best one is released. `privacy.selection` bounds what that costs.
"""

import dataclasses
import itertools
import math
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from sottovoce.core import files
from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.core.files import finite_or_none
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.cohorts import facts_of
from sottovoce.learning.in_memory import InMemoryObject, provide_objects
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import without_trust
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.privacy.renyi import RenyiAccountant
from sottovoce.privacy.selection import (
    NegativeBinomialTrials,
    PoissonTrials,
    TrialLaw,
    draw_trials,
    selected_curve,
)
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.loading import check_code_allowed
from sottovoce.runs.opened import Run
from sottovoce.runs.simulate import collect_parts, read_given_spec
from sottovoce.runs.spec import RunSpec

if TYPE_CHECKING:
    from sottovoce.runs.resolve import Resolved
    from sottovoce.runs.simulate import Model

Score = Literal["accuracy", "loss", "private_accuracy", "private_loss"]
LawName = Literal["geometric", "negative_binomial", "poisson"]

_SCORES = ("accuracy", "loss", "private_accuracy", "private_loss")
# What all trials must have in common: who is protected, on which data, and where it runs.
_FIXED: tuple[str, ...] = (
    *("name", "seed", "randomness", "checkpoint_every", "data", "channel", "runtime"),
    *("deployment", "evaluation", "privacy.level", "privacy.adjacency", "privacy.epsilon"),
    *("privacy.delta", "privacy.minimum_clients", "privacy.groups"),
)
_MOST_POINTS = 1000
_MOST_STEPS = 40
_NEAR = 0.98  # The search ends when the total is at least this part of the budget.


Point = tuple[Mapping[str, Any], RunSpec]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuningPlan:
    """The settings that a tuning chooses from, and what it costs.

    Attributes:
        points: The values of each point of the grid by key, and its spec with the budget of one
            trial.
        law: The law of the number of trials.
        score: The figure of result.json by which trials are compared.
        budget: The `privacy.epsilon` of the spec, for the best trial and its choice; or None.
        epsilon_trial: The epsilon that one trial spends, at most; it is not released alone.
        epsilon_total: The epsilon of the best trial including its choice.
        epsilon_if_seen: That epsilon against an observer of every message of the best trial;
            infinite where its messages have no noise of their own.
        delta: The failure probability of these epsilons.
    """

    points: tuple[Point, ...]
    law: TrialLaw
    score: Score
    budget: float | None
    epsilon_trial: float
    epsilon_total: float
    epsilon_if_seen: float
    delta: float

    def __str__(self) -> str:
        return (
            f"one trial spends epsilon {self.epsilon_trial:.4f}; the best of the trials, with its "
            f"choice among {len(self.points)} settings, {self.epsilon_total:.4f} at delta "
            f"{self.delta:g} (number of trials: {self.law.describe()})"
        )


def tune(
    spec: str | Path | Mapping[str, Any] | RunSpec,
    *,
    grid: Mapping[str, Sequence[Any]],
    law: LawName = "geometric",
    expected_trials: float = 10.0,
    eta: float = 1.0,
    score: Score = "accuracy",
    model: "Model | None" = None,
    data: object = None,
    out: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    allow_code: bool = False,
    on_plan: Callable[[TuningPlan], None] | None = None,
) -> Run:
    """Choose settings by a random number of trials, and return the best run.

    Each trial is a simulated run of the spec with values drawn uniformly from the grid. What is
    charged covers the best run together with its choice, against an observer who sees only that
    run: the number of trials, the other trials and the time that they took must stay secret. With
    `privacy.epsilon` the noise of each trial is calibrated so that this total stays within it.

    Args:
        spec: The spec, as for `simulate`. It must be seeded and store no messages.
        grid: The values to choose from, by dotted key, such as
            {"algorithm.server_learning_rate": [0.3, 1.0]}.
        law: The law of the number of trials: "geometric", "negative_binomial" or "poisson". With
            "poisson" it can be 0; then ConfigError is raised.
        expected_trials: The expected number of trials, above 1.
        eta: The shape of "negative_binomial", above -1; 1 is the geometric law.
        score: The figure of result.json that is compared: "accuracy" (the most important figure on
            the test data, larger is better) or "loss", for which the test data must be public; or
            "private_accuracy" or "private_loss", which `evaluation.private` estimates.
        model: A model that replaces the spec's, as for `simulate`.
        data: Data that replace the spec's, as for `simulate`.
        out: The run folder of the best run; by default a temporary one, which is deleted with the
            returned run.
        overrides: Values by dotted key, such as {"privacy.epsilon": 2.0}.
        allow_code: Import and run the code that a file or a dictionary names.
        on_plan: Called before the first trial, with what a trial and the whole tuning cost.

    Returns:
        The best run. Its epsilons include the choice; `Run.tuning` says how it was made.

    Raises:
        ConfigError: The grid or the spec cannot be tuned, no trial was drawn, or the best model has
            diverged.
        ParameterError: A parameter is out of range, or no noise keeps the budget.
        UnsupportedEventError: No Renyi divergence is known of what a trial releases.
        OutputError: `out` is not empty.
    """
    parts = collect_parts(model, data, spec)
    trials = law_named(law, expected_trials, eta)
    found = _points(spec, grid, overrides or {}, parts)
    allowed = allow_code or isinstance(spec, RunSpec)
    for _, one in found:
        check_code_allowed(one, allow_code=allowed, how="tune(..., allow_code=True)")
    if out is not None:
        RunFolder(Path(out).expanduser()).check_new()
    with provide_objects(*parts):
        plan = plan_tuning(found, trials, score)
        if on_plan is not None:
            on_plan(plan)
        folder = Path(tempfile.mkdtemp(prefix="run-") if out is None else out).expanduser()
        try:
            run_trials(plan, folder)
            run = Run(folder, keep_alive=parts, temporary=out is None)
        except BaseException:
            if out is None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    if out is None:
        weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run


def law_named(name: LawName, expected_trials: float, eta: float) -> TrialLaw:
    """Return the law of the number of trials that these arguments of `tune` describe.

    Raises:
        ParameterError: There is no such law, or a parameter is out of range.
    """
    if name not in ("geometric", "negative_binomial", "poisson"):
        raise ParameterError(
            f"law must be 'geometric', 'negative_binomial' or 'poisson', got {name!r}"
        )
    if eta != 1.0 and name != "negative_binomial":
        raise ParameterError(
            f"eta is a parameter of the law 'negative_binomial', not of '{name}'; choose that law "
            "(--law negative_binomial), or leave eta out"
        )
    if name == "poisson":
        return PoissonTrials(mean=expected_trials)
    return NegativeBinomialTrials.with_mean(expected_trials, eta=eta)


def plan_tuning(points: Sequence[Point], law: TrialLaw, score: Score) -> TuningPlan:
    """Return what a tuning costs, with the budget of one trial chosen so that it stays within it.

    Args:
        points: The settings to choose from.
        law: The law of the number of trials.
        score: The figure by which trials are compared.

    Raises:
        ConfigError: The specs cannot be tuned.
        ParameterError: No noise keeps the budget.
        UnsupportedEventError: No Renyi divergence is known of what a trial releases.
    """
    specs = [spec for _, spec in points]
    for spec in specs:
        _check(spec, score)
    epsilon, delta = specs[0].privacy.epsilon, specs[0].privacy.delta
    trial = None if epsilon is None else epsilon / 2.0
    for _ in range(_MOST_STEPS):
        specs = [_with_budget(spec, trial) for spec in specs]
        events = [event for spec in specs for event in _charged_in(spec)]
        total = RenyiAccountant().epsilon(selected_curve(events, law), delta)
        if math.isinf(total):
            _refuse_unprotected()
        if epsilon is None or trial is None or _NEAR * epsilon <= total <= epsilon:
            break
        # The total is almost proportional to the epsilon of a trial.
        trial *= (1.0 + _NEAR) / 2.0 * epsilon / total
    else:
        raise ParameterError(
            f"no noise of one trial was found for which the total with its choice is epsilon "
            f"{epsilon:g}; ask for a larger privacy.epsilon or fewer expected trials"
        )
    seen = RenyiAccountant().epsilon(
        selected_curve([without_trust(event) for event in events], law), delta
    )
    return TuningPlan(
        points=tuple((point, spec) for (point, _), spec in zip(points, specs, strict=True)),
        law=law,
        score=score,
        budget=epsilon,
        epsilon_trial=max(privacy_spent(event, delta).epsilon for event in dict.fromkeys(events)),
        epsilon_total=total,
        epsilon_if_seen=seen,
        delta=delta,
    )


def run_trials(plan: TuningPlan, folder: Path) -> None:
    """Make a random number of trials, keep the folder of the best one, and write its cost there.

    Args:
        plan: What `plan_tuning` returned.
        folder: The folder for the best run; empty, or it does not exist.

    Raises:
        ConfigError: No trial was drawn, or the best model has diverged.
    """
    first = plan.points[0][1]
    generator = SeededRandomness(first.seed).generator("tuning", first.hash)
    number = draw_trials(plan.law, float(generator.random()))
    best: tuple[float, Path, Mapping[str, Any]] | None = None
    with tempfile.TemporaryDirectory(prefix="tune-") as place:
        for _ in range(number):
            point, spec = plan.points[int(generator.integers(len(plan.points)))]
            # The noise of a seeded run depends on its name, so each trial has noise of its own.
            name = f"{spec.name}-{int(generator.integers(2**62)):016x}"
            trial = Path(place) / name
            value = _value(_run_trial(spec.model_copy(update={"name": name}), trial), plan.score)
            if best is None or value > best[0]:
                if best is not None:
                    shutil.rmtree(best[1])
                best = value, trial, point
            else:
                shutil.rmtree(trial)
        if best is None:
            raise ConfigError(
                "the number of trials that was drawn is 0, so that nothing is released; this can "
                "happen with the law 'poisson', and another seed spends the same once more. Use "
                "the law 'geometric', or expect more trials"
            )
        _, found, chosen = best
        folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        shutil.copytree(found, folder, dirs_exist_ok=True)
    result = _write_cost(plan, folder, chosen)
    if result.get("diverged"):
        raise ConfigError(
            f"no trial has a score, because the model diverged ({result['diverged']}), but "
            "the trials are charged; choose smaller learning rates for the grid"
        )


def _run_trial(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """Run a trial and return its result, also if its model diverged."""
    from sottovoce.runs.runner import run  # Imported late: torch takes a while to load.

    try:
        return run(spec, folder, make_schedule=_own_cohorts)
    except ConfigError:
        result = RunFolder(folder).result()
        if result is None or not result.get("diverged"):
            raise
        return result


def _own_cohorts(resolved: "Resolved") -> SeededRandomness | None:
    """Return randomness for cohorts of this trial alone; None for that of the spec's seed.

    Where a secret sample or order of clients makes a trial cheaper, all trials must be
    independent, so they must not share it. No charge may depend on the cohorts then: each client
    pays in every round, or once an epoch.
    """
    spec = resolved.spec
    epoch = facts_of(resolved.sampling, len(resolved.clients)).rounds_of_an_epoch
    in_whole_epochs = epoch is not None and spec.rounds % epoch == 0
    if not (resolved.channel.noise_at_server or in_whole_epochs):
        return None
    generator = SeededRandomness(spec.seed).generator("cohorts of a trial", spec.name)
    return SeededRandomness(int(generator.integers(2**62)))


def _value(result: Mapping[str, Any], score: Score) -> float:
    """Return a number that is larger for a better result; a missing figure is the worst."""
    figure = result.get(score)
    if figure is None or math.isnan(figure):
        return -math.inf
    return -float(figure) if score.endswith("loss") else float(figure)


def _write_cost(plan: TuningPlan, folder: Path, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the epsilons of the best trial by those that include its choice."""
    run_folder = RunFolder(folder)
    result = run_folder.result()
    assert result is not None
    total = plan.epsilon_total
    tuning = {
        "charged": True,
        "epsilon_total": total,
        "epsilon_trial": plan.epsilon_trial,
        "delta": plan.delta,
        "trials": plan.law.describe(),
        "score": plan.score,
        "settings": len(plan.points),
        "chosen": dict(chosen),
    }
    # Clients that the best trial did not ask may have been asked in others.
    account = {"epsilon": total}
    own = account if plan.budget is None else {**account, "budget": plan.budget}
    result |= account | {
        "accountant": "renyi",
        "clients": [{**row, **own} for row in result["clients"]],
        "groups": [{**row, **own} for row in result["groups"]],
        "tuning": tuning,
        "warnings": [*result["warnings"], _sentence(plan)],
    }
    if result["local_epsilon"] is not None:
        result["local_epsilon"] = finite_or_none(plan.epsilon_if_seen)
    if result["central_epsilon"] is not None:
        result["central_epsilon"] = total
    rows = [{**row, "epsilon": total, "bounds": {"renyi": total}} for row in run_folder.metrics()]
    if "diagnosis" in result:  # A larger budget of one trial is not for the user to choose.
        diagnosis = result["diagnosis"]
        suggested = [one for one in diagnosis["suggestions"] if one["key"] != "privacy.epsilon"]
        result["diagnosis"] = {**diagnosis, "suggestions": suggested}
    guarantee = _with_assumption(result["guarantee"])
    result["guarantee"] = guarantee
    run_folder.replace_metrics(rows)
    run_folder.add_to_header({"tuning": tuning, "guarantee": guarantee})
    run_folder.save_result(result)
    return result


def _with_assumption(guarantee: str) -> str:
    """Add to the guarantee of a run what its choice assumes, before the grade of its randomness."""
    text, grade, reasons = guarantee.partition(" (simulation only: ")
    return (
        f"{text}; it assumes that the number of trials, the other trials and their duration stay "
        f"secret{grade}{reasons}"
    )


def _sentence(plan: TuningPlan) -> str:
    return (
        f"epsilon {plan.epsilon_total:.4g} covers this run and its choice among "
        f"{len(plan.points)} settings, as long as the number of trials, the other trials and their "
        f"duration stay secret; the party that made the trials saw all of them. One trial alone "
        f"spends {plan.epsilon_trial:.4g}"
    )


def _charged_in(spec: RunSpec) -> list[PrivacyEvent]:
    """Return the distinct totals that clients are charged in a run of the spec; train nothing."""
    from sottovoce.runs.build import build
    from sottovoce.runs.check import charge_rounds
    from sottovoce.runs.inputs import load_inputs
    from sottovoce.runs.outcome import charged_totals
    from sottovoce.runs.resolve import resolve
    from sottovoce.runs.runner import limit_threads

    with limit_threads(spec):
        resolved = resolve(load_inputs(spec))
        training = build(resolved)
        _, halted = charge_rounds(training, spec.rounds)
    if halted is not None:
        raise ConfigError(
            f"a trial would stop before its last round: {halted}. The noise of a trial is chosen "
            "by the total budget: remove the mechanism's noise parameter, or privacy.epsilon"
        )
    return charged_totals(resolved, training.record)


def _with_budget(spec: RunSpec, epsilon: float | None) -> RunSpec:
    privacy = spec.privacy.model_copy(update={"epsilon": epsilon})
    return spec.model_copy(update={"privacy": privacy})


def _points(
    spec: str | Path | Mapping[str, Any] | RunSpec,
    grid: Mapping[str, Sequence[Any]],
    overrides: Mapping[str, Any],
    parts: tuple[InMemoryObject, ...],
) -> list[Point]:
    """Return every combination of the grid's values, with its spec."""
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(
                f"the grid needs a list with one or more values for '{key}', got {values!r}; write "
                f"--grid {key}=VALUE,VALUE (in Python grid={{'{key}': [...]}})"
            )
        fixed = next((one for one in _FIXED if key == one or key.startswith(one + ".")), None)
        if fixed is not None or key == "privacy":
            raise ConfigError(
                f"'{key}' cannot be tuned, because all trials have the same {fixed or key}; set it "
                f"in the spec (--set {key}=VALUE)"
            )
    count = math.prod(map(len, grid.values()))
    if count <= 1:
        raise ConfigError(
            "the grid has a single point, so that there is nothing to choose; give a key two or "
            "more values, as --grid algorithm.server_learning_rate=0.3,1.0, or use 'sottovoce run'"
        )
    if count > _MOST_POINTS:
        raise ConfigError(
            f"the grid has {count} points, and at most {_MOST_POINTS} are allowed; give fewer "
            "values"
        )
    found: list[Point] = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        found.append((point, read_given_spec(spec, {**overrides, **point}, parts)))
    return found


def _check(spec: RunSpec, score: Score) -> None:
    """Refuse a spec whose trials could not be charged."""
    if score not in _SCORES:
        raise ParameterError(f"score must be one of {', '.join(_SCORES)}, got {score!r}")
    if spec.runtime.backend != "fast" or spec.data.sites:
        raise ConfigError(
            "sites of a federation see every trial, so each trial would be charged in full; tune "
            "in a simulation on public data (runtime.backend = 'fast'), or run one spec after the "
            "other with 'sottovoce deploy run', whose ledgers add up the trials"
        )
    if spec.runtime.messages == "stored" or spec.randomness == "system":
        raise ConfigError(
            "a ledger of stored messages would show every trial, whose number must stay secret; "
            "set runtime.messages = 'packed' and randomness = 'seeded'"
        )
    if spec.privacy.groups:
        raise ConfigError(
            "tuning has one budget for all clients, but the spec has privacy.groups; remove them"
        )
    private = score.removeprefix("private_") if score.startswith("private_") else None
    evaluation = spec.evaluation.private
    if private is not None and (evaluation is None or evaluation.metric != private):
        raise ConfigError(
            f"score '{score}' needs the private estimate; set evaluation.private = "
            f"{{ metric = '{private}' }}"
        )
    if private is None and spec.data.validation_fraction is not None:
        raise ConfigError(
            "data.validation_fraction measures the score on clients' records, which would be "
            "released unprotected; leave it out, so that the public test data are used, or choose "
            "a private score (evaluation.private and --score private_accuracy)"
        )


def _refuse_unprotected() -> NoReturn:
    raise ConfigError(
        "the messages of a trial are not private, or no Renyi divergence is known of them, so that "
        "the choice of the best trial cannot be charged; choose a mechanism with noise (mechanism."
        "kind), or compare the runs with 'sottovoce run'"
    )
