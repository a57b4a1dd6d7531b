"""UDP-FL, tables 7 and 9: images reconstructed from one update, and from a model's outputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sottovoce_papers.experiment import HELD_OUT, Findings, Settings, experiment
from sottovoce_papers.kept_cells import KeptCells
from sottovoce_papers.udp_mechanisms import (
    EPSILONS,
    GAUSSIAN,
    LAPLACE,
    NO_PRIVACY,
    RECORD_SAMPLING_RATE,
    STAIRCASE,
    MechanismAtBudget,
    mechanisms_at_budgets,
)

if TYPE_CHECKING:
    from sottovoce_papers.studies.udp_dra.cells import Victims
    from sottovoce_papers.target_models import TargetModel

INVERSION, TRAINED, LEARNED = "inversion", "inversion, trained model", "learned"
UNTRAINED = "untrained"
_VERSION = 1

# (mechanism, epsilon) -> MSE, PSNR, SSIM as printed in table 7.
TABLE_7: Mapping[tuple[str, float | None], tuple[float, float, float]] = {
    (NO_PRIVACY, None): (1.7104, 9.79, 0.0751),
    (GAUSSIAN, 2.0): (2.2646, 8.51, 0.0195),
    (GAUSSIAN, 4.0): (2.2058, 8.69, 0.0414),
    (GAUSSIAN, 6.0): (2.1532, 8.76, 0.0417),
    (GAUSSIAN, 8.0): (2.1463, 8.78, 0.0519),
    (LAPLACE, 2.0): (2.2686, 8.63, 0.0573),
    (LAPLACE, 4.0): (2.1840, 8.68, 0.0629),
    (LAPLACE, 6.0): (2.1532, 8.83, 0.0692),
    (LAPLACE, 8.0): (2.1290, 8.95, 0.0746),
    (STAIRCASE, 2.0): (2.3399, 8.37, 0.0096),
    (STAIRCASE, 4.0): (2.2405, 8.39, 0.0204),
    (STAIRCASE, 6.0): (2.1910, 8.54, 0.0207),
    (STAIRCASE, 8.0): (2.1832, 8.73, 0.0225),
}
# (mechanism, epsilon) -> MSE, MAE as printed in table 9.
TABLE_9: Mapping[tuple[str, float | None], tuple[float, float]] = {
    (NO_PRIVACY, None): (1.23, 0.65),
    (GAUSSIAN, 2.0): (2.40, 1.26),
    (GAUSSIAN, 4.0): (2.35, 1.24),
    (GAUSSIAN, 6.0): (2.30, 1.22),
    (GAUSSIAN, 8.0): (2.25, 1.20),
    (LAPLACE, 2.0): (2.42, 1.27),
    (LAPLACE, 4.0): (2.38, 1.25),
    (LAPLACE, 6.0): (2.33, 1.23),
    (LAPLACE, 8.0): (2.28, 1.21),
    (STAIRCASE, 2.0): (2.44, 1.28),
    (STAIRCASE, 4.0): (2.40, 1.26),
    (STAIRCASE, 6.0): (2.35, 1.24),
    (STAIRCASE, 8.0): (2.30, 1.22),
}
PRINTED: Mapping[str, Mapping[tuple[str, float | None], Mapping[str, float]]] = {
    INVERSION: {
        key: {"mse": mse, "psnr": psnr, "ssim": ssim} for key, (mse, psnr, ssim) in TABLE_7.items()
    },
    LEARNED: {key: {"mse": mse, "mae": mae} for key, (mse, mae) in TABLE_9.items()},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconstructionPlan:
    """The effort of the experiment; `updates` maps images per update to the number of updates."""

    epsilons: Sequence[float]
    updates: Mapping[int, int]
    iterations: int
    weights: Sequence[float]  # Of total variation; the better one counts.
    rows: int  # Training rows of the target models, and the most test rows.
    rounds: int
    rates: Sequence[float]
    epochs: int
    victims: int  # Images on which the learned reconstruction is measured.

    @classmethod
    def of(cls, settings: Settings) -> "ReconstructionPlan":
        """Return the plan of a full or a fast run."""
        if settings.fast:
            return cls(
                epsilons=(8.0,),
                updates={1: settings.seeds},
                iterations=200,
                weights=(1e-3, 1.0),
                rows=1000,
                rounds=15,
                rates=(0.3,),
                epochs=5,
                victims=50,
            )
        return cls(
            epsilons=EPSILONS,
            updates={
                1: settings.seeds,
                10: max(2, settings.seeds // 4),
                100: max(2, settings.seeds // 16),
            },
            iterations=600,
            weights=(1e-3, 1.0),
            rows=10_000,
            rounds=150,
            rates=(0.03, 0.3, 1.0),
            epochs=30,
            victims=500,
        )


def base_spec(plan: ReconstructionPlan, settings: Settings) -> dict[str, Any]:
    """Return the spec of the target models without mechanism, budget, rate and seed."""
    return {
        "name": "udp-dra",
        "rounds": plan.rounds,
        "randomness": "seeded",
        "data": {
            "dataset": "cifar10",
            "clients": 10,
            "num_train": plan.rows,
            "num_test": min(plan.rows, 5000),
        },
        "model": {"kind": "strided_cnn"},
        "algorithm": {"kind": "fedavg"},
        "privacy": {
            "level": "sample",
            "clip_norm": 1.0,
            "delta": 1e-5,
            "record_sampling_rate": RECORD_SAMPLING_RATE,
        },
        "runtime": {"messages": "none", "device": settings.device or "auto"},
    }


@experiment(
    "udp-dra",
    title="Data reconstruction on CIFAR-10 (UDP-FL, tables 7 and 9)",
    claim="Table 7: from gradients, MSE 2.34 to 2.18 and SSIM 0.010 to 0.023 with the staircase, "
    "2.26 to 2.15 and 0.020 to 0.052 with DP-SGD, 1.71 and 0.075 without privacy. Table 9: from "
    "outputs, MSE 2.44 to 2.30 with the staircase, 2.40 to 2.25 with DP-SGD, 1.23 without privacy. "
    "'Staircase noise consistently results in higher MSE and lower SSIM.'",
    seeds=32,
    fast_seeds=8,
    trains=True,
    data="cifar10",
)
def udp_dra(settings: Settings) -> Findings:
    """Run both attacks on the same images under every mechanism, and baselines without attack."""
    from sottovoce_papers.learning.study import use_data_dir
    from sottovoce_papers.studies.udp_dra import findings as reconstruction_findings

    plan = ReconstructionPlan.of(settings)
    cells = KeptCells(settings.folder, version=_VERSION)
    with use_data_dir(settings.data_dir):
        found = list(_inverted(plan, settings, cells))
        found += _learned(plan, settings, cells)
    return Findings(
        rows=reconstruction_findings.rows(found, PRINTED),
        figures=reconstruction_findings.figures(found),
        verdict=reconstruction_findings.verdict(found),
        method=_method(plan),
        tuning=_tuning(plan),
        reduced=_reduced(plan) if settings.fast else _small(plan),
    )


Cell = dict[str, Any]


def _inverted(plan: ReconstructionPlan, settings: Settings, cells: KeptCells) -> Iterator[Cell]:
    """Yield cells of the attack on one update of the initial model, by images per update."""
    from sottovoce.auditing.attacks.inversion import GradientInversion
    from sottovoce_papers.studies.udp_dra.cells import inversion_cells
    from sottovoce_papers.target_models import untrained

    task, data = untrained(base_spec(plan, settings))
    attacks = [
        GradientInversion(iterations=plan.iterations, total_variation=w) for w in plan.weights
    ]
    for batch, updates in plan.updates.items():
        victims = _victims(data.train_features, data.train_labels, updates, batch)
        about = _about(INVERSION, batch, updates, plan)
        yield from _baselines(about, victims, data.test_features)
        missing = [
            one for one in mechanisms_at_budgets(plan.epsilons) if not cells.find(about | one.key)
        ]
        # A GPU inverts all in the time of one; on a CPU each is stored as soon as it is finished.
        together = len(missing) if task.device.type == "cuda" else 1
        for start in range(0, len(missing), max(1, together)):
            part = missing[start : start + together]
            _report(settings, f"{batch} images an update", start, len(missing), part[0])
            made = inversion_cells(task, task.initial_model(), part, victims, attacks)
            for one, cell in zip(part, made, strict=True):
                cells.keep(about | one.key, cell)
        for one in mechanisms_at_budgets(plan.epsilons):
            yield {**about, **one.key, **_kept(cells, about | one.key)}


def _learned(plan: ReconstructionPlan, settings: Settings, cells: KeptCells) -> Iterator[Cell]:
    """Yield cells of the attack on models' outputs, and one inversion of a trained model."""
    from sottovoce.auditing.attacks.learned_reconstruction import LearnedReconstruction
    from sottovoce_papers.studies.udp_dra.cells import learned_cell
    from sottovoce_papers.target_models import target_model, untrained

    base = base_spec(plan, settings)
    _, data = untrained(base)
    victims = _victims(data.train_features, data.train_labels, plan.victims, 1)
    about = _about(LEARNED, 1, plan.victims, plan)
    trained = _about(TRAINED, 1, plan.updates[1], plan)
    yield from _baselines(about, victims, data.test_features)
    everyone = mechanisms_at_budgets(plan.epsilons)
    yield _untrained(about, base, victims, plan, cells)
    for done, one in enumerate(everyone):
        keys = [about | one.key] + ([trained | one.key] if one.epsilon is None else [])
        if not all(cells.find(key) for key in keys):
            _report(settings, "models", done, len(everyone), one)
            target = target_model(base, one, plan.rates, seed=1)
            attack = LearnedReconstruction(epochs=plan.epochs)
            cells.keep(about | one.key, learned_cell(target, victims, attack))
            if one.epsilon is None:
                cells.keep(trained | one.key, _trained_inversion(plan, target, one))
        for key in keys:
            yield {**key, **_kept(cells, key)}


