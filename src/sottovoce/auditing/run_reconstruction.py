"""Reconstruct training images of a finished run: from what a client sends, or from the outputs."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.auditing import reconstruction_scores
from sottovoce.auditing.attacks.inversion import (
    MOST_IMAGES,
    ClippedMean,
    Inversion,
    LocalSteps,
    Target,
    Work,
    inferred_labels,
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
    baselines,
    beats,
    difference,
    gains,
    scores,
    summary,
)
from sottovoce.core import files, parameter_rules
from sottovoce.core.charts.grids import ImageGrid, Picture, PictureRow, data_uri
from sottovoce.core.domains import Domain, Vector
from sottovoce.core.errors import ConfigError, DataError, ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import Step
from sottovoce.federated.algorithms.fedavg import LocalSgd, SampleClippedGradient, SendsLocalWork
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.runs.folder import RECONSTRUCTION_NAME
from sottovoce.runs.inputs import randomness_of
from sottovoce.runs.resolve import channel_of
from sottovoce.runs.spec import RunSpec

RESULT = RECONSTRUCTION_NAME
MOST_ROWS = 10**5
_SHOWN = 8

Method = Literal["inversion", "learned"]
ModelAt = Literal["initial", "final"]
OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to attack: `images` of the members, so many of them in each update (`batch`)."""

    method: Method
    images: int
    batch: int
    model_at: ModelAt
    known_labels: bool
    inversion: Inversion
    learned: LearnedReconstruction
    seed: int

    def __post_init__(self) -> None:
        parameter_rules.integer("images", self.images, low=2, high=MOST_ROWS)
        parameter_rules.integer("batch", self.batch, low=1, high=MOST_IMAGES)
        if self.images % self.batch or self.images < 2 * self.batch:
            raise ParameterError(
                f"--images {self.images} must be a multiple of --batch {self.batch}, and at least "
                "twice it: one update has no interval"
            )
        if self.method == "learned" and self.batch > 1:
            raise ParameterError("--batch is for the method 'inversion'; leave it out")
        if not self.known_labels and self.batch > 1:
            raise ParameterError(
                "labels are inferred from the update of one image; set --batch 1, or let the "
                "attacker know the labels"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result as plain data, and what it was computed from, both (updates, batch, *shape)."""

    result: dict[str, Any]
    originals: Images
    found: Images


def attack_reconstruction(
    run: FinishedRun, request: Request, *, on_step: OnStep | None = None
) -> Outcome:
    """Attack, measure beside the baselines, and leave the result in the run's folder."""
    _check_images(run)
    place = run.place_of(RESULT)
    originals, labels = _chosen(run, request)
    mismatch, unseen = None, None
    if request.method == "inversion":
        found, mismatch = _inverted(run, request, originals, labels, on_step)
    else:
        found, unseen = guessed_from_outputs(
            run.inputs.task,
            run.inputs.task.initial_model() if request.model_at == "initial" else run.model,
            originals,
            run.data.test_features,
            request.learned,
            seed=request.seed,
        )
    measured = scores(originals, found)
    plain = baselines(originals, run.data.test_features)
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
        "setting": _setting(run, request),
    }
    files.write_json(place, result, sort_keys=False, mode=files.PRIVATE)
    return Outcome(result=result, originals=originals, found=found)


def picture_grid(outcome: Outcome) -> ImageGrid:
    """Originals beside reconstructions, the first few."""
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
                    Picture(source=data_uri(x.reshape(_drawn_shape(shape)))) for x in originals
                ],
            ),
            PictureRow(name="reconstruction", pictures=pictures(originals, found)),
        ],
    )


def pictures(originals: Images, found: Images) -> list[Picture]:
    """Found images, each with how near it is to its original."""
    if reconstruction_scores.has_similarity(originals.shape[1:]):
        name, values = "SSIM", reconstruction_scores.structural_similarities(originals, found)
    else:
        name, values = "MSE", reconstruction_scores.mean_squared_errors(originals, found)
    shape = _drawn_shape(originals.shape[1:])
    return [
        Picture(source=data_uri(image.reshape(shape)), caption=f"{name} {value:.2f}")
        for image, value in zip(found, values, strict=True)
    ]


def _in_order(outcome: Outcome) -> Images:
    pairs = zip(outcome.originals, outcome.found, strict=True)
    return np.stack([found[reconstruction_scores.matched(truth, found)] for truth, found in pairs])


def _check_images(run: FinishedRun) -> None:
    """Rows must be what a person would recognise: pixels, not features computed from them."""
    if run.spec.features:
        raise ConfigError(
            "the model of this run sees features of images, not images; attack a run without "
            "'features'"
        )
    if run.inputs.num_classes is None:
        raise ConfigError("the run predicts numbers; reconstruction is for classes")
    largest = float(np.abs(np.asarray(run.data.train_features[:1000])).max())
    if largest > 0.5 + 1e-6:
        raise DataError(
            f"pixels must lie in [-1/2, 1/2], and one is {largest:.3g} from 0; give images as "
            "bytes, or scale them"
        )


