"""The answers of the explorer: a mechanism's table, bias, variance, bytes and epsilon at a budget.

Calibration, output distributions and accountants are those of runs. The table of a finite
distribution is reduced to the rows and columns that a chart can show. A spec, commands and Python
code that repeat the answer are part of it.
"""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sottovoce.core import files
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon
from sottovoce.core.domains import Domain, Vector, clip_norm_of, enclosing_ball, geometry_of
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import FiniteLaw, Law, Mechanism, bits_per_coordinate
from sottovoce.mechanisms.registry import Parameters, Registration
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.planning.prediction import largest_coordinate, predict
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent
from sottovoce.privacy.events import Repeated
from sottovoce.protocol.message import HEADER_BYTES
from sottovoce.reporting.explorer.question import ExplorerQuestion


def recipe(question: ExplorerQuestion, parameters: Parameters) -> dict[str, Any]:
    """Return a spec, commands and Python code that use the mechanism of a question.

    Args:
        question: The question.
        parameters: The mechanism's parameters, with the calibrated one.

    Returns:
        The texts `spec`, `plan`, `calibrate` and `python`. If runs cannot use the mechanism, `spec`
        is None and `no_spec` says why; otherwise `no_spec` is None.
    """
    return {
        "spec": spec(question) if _can_be_run(question) else None,
        "no_spec": None if _can_be_run(question) else _no_spec(question),
        "plan": plan(question),
        "calibrate": calibrate(question),
        "python": python(question, parameters),
    }


def spec(question: ExplorerQuestion) -> str:
    """Return a spec (TOML) with a question's mechanism and budget; data and model are examples.

    The calibrated parameter is left out: the run computes it for the dimension of its model.
    """
    mechanism = [f"{name} = {json.dumps(value)}" for name, value in question.free.items()]
    lines = [
        f'name = "{question.mechanism.replace("_", "-")}"',
        "seed = 1",
        f"rounds = {question.rounds}",
        "",
        "[data]                      # replace it; see 'sottovoce data list'",
        'dataset = "digits"',
        "clients = 10",
        "",
        f"[model]                     # replace it; explored with {question.dimension} coordinates",
        'kind = "linear"',
        "",
        "[algorithm]",
        'kind = "fedavg"',
        "server_learning_rate = 1.0",
        "local_steps = 5",
        "local_learning_rate = 0.1",
        "",
        "[privacy]",
        'level = "client"',
        f'adjacency = "{question.adjacency}"',
        f"clip_norm = {question.clip_norm!r}",
        f"epsilon = {question.epsilon!r}",
        f"delta = {question.delta!r}",
        "",
        "[mechanism]                 # the parameter left out is calibrated to the budget",
        f'kind = "{question.mechanism}"',
        *mechanism,
    ]
    return "\n".join(lines) + "\n"


def plan(question: ExplorerQuestion) -> str:
    """Return the command `sottovoce plan`, which ranks all mechanisms at a question's budget."""
    return _command("plan", question, ["--rounds", str(question.rounds)])


def calibrate(question: ExplorerQuestion) -> str:
    """Return the command `sottovoce privacy calibrate` for a question's mechanism and budget.

    It calibrates at least as precisely as the explorer does.
    """
    words = ["--mechanism", question.mechanism, "--rounds", str(question.rounds)]
    for name, value in question.free.items():
        words += ["--param", f"{name}={value}"]
    return _command("privacy calibrate", question, words)


def _command(name: str, question: ExplorerQuestion, more: list[str]) -> str:
    # Planning takes the domain of the updates, calibration that of the mechanism's input.
    domain = question.updates if name == "plan" else question.domain
    words = [
        *("--epsilon", f"{question.epsilon!r}", "--delta", f"{question.delta!r}"),
        *("--dimension", str(question.dimension), "--clip-norm", f"{clip_norm_of(domain)!r}"),
        *("--clip-geometry", geometry_of(domain)),
        *("--adjacency", question.adjacency),
    ]
    return f"sottovoce {name} {shlex.join([*more, *words])}"


