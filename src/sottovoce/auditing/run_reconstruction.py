"""Reconstruction of a run's training images, from a client's update or the model's outputs."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.auditing import reconstruction_scores
from sottovoce.auditing.attacks.inversion import (
    MOST_IMAGES,
    ClippedMean,
    GradientInversion,
    InversionTarget,
    LocalSteps,
    Work,
    infer_labels,
    invert,
)
from sottovoce.auditing.attacks.learned_reconstruction import (
    LearnedReconstruction,
    reconstruct_from_outputs,
)
from sottovoce.auditing.attacks.sent_updates import Sender, decoded_updates
from sottovoce.auditing.finished_run import FinishedRun
from sottovoce.auditing.reconstruction_scores import (
    MEAN_IMAGE,
    Images,
    beats,
    difference,
    gains,
    score_baselines,
    score_reconstructions,
    summary,
)
from sottovoce.core import files, parameter_rules
from sottovoce.core.charts.grids import ImageGrid, Picture, PictureRow, data_uri
from sottovoce.core.domains import Domain, Vector
from sottovoce.core.errors import ConfigError, DataError, ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.fedavg import LocalSgd, SampleClippedGradient, SendsLocalWork
from sottovoce.federated.algorithms.noisy_steps import NoisyLocalSteps
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.runs.folder import RECONSTRUCTION_NAME
from sottovoce.runs.inputs import randomness_of
from sottovoce.runs.resolve import channel_of
from sottovoce.runs.spec import RunSpec
from sottovoce.runs.statistics import normalizes, sends_statistics

RESULT = RECONSTRUCTION_NAME
MOST_ROWS = 10**5
_SHOWN = 8

Method = Literal["inversion", "learned"]
ModelAt = Literal["initial", "final"]
OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconstructionRequest:
    """The settings of a reconstruction attack.

    Attributes:
        method: "inversion" of updates, or "learned" from the model's outputs.
        images: Number of training images to attack, a multiple of `batch` and at least twice it.
        batch: Images of each update; 1 with "learned" or without known labels.
        model_at: The model that is attacked: before training ("initial") or after it ("final").
        known_labels: Whether the attacker knows the labels of the images.
        inversion: Settings of gradient inversion.
        learned: Settings of learned reconstruction.
        seed: Seed of the choice of images and of the attack.
    """

    method: Method
    images: int
    batch: int
    model_at: ModelAt
    known_labels: bool
    inversion: GradientInversion
    learned: LearnedReconstruction
    seed: int

    def __post_init__(self) -> None:
        parameter_rules.integer("images", self.images, low=2, high=MOST_ROWS)
        parameter_rules.integer("batch", self.batch, low=1, high=MOST_IMAGES)
        if self.images % self.batch or self.images < 2 * self.batch:
            raise ParameterError(
                f"--images must be a multiple of --batch {self.batch} and at least twice it, got "
                f"{self.images}: an interval needs two updates"
            )
        if self.method == "learned" and self.batch > 1:
            raise ParameterError("--batch applies to the method 'inversion' only; leave it out")
        if not self.known_labels and self.batch > 1:
            raise ParameterError(
                "labels can be inferred only from the update of a single image; set --batch 1, or "
                "let the attacker know the labels (--labels known)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result as plain data, with the original images and the reconstructed ones (`found`).

    Both have the shape (updates, batch, *image shape). Within an update the reconstructed images
    have no particular order.
    """

    result: dict[str, Any]
    originals: Images
    found: Images