def _untrained(
    about: Cell, base: Cell, victims: "Victims", plan: ReconstructionPlan, cells: KeptCells
) -> Cell:
    """Return the control: what the outputs of a model without training reveal."""
    from sottovoce.auditing.attacks.learned_reconstruction import LearnedReconstruction
    from sottovoce_papers.studies.udp_dra.cells import learned_cell
    from sottovoce_papers.target_models import untrained_target

    key = {**about, "mechanism": UNTRAINED, "epsilon": None}
    if cells.find(key) is None:
        attack = LearnedReconstruction(epochs=plan.epochs)
        cells.keep(key, learned_cell(untrained_target(base), victims, attack))
    return {**key, **_kept(cells, key)}


def _trained_inversion(
    plan: ReconstructionPlan, target: "TargetModel", one: MechanismAtBudget
) -> Cell:
    from sottovoce.auditing.attacks.inversion import GradientInversion
    from sottovoce_papers.studies.udp_dra.cells import inversion_cells

    attacks = [
        GradientInversion(iterations=plan.iterations, total_variation=w) for w in plan.weights
    ]
    data = target.data
    victims = _victims(data.train_features, data.train_labels, plan.updates[1], 1)
    (cell,) = inversion_cells(target.task, target.model, [one], victims, attacks)
    return {**cell, "accuracy": target.accuracy, "learning_rate": target.learning_rate}