def python(question: ExplorerQuestion, parameters: Parameters) -> str:
    """Return Python code that builds the mechanism of a question.

    Args:
        question: The question.
        parameters: The mechanism's parameters, with the calibrated one.
    """
    domain = question.domain
    where = f'"{geometry_of(domain)}", {domain.dimension}, {clip_norm_of(domain)!r}'
    given = ",\n".join(f"    {json.dumps(n)}: {v!r}" for n, v in parameters.items())
    return (
        "from sottovoce.core import clipped_domain\n"
        "from sottovoce.mechanisms import find\n\n"
        f'registration = find("{question.mechanism}")\n'
        f"mechanism = registration.build(clipped_domain({where}), {{\n{given},\n}})\n"
    )


def _can_be_run(question: ExplorerQuestion) -> bool:
    """Return whether a run can use the mechanism; runs clip updates in l2."""
    made_for = {type(domain).__name__ for domain in question.registration.example_domains}
    return question.clip_geometry == "l2" and "L2Ball" in made_for


def _no_spec(question: ExplorerQuestion) -> str:
    return (
        f"Runs clip updates in l2, but this is '{question.mechanism}' under "
        f"{question.clip_geometry}: use the Python code below, or choose l2."
    )


MOST_COLUMNS = 64
_NEGLIGIBLE = 1e-4  # the largest probability of letters that are not drawn