def attack_reconstruction(
    run: FinishedRun, request: ReconstructionRequest, *, on_step: OnStep | None = None
) -> Outcome:
    """Run the attack, compare it with baselines and write the result into the run's folder.

    `on_step` is called with (steps done, steps in all) by the inversion. Raise ConfigError if the
    attack does not fit the run, DataError if rows are not pixels in [-1/2, 1/2], ParameterError if
    there are too few images, and OutputError if the result cannot be written.
    """
    _check_images(run)
    place = run.result_path(RESULT)
    originals, labels = _choose_images(run, request)
    mismatch, unseen = None, None
    if request.method == "inversion":
        found, mismatch = _invert_updates(run, request, originals, labels, on_step)
    else:
        found, unseen = guess_from_outputs(
            run.inputs.task,
            run.inputs.task.initial_model() if request.model_at == "initial" else run.model,
            originals,
            run.data.test_features,
            request.learned,
            seed=request.seed,
        )
    measured = score_reconstructions(originals, found)
    plain = score_baselines(originals, run.data.test_features)
    gain = gains(measured, plain[MEAN_IMAGE])
    result = {
        "attack": f"reconstruction, {request.method}",
        "mechanism": run.inputs.groups[0].mechanism.kind,
        "model_at": request.model_at,
        "images": request.images,
        "batch": request.batch,
        "labels": "known" if request.known_labels else "inferred",
        "confidence": 0.95,
        **summary(measured),
        "mismatch": None if mismatch is None else float(mismatch.mean()),
        "baselines": {name: summary(one) for name, one in plain.items()},
        "gain_over_mean_image": gain,
        "beats_mean_image": {name: beats(one) for name, one in gain.items()},
        "mse_less_on_own_rows": None if unseen is None else difference(unseen, measured.mse),
        "setting": _describe_setting(run, request),
    }
    files.write_json(place, result, sort_keys=False, mode=files.PRIVATE)
    return Outcome(result=result, originals=originals, found=found)


def picture_grid(outcome: Outcome) -> ImageGrid:
    """Return a chart of the first eight originals and the reconstructions that match them."""
    shape = outcome.originals.shape[2:]
    originals = outcome.originals.reshape(-1, *shape)[:_SHOWN]
    found = _in_order(outcome).reshape(-1, *shape)[:_SHOWN]
    return ImageGrid(
        title=f"{outcome.result['attack']}; mechanism {outcome.result['mechanism']}",
        columns=[str(number + 1) for number in range(len(originals))],
        rows=[
            PictureRow(
                name="original",
                pictures=[
                    Picture(source=data_uri(x.reshape(_picture_shape(shape)))) for x in originals
                ],
            ),
            PictureRow(name="reconstruction", pictures=pictures(originals, found)),
        ],
    )


def pictures(originals: Images, found: Images) -> list[Picture]:
    """Return pictures of the reconstructions `found`, captioned with their SSIM.

    The originals are in the same order. Where SSIM is not defined, the caption has the MSE.
    """
    if reconstruction_scores.supports_ssim(originals.shape[1:]):
        name, values = "SSIM", reconstruction_scores.structural_similarities(originals, found)
    else:
        name, values = "MSE", reconstruction_scores.mean_squared_errors(originals, found)
    shape = _picture_shape(originals.shape[1:])
    return [
        Picture(source=data_uri(image.reshape(shape)), caption=f"{name} {value:.2f}")
        for image, value in zip(found, values, strict=True)
    ]


def _in_order(outcome: Outcome) -> Images:
    """Return the reconstructions in the order of the originals that they match."""
    pairs = zip(outcome.originals, outcome.found, strict=True)
    return np.stack(
        [found[reconstruction_scores.match_rows(truth, found)] for truth, found in pairs]
    )


def _check_images(run: FinishedRun) -> None:
    """Raise unless rows are pixels, and not features computed from them."""
    if run.spec.features:
        raise ConfigError(
            "the model of this run is trained on features of images, not on images; choose a run "
            "without 'features'"
        )
    if run.inputs.num_classes is None:
        raise ConfigError(
            "the run predicts numbers, and reconstruction needs class labels; choose a run of a "
            "classification"
        )
    largest = float(np.abs(np.asarray(run.data.train_features[:1000])).max())
    if largest > 0.5 + 1e-6:
        raise DataError(
            f"pixels must lie in [-1/2, 1/2], got one of absolute value {largest:.3g}; give images "
            "as bytes, or rescale them"
        )