def _victims(features: Any, labels: Any, updates: int, batch: int) -> "Victims":
    from sottovoce_papers.studies.udp_dra.cells import victims

    return victims(features, labels, updates=updates, batch=batch)


def _baselines(about: Cell, victims: "Victims", auxiliary: Any) -> Iterator[Cell]:
    """Yield cells of guesses that need no attack, and the originals."""
    from sottovoce_papers.studies.udp_dra.cells import baseline_cells

    for name, cell in baseline_cells(victims, auxiliary).items():
        yield {**about, "mechanism": name, "epsilon": None, **cell}


def _about(part: str, batch: int, updates: int, plan: ReconstructionPlan) -> Cell:
    """Return the parameters of a cell other than its mechanism and budget."""
    training = {"rows": plan.rows, "rounds": plan.rounds, "rates": list(plan.rates)}
    effort = {"iterations": plan.iterations, "weights": list(plan.weights)}
    if part == LEARNED:
        effort = {"epochs": plan.epochs}
    return {"part": part, "batch": batch, "updates": updates, "effort": effort | training}


def _kept(cells: KeptCells, key: Cell) -> Cell:
    found: Cell | None = cells.find(key)
    assert found is not None, "it has just been stored"
    return found


def _report(settings: Settings, what: str, done: int, total: int, one: MechanismAtBudget) -> None:
    budget = "" if one.epsilon is None else f", epsilon {one.epsilon:g}"
    settings.on_step(what, done, total, f"{one.mechanism}{budget}")


def _method(plan: ReconstructionPlan) -> str:
    weights = " and ".join(f"{weight:g}" for weight in plan.weights)
    return (
        "Inversion: clients that have 1, 10 or 100 images (as the rows say) and nothing else send "
        "one update of the untrained strided_cnn (33,834 parameters): the mean of gradients that "
        "are clipped to 1, encoded, sent and decoded by the code of a real round. The whole budget "
        "goes into this one release, the attacker's best case (sample level, zero-out, delta = "
        f"1e-5, sound accounting). {plan.iterations} steps of Geiping et al. 2020 with known "
        f"labels; of the weights {weights} of total variation the one with the smaller mean "
        "squared error counts, a choice that favors the attacker. All mechanisms are attacked on "
        "the same images. 'Inversion, trained model' starts from the model without privacy.\n"
        f"Learned: strided_cnn trained on {plan.rows} images for {plan.rounds} rounds of a 5% "
        "sample with 10 clients at the whole budget; a decoder from outputs to images is learned "
        "on test images, refined, and measured on training images and, as a control, on test "
        "images that neither the model nor the decoder saw. 'Untrained' is the model that training "
        "starts from.\n"
        "Pixels lie in [-1/2, 1/2] (range 1); intervals are Student's 95% over updates. The "
        "paper's MSE and MAE are in other units, of normalized pixels: at a range of 1, its PSNR "
        "of 9.79 is an MSE of 0.105. The gray and the mean image need no attack; the mean is that "
        "of the test images."
    )


def _tuning(plan: ReconstructionPlan) -> str:
    named = ", ".join(f"{rate:g}" for rate in plan.rates)
    if len(plan.rates) == 1:
        return f"The learning rate is {named} and was not tuned."
    return f"Learning rates ({named}) were chosen by accuracy on held-out rows. {HELD_OUT}"


def _small(plan: ReconstructionPlan) -> str:
    return (
        f"'strided_cnn' of 33,834 parameters in place of the paper's network; {plan.rows:,} "
        "training images, not 50,000."
    )


def _reduced(plan: ReconstructionPlan) -> str:
    return (
        f"one image an update only, {plan.updates[1]} of them, epsilon "
        f"{plan.epsilons[0]:g} only, {plan.iterations} iterations; target models of {plan.rows} "
        f"rows, {plan.rounds} rounds and one learning rate, not tuned."
    )
