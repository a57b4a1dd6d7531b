"""What one takes home: a spec, commands and Python that say the same as the sliders."""

import json
import shlex
from typing import Any

from sottovoce.core.domains import clip_norm_of, geometry_of
from sottovoce.mechanisms.registry import Parameters
from sottovoce.reporting.explorer.question import Question


def recipe(question: Question, parameters: Parameters) -> dict[str, Any]:
    """Ready to copy; there is no spec where a run could not use the mechanism."""
    return {
        "spec": spec(question) if _can_be_run(question) else None,
        "no_spec": None if _can_be_run(question) else _no_spec(question),
        "plan": plan(question),
        "calibrate": calibrate(question),
        "python": python(question, parameters),
    }


def spec(question: Question) -> str:
    """A run at this budget on the data and model that come along, to be replaced.

    The knob is left to the run: it depends on the model's own dimension.
    """
    mechanism = [f"{name} = {json.dumps(value)}" for name, value in question.free.items()]
    lines = [
        f'name = "{question.mechanism.replace("_", "-")}"',
        "seed = 1",
        f"rounds = {question.rounds}",
        "",
        "[data]                      # yours; see 'sottovoce data list'",
        'dataset = "digits"',
        "clients = 10",
        "",
        f"[model]                     # yours; explored with {question.dimension} coordinates",
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
        "[mechanism]                 # what is missing here is calibrated to the budget",
        f'kind = "{question.mechanism}"',
        *mechanism,
    ]
    return "\n".join(lines) + "\n"


def plan(question: Question) -> str:
    """The command that ranks every mechanism at this budget."""
    return _command("plan", question, ["--rounds", str(question.rounds)])


def calibrate(question: Question) -> str:
    """The command that finds this mechanism's parameters, to the seventh digit."""
    words = ["--mechanism", question.mechanism, "--rounds", str(question.rounds)]
    for name, value in question.free.items():
        words += ["--param", f"{name}={value}"]
    return _command("privacy calibrate", question, words)


def _command(name: str, question: Question, more: list[str]) -> str:
    # Planning starts from the updates, calibration from where the mechanism takes them.
    domain = question.updates if name == "plan" else question.domain
    words = [
        *("--epsilon", f"{question.epsilon!r}", "--delta", f"{question.delta!r}"),
        *("--dimension", str(question.dimension), "--clip-norm", f"{clip_norm_of(domain)!r}"),
        *("--clip-geometry", geometry_of(domain)),
        *("--adjacency", question.adjacency),
    ]
    return f"sottovoce {name} {shlex.join([*more, *words])}"


def python(question: Question, parameters: Parameters) -> str:
    """The mechanism itself, as it is drawn."""
    domain = question.domain
    where = f'"{geometry_of(domain)}", {domain.dimension}, {clip_norm_of(domain)!r}'
    given = ",\n".join(f"    {json.dumps(n)}: {v!r}" for n, v in parameters.items())
    return (
        "from sottovoce.core import clipped\n"
        "from sottovoce.mechanisms import find\n\n"
        f'registration = find("{question.mechanism}")\n'
        f"mechanism = registration.build(clipped({where}), {{\n{given},\n}})\n"
    )


def _can_be_run(question: Question) -> bool:
    """Runs clip updates in l2."""
    made_for = {type(domain).__name__ for domain in question.registration.example_domains}
    return question.clip_geometry == "l2" and "L2Ball" in made_for


def _no_spec(question: Question) -> str:
    return (
        f"Runs clip updates in l2, and this is '{question.mechanism}' under "
        f"{question.clip_geometry}: take the Python below, or choose l2."
    )