def _choose_images(
    run: FinishedRun, request: ReconstructionRequest
) -> tuple[Images, NDArray[np.int64]]:
    """Draw members at random and return them with their labels, (updates, batch, ...)."""
    available = len(run.data.train_labels)
    if request.images > available:
        raise ParameterError(
            f"--images must be at most the number of training rows {available}, got "
            f"{request.images}"
        )
    generator = SeededRandomness(request.seed).generator("attacked images")
    rows = generator.choice(available, request.images, replace=False)
    features = np.asarray(run.data.train_features[rows], dtype=np.float32)
    shape = (request.images // request.batch, request.batch)
    labels = np.asarray(run.data.train_labels[rows], dtype=np.int64)
    return features.reshape(*shape, *features.shape[1:]), labels.reshape(shape)


def sender_of(run: FinishedRun) -> Sender:
    """Return how clients of the run send an update.

    A client that would sample its records is assumed to use all of them. If groups of clients have
    different mechanisms, it is the first group's. Raise ConfigError if the channel does not reveal
    single messages, or if updates depend on more than the client's records.
    """
    spec = run.spec
    channel = channel_of(spec, len(run.inputs.clients))
    if not channel.shows_each:
        raise ConfigError(
            f"the channel does not reveal a single client's message ({channel.describe()}), which "
            "--method inversion needs; use --method learned, which attacks the model itself, or a "
            "run with the channel 'direct'"
        )
    if normalizes(spec) or sends_statistics(spec):
        raise ConfigError(
            "--method inversion knows clients that clip to a constant norm and send nothing but "
            "their update; use --method learned, or a run whose 'privacy.clip_norm' is a number "
            "and that has no 'evaluation.private'"
        )
    algorithm = run.inputs.algorithm
    if not isinstance(algorithm, SendsLocalWork):
        raise ConfigError(
            f"the updates of '{spec.algorithm.kind}' depend on more than the client's images; use "
            "--method learned, or a run of 'fedavg'"
        )
    if isinstance(algorithm.local_work, NoisyLocalSteps):
        raise ConfigError(
            "--method inversion repeats the local steps of a client and does not know their secret "
            "samples and noise; use --method learned, or a run without algorithm.local_work"
        )
    if isinstance(algorithm.local_work, LocalSgd) and algorithm.local_work.batch_size is not None:
        raise ConfigError(
            "--method inversion repeats the local steps of a client and does not know its secret "
            "minibatches; use --method learned, or a run without 'algorithm.batch_size'"
        )
    local = algorithm.local_work
    if isinstance(local, LocalSgd) and local.augmentation is not None:
        raise ConfigError(
            "--method inversion repeats the local steps of a client and does not know how it "
            "changed its images; use --method learned, or a run without 'algorithm.augmentation'"
        )
    if isinstance(local, LocalSgd) and not local.optimizer.is_plain_sgd:
        raise ConfigError(
            "--method inversion repeats steps of plain SGD; use --method learned, or a run without "
            "'algorithm.local_optimizer'"
        )
    if isinstance(algorithm.local_work, SampleClippedGradient):
        work = dataclasses.replace(algorithm.local_work, sampling_rate=1.0)
        every: Any = algorithm  # Algorithms are dataclasses.
        algorithm = dataclasses.replace(every, local_work=work)
    mechanism = run.inputs.groups[0].mechanism
    registration = registry.find(mechanism.kind)

    def mechanism_on(domain: Domain) -> Mechanism:
        return registration.build(domain, mechanism.parameters)

    return Sender(
        algorithm=algorithm,
        mechanism_on=mechanism_on,
        adjacency=spec.privacy.adjacency,
        rotated=spec.rotation == "on",
    )


def work_of(sender: Sender, number: int) -> Work:
    """Return what clients compute in a round: local steps, or the mean of clipped gradients.

    The attacker knows it because the spec is public.
    """
    algorithm = sender.algorithm
    assert isinstance(algorithm, SendsLocalWork), "sender_of has checked that"
    match algorithm.local_work:
        case LocalSgd(steps=steps, epochs=epochs, gradient_clip=clip) as work:
            return LocalSteps(
                steps=epochs or steps,
                learning_rate=work.learning_rate_of(number),
                gradient_clip=clip,
            )
        case SampleClippedGradient(clip_norm=clip_norm):
            return ClippedMean(clip_norm=clip_norm)
        case NoisyLocalSteps():
            raise AssertionError("sender_of has refused them")
        case _:
            assert_never(algorithm.local_work)


def _invert_updates(
    run: FinishedRun,
    request: ReconstructionRequest,
    originals: Images,
    labels: NDArray[np.int64],
    on_step: OnStep | None,
) -> tuple[Images, NDArray[np.float64]]:
    """Return the images that gradient inversion finds, and the mismatch of each update."""
    sender, task = sender_of(run), run.inputs.task
    initial = request.model_at == "initial"
    step = ClientStepInput(
        run=f"attack on {run.spec.hash}",
        round=1 if initial else run.rounds_done + 1,
        model=task.initial_model() if initial else run.model,
        state={},
        randomness=SeededRandomness(request.seed)
        if run.spec.randomness == "seeded"
        else randomness_of(run.spec),
    )
    clients = [
        ClientData(name=f"attacked-{number}", features=torch.from_numpy(x), labels=torch.tensor(y))
        for number, (x, y) in enumerate(zip(originals, labels, strict=True))
    ]
    observed = decoded_updates(sender, task, clients, step)
    if not request.known_labels:
        assert run.inputs.num_classes is not None, "checked before"
        labels = infer_labels(task, observed, run.inputs.num_classes)[:, None]
    target = InversionTarget(
        model=step.model,
        work=work_of(sender, step.round),
        observed=observed,
        labels=labels,
        image_shape=originals.shape[2:],
    )
    generator = SeededRandomness(request.seed).generator("starts")
    found = invert(task, target, request.inversion, generator, on_step=on_step)
    return found.images, found.mismatch


def guess_from_outputs(
    task: Task,
    model: Vector,
    originals: Images,
    others: NDArray[Any],
    attack: LearnedReconstruction,
    *,
    seed: int,
) -> tuple[Images, Vector]:
    """Return guesses of `originals`, and the mean squared errors of guesses of control rows.

    `originals` and the guesses have the shape (images, 1, *image shape). Control rows were not used
    in training; each has one error.
    A model's outputs on a row carry information about the row whether or not it was trained on.
    Only the part by which guesses are better on training rows has leaked in training. The control
    rows are the first of `others`, as many as `originals` but at most half; the decoder learns from
    the rest.
    """
    count = min(len(originals), len(others) // 2)
    unseen = np.asarray(others[:count], dtype=np.float32)
    auxiliary = np.asarray(others[count:], dtype=np.float32)
    rows = np.concatenate([originals[:, 0], unseen])
    guesses = reconstruct_from_outputs(task, model, rows, auxiliary, attack, seed=seed).refined
    control = reconstruction_scores.mean_squared_errors(unseen, guesses[len(originals) :])
    return guesses[: len(originals), None], control


def _describe_setting(run: FinishedRun, request: ReconstructionRequest) -> str:
    """Return the assumptions of the attack as text, for readers of the figures."""
    if request.method == "learned":
        return (
            "The attacker has the model, its outputs on training images, and test images to learn "
            "a decoder from. Outputs carry information about every image, trained on or not: what "
            "training leaks is how much better training images are guessed than other test images, "
            "the control."
        )
    labels = "knows the labels" if request.known_labels else "infers the label from the update"
    several = "s" if request.batch > 1 else ""
    groups = run.inputs.groups
    whose = "the run's mechanism" if len(groups) == 1 else f"the mechanism of '{groups[0].where}'"
    rest = (
        " Where noise is added, an attacker who knows all other records of a client is in the "
        "same position."
        if run.spec.privacy.level == "sample"
        else ""
    )
    return (
        f"A client that has {request.batch} image{several} and nothing else sends one update "
        f"under {whose}, with one round's noise; the attacker reads what the server "
        f"decodes, {labels}, and knows the model and the algorithm.{rest} Baselines: a gray "
        "image, and the mean of the "
        f"{len(run.data.test_labels)} test images."
    )


def check_drawable(spec: RunSpec, shape: tuple[int, ...]) -> None:
    """Raise ParameterError, before anything is computed, if rows of `shape` cannot be drawn.

    Images of 1 or 3 channels and flat rows that fill a square can be drawn.
    """
    shape = _picture_shape(shape)
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ParameterError(
            f"--plot draws images of 1 or 3 channels, and rows of '{spec.data.dataset}' have shape "
            f"{shape}; leave --plot out"
        )


def _picture_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in which a row is drawn.

    A flat row that fills a square, such as a row of 'digits', is drawn as a gray image.
    """
    side = math.isqrt(shape[0])
    return (1, side, side) if len(shape) == 1 and side * side == shape[0] else shape