def _chosen(run: FinishedRun, request: Request) -> tuple[Images, NDArray[np.int64]]:
    """Members drawn at random, in rows of as many as an update has."""
    available = len(run.data.train_labels)
    if request.images > available:
        raise ParameterError(
            f"--images {request.images} exceeds the {available} training rows; ask for fewer"
        )
    generator = SeededRandomness(request.seed).generator("attacked images")
    rows = generator.choice(available, request.images, replace=False)
    features = np.asarray(run.data.train_features[rows], dtype=np.float32)
    shape = (request.images // request.batch, request.batch)
    labels = np.asarray(run.data.train_labels[rows], dtype=np.int64)
    return features.reshape(*shape, *features.shape[1:]), labels.reshape(shape)


def sender_of(run: FinishedRun) -> Sender:
    """How clients of the run send; records that a client would sample are taken to be in."""
    spec = run.spec
    channel = channel_of(spec, len(run.inputs.clients))
    if not channel.shows_each:
        raise ConfigError(
            f"nobody sees a single client's message here ({channel.describe()}); reconstruction "
            "from updates is for the channel 'direct'. --method learned attacks the model itself"
        )
    algorithm = run.inputs.algorithm
    if not isinstance(algorithm, SendsLocalWork):
        raise ConfigError(
            f"what a client of '{spec.algorithm.kind}' sends depends on more than its images; use "
            "--method learned, or a run of 'fedavg'"
        )
    if isinstance(algorithm.local_work, SampleClippedGradient):
        work = dataclasses.replace(algorithm.local_work, sampling_rate=1.0)
        every: Any = algorithm  # algorithms are dataclasses
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


def work_of(sender: Sender) -> Work:
    """What the attacker simulates: the spec is public, and so is what clients do."""
    algorithm = sender.algorithm
    assert isinstance(algorithm, SendsLocalWork), "sender_of has checked that"
    match algorithm.local_work:
        case LocalSgd(steps=steps, learning_rate=rate):
            return LocalSteps(steps=steps, learning_rate=rate)
        case SampleClippedGradient(clip_norm=clip_norm):
            return ClippedMean(clip_norm=clip_norm)


def _inverted(
    run: FinishedRun,
    request: Request,
    originals: Images,
    labels: NDArray[np.int64],
    on_step: OnStep | None,
) -> tuple[Images, NDArray[np.float64]]:
    sender, task = sender_of(run), run.inputs.task
    initial = request.model_at == "initial"
    step = Step(
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
        labels = inferred_labels(task, observed, run.inputs.num_classes)[:, None]
    target = Target(
        model=step.model,
        work=work_of(sender),
        observed=observed,
        labels=labels,
        image_shape=originals.shape[2:],
    )
    generator = SeededRandomness(request.seed).generator("starts")
    found = invert(task, target, request.inversion, generator, on_step=on_step)
    return found.images, found.mismatch


def guessed_from_outputs(
    task: Task,
    model: Vector,
    originals: Images,
    others: NDArray[Any],
    attack: LearnedReconstruction,
    *,
    seed: int,
) -> tuple[Images, Vector]:
    """Guesses at `originals`, and the squared errors of guesses at rows that were not trained on.

    Outputs on a row say something of the row whether or not it was trained on: only what is better
    on a model's own rows has leaked in training. The control rows are taken from `others`, and the
    decoder learns from the rest of them.
    """
    count = min(len(originals), len(others) // 2)
    unseen = np.asarray(others[:count], dtype=np.float32)
    auxiliary = np.asarray(others[count:], dtype=np.float32)
    rows = np.concatenate([originals[:, 0], unseen])
    guesses = reconstruct_from_outputs(task, model, rows, auxiliary, attack, seed=seed).refined
    control = reconstruction_scores.mean_squared_errors(unseen, guesses[len(originals) :])
    return guesses[: len(originals), None], control


def _setting(run: FinishedRun, request: Request) -> str:
    """What was assumed, for whoever reads the figures."""
    if request.method == "learned":
        return (
            "The attacker has the model, its outputs on training images, and test images to learn "
            "a decoder from. Outputs tell of any image, trained on or not: what training leaks is "
            "how much better training images are guessed than other test images, the control."
        )
    labels = "knows the labels" if request.known_labels else "infers the label from the update"
    several = "s" if request.batch > 1 else ""
    groups = run.inputs.groups
    whose = "the run's mechanism" if len(groups) == 1 else f"the mechanism of '{groups[0].where}'"
    rest = (
        " Where noise is added, an attacker who knows all of a client's other records is in the "
        "same place."
        if run.spec.privacy.level == "sample"
        else ""
    )
    return (
        f"A client that has {request.batch} image{several} and nothing else sends one update "
        f"under {whose}, with one round's noise; the attacker reads what the server "
        f"decodes, {labels}, and knows the model and the algorithm.{rest} Baselines: a grey "
        "image, and the mean of the "
        f"{len(run.data.test_labels)} test images."
    )


def has_pictures(spec: RunSpec, shape: tuple[int, ...]) -> None:
    """Refuse a picture of rows that are none, before anything is computed."""
    shape = _drawn_shape(shape)
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ParameterError(
            f"--plot draws images of 1 or 3 channels, and rows of '{spec.data.dataset}' have shape "
            f"{shape}; leave it out"
        )


def _drawn_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """As it is; a flat row that fills a square is drawn as one, in grey: digits come flat."""
    side = math.isqrt(shape[0])
    return (1, side, side) if len(shape) == 1 and side * side == shape[0] else shape