def table_of(inputs: Vector, laws: Sequence[Law]) -> dict[str, Any] | None:
    """Return the probability of each letter given each input, for a chart.

    A letter is the decoded value of a code. Where there are more than `MOST_COLUMNS` letters, those
    at both ends with negligible probability are left out, and adjacent ones are merged: the
    probability is their sum, and the letter their mean.

    Args:
        inputs: The inputs, one coordinate each.
        laws: The output distribution of each input.

    Returns:
        `letters` in increasing order, and `matrix` with a row of probabilities for each input; also
        how many letters there are, how many are drawn and merged, and the lowest and highest. None
        if there are infinitely many outputs.
    """
    rows = [law.table[0] for law in laws if isinstance(law, FiniteLaw)]
    first = laws[0]
    if len(rows) < len(inputs) or not isinstance(first, FiniteLaw):
        return None
    matrix, letters = np.stack(rows), first.points
    order = np.argsort(letters)
    matrix, letters = matrix[:, order], letters[order]
    low, high = _drawn(matrix)
    together = -(-(high - low) // MOST_COLUMNS)
    groups = np.arange(low, high, together)
    return {
        "letters": [float(letters[g : min(g + together, high)].mean()) for g in groups],
        "matrix": np.add.reduceat(matrix[:, :high], groups, axis=1).tolist(),
        "all_letters": len(letters),
        "drawn_letters": int(high - low),
        "letters_together": int(together),
        "lowest": float(letters[0]),
        "highest": float(letters[-1]),
    }


def _drawn(matrix: Vector) -> tuple[int, int]:
    """Return the range of columns that has all but negligible probability for every input."""
    if matrix.shape[1] <= MOST_COLUMNS:
        return 0, matrix.shape[1]
    below = np.cumsum(matrix, axis=1).max(axis=0)
    above = np.cumsum(matrix[:, ::-1], axis=1).max(axis=0)[::-1]
    low = int(np.searchsorted(below, _NEGLIGIBLE))
    high = matrix.shape[1] - int(np.searchsorted(above[::-1], _NEGLIGIBLE))
    return low, max(high, low + 1)


_TOLERANCE = 1e-4  # of the calibrated parameter; any value that is found keeps the budget
_CURVE_POINTS, _SHORTEST_CURVE, _INPUTS = 13, 10, 49
_REFERENCE = "gaussian"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A mechanism that is calibrated to a budget, and what it spends.

    Attributes:
        registration: The mechanism's registration.
        parameters: All of its parameters.
        mechanism: The mechanism.
        spent: What all rounds of the question spend; at most the budget.
    """

    registration: Registration
    parameters: Parameters
    mechanism: Mechanism
    spent: PrivacySpent

    @property
    def bytes_per_message(self) -> int:
        """The bytes of a message, header included."""
        domain = self.mechanism.input_domain
        bits = self.mechanism.code_format().payload_bits(domain.dimension)
        return HEADER_BYTES + (bits + 7) // 8


@lru_cache(maxsize=256)
def answer(question: ExplorerQuestion) -> dict[str, Any]:
    """Return the answer to a question as plain data; infinite numbers are None.

    It has the calibrated parameters, what all rounds spend, the bytes of a message, the predicted
    mean squared error of a coordinate and its ratio to that of the Gaussian mechanism at the same
    budget, bias and variance by input, and code that repeats it.

    Raises:
        ParameterError: No parameter keeps the budget, or calibration would take minutes and the
            question does not allow it (`slow`).
    """
    found = _calibrated_for(question)
    mse = predict(found.registration, found.parameters, found.mechanism, question.updates)
    described = {
        "mechanism": question.mechanism,
        "summary": found.registration.summary,
        "parameters": registry.parameters_of(found.mechanism),
        "calibrated": found.registration.calibrated_parameter
        and found.registration.calibrated_parameter.parameter,
        "domain": _describe_domain(found.mechanism.input_domain),
        "sampling_grade": found.mechanism.sampling,
        "spent": _describe_spent(found.spent),
        "bits_per_coordinate": bits_per_coordinate(found.mechanism),
        "bytes_per_message": found.bytes_per_message,
        "header_bytes": HEADER_BYTES,
        "bytes_all_rounds": found.bytes_per_message * question.rounds,
        "float32_bytes": HEADER_BYTES + 4 * question.dimension,
        "mse": mse.mse,
        "unbiased_within": mse.unbiased_within,
        "typical_coordinate": _typical(question),
        "gaussian": _reference(question, mse.mse),
        "law": _law(question, found),
        "recipe": recipe(question, found.parameters),
    }
    plain: dict[str, Any] = files.finite(described)
    return plain


@lru_cache(maxsize=256)
def curve(question: ExplorerQuestion) -> dict[str, Any]:
    """Return how epsilon grows with the rounds, by every accountant that has a bound.

    The mechanism is calibrated to the question's budget. All lists have an entry for each number in
    `rounds`; `bounds` has a list for each accountant. Infinite numbers are None.

    Raises:
        ParameterError: As for `answer`.
    """
    found = _calibrated_for(question)
    event = _terms(question)(found.mechanism)
    last = max(question.rounds, _SHORTEST_CURVE)
    spread = {round(last ** (n / (_CURVE_POINTS - 1))) for n in range(_CURVE_POINTS)}
    counts = sorted(spread | {question.rounds})
    spent = [privacy_spent(Repeated(event=event, count=n), question.delta) for n in counts]
    names = list(dict.fromkeys(name for one in spent for name, _ in one.bounds))
    plain: dict[str, Any] = files.finite(
        {
            "rounds": counts,
            "epsilon": [one.epsilon for one in spent],
            "shown": [show_epsilon(one.epsilon) for one in spent],
            "accountant": [one.accountant for one in spent],
            "bounds": {name: [dict(one.bounds).get(name) for one in spent] for name in names},
            "budget": question.epsilon,
        }
    )
    return plain


@lru_cache(maxsize=256)
def _calibrated_for(question: ExplorerQuestion) -> Calibrated:
    registration, domain = question.registration, question.domain
    if isinstance(domain, registration.slow_on) and not question.slow:
        raise ParameterError(
            f"every value that calibration tries for '{question.mechanism}' is a design to solve "
            "here, which takes a minute or more; allow computations of a minute"
        )
    return _calibrated(registration, domain, question.free, question)


@lru_cache(maxsize=64)
def _reference_for(question: ExplorerQuestion) -> Calibrated:
    """Return the Gaussian mechanism at the same budget, on a ball that contains the updates."""
    domain = (
        question.updates if question.clip_geometry == "l2" else enclosing_ball(question.updates)
    )
    return _calibrated(registry.find(_REFERENCE), domain, {}, question)


def _calibrated(
    registration: Registration, domain: Domain, free: Parameters, question: ExplorerQuestion
) -> Calibrated:
    parameters: Parameters = registration.calibrated(
        domain,
        free,
        rounds=question.rounds,
        epsilon=question.epsilon,
        delta=question.delta,
        event_of=_terms(question),
        relative_tolerance=_TOLERANCE,
    )
    mechanism, spent = _spent_with(registration, domain, parameters, question)
    rounded = _rounded(registration, parameters)
    with_rounded = _spent_with(registration, domain, rounded, question)
    if with_rounded[1].epsilon <= question.epsilon:
        parameters, (mechanism, spent) = rounded, with_rounded
    if spent.epsilon > question.epsilon:  # 'auto' may choose differently than in calibration
        raise ParameterError(
            f"the calibrated mechanism spends {spent}, above epsilon {question.epsilon:g}; choose "
            "another epsilon or setting"
        )
    return Calibrated(
        registration=registration, parameters=parameters, mechanism=mechanism, spent=spent
    )


def _terms(question: ExplorerQuestion) -> ReleaseTerms:
    return ReleaseTerms(adjacency=Adjacency.parse(question.adjacency))


def _spent_with(
    registration: Registration, domain: Domain, parameters: Parameters, question: ExplorerQuestion
) -> tuple[Mechanism, PrivacySpent]:
    mechanism = registration.build(domain, parameters)
    event = _terms(question)(mechanism)
    return mechanism, privacy_spent(Repeated(event=event, count=question.rounds), question.delta)


def _rounded(registration: Registration, parameters: Parameters) -> Parameters:
    """Return the parameters with four digits of the calibrated one.

    Designs for such values are shipped or already stored.
    """
    assert registration.calibrated_parameter is not None
    name = registration.calibrated_parameter.parameter
    return {**parameters, name: float(f"{parameters[name]:.4g}")}


def _reference(question: ExplorerQuestion, mse: float) -> dict[str, Any]:
    # The reference is the Gaussian mechanism for the same budget and update.
    same = dataclasses.replace(question, mechanism=_REFERENCE, variant=0, bits=1, slow=False)
    found = _reference_for(same)
    reference = predict(found.registration, found.parameters, found.mechanism, question.updates)
    return {
        "noise_stddev": getattr(found.mechanism, "noise_stddev", None),
        "variance": reference.mse,
        "bytes_per_message": found.bytes_per_message,
        "times_the_error": mse / reference.mse,
        "times_fewer_bytes": found.bytes_per_message / _calibrated_for(question).bytes_per_message,
        "shown_epsilon": show_epsilon(found.spent.epsilon),
    }


def _describe_domain(domain: Domain) -> dict[str, Any]:
    return {
        "geometry": geometry_of(domain),
        "clip_norm": clip_norm_of(domain),
        "dimension": domain.dimension,
    }


def _describe_spent(spent: PrivacySpent) -> dict[str, Any]:
    return {
        "epsilon": spent.epsilon,
        "shown": show_epsilon(spent.epsilon),
        "delta": spent.delta,
        "adjacency": str(spent.adjacency),
        "accountant": spent.accountant,
        "assumes": spent.assumes,
        "bounds": {name: show_epsilon(bound) for name, bound in spent.bounds},
    }


def _typical(question: ExplorerQuestion) -> float:
    """Return the size of a coordinate of an update of full norm whose coordinates are equal."""
    power = {"l2": 0.5, "l1": 1.0, "linf": 0.0}[question.clip_geometry]
    return question.clip_norm * float(np.float64(question.dimension) ** -power)


def _law(question: ExplorerQuestion, found: Calibrated) -> dict[str, Any]:
    """Return bias and variance of a decoded coordinate by its value, and the table of letters.

    For a mechanism that is not coordinatewise, the other coordinates are 0.
    """
    mechanism = found.mechanism
    if found.registration.coordinatewise:
        alone: Domain = dataclasses.replace(mechanism.input_domain, dimension=1)  # type: ignore[type-var]
        mechanism = found.registration.build(alone, found.parameters)
    end = largest_coordinate(question.updates)
    inputs = np.linspace(-end, end, _INPUTS)
    laws = []
    for x in inputs.tolist():
        spike = np.zeros(mechanism.input_domain.dimension)
        spike[0] = x
        law = mechanism.law(spike)
        laws.append((law, float(law.mean()[0]), float(law.variance()[0])))
    return {
        "coordinatewise": found.registration.coordinatewise,
        "inputs": inputs.tolist(),
        "bias": [mean - x for x, (_, mean, _) in zip(inputs.tolist(), laws, strict=True)],
        "variance": [variance for _, _, variance in laws],
        "table": table_of(inputs, [law for law, _, _ in laws]),
    }
