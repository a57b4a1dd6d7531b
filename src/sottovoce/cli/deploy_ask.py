"""The command `sottovoce deploy ask`, which estimates a statistic over the people of all sites."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.options import (
    AnswerMechanismIfAny,
    Bins,
    Categories,
    Confidence,
    FederationFolder,
    LowerIfAny,
    PersonBits,
    UpperIfAny,
    parse_numbers,
    parse_words,
)
from sottovoce.cli.output import Json, print_fields, print_json, print_table, report_progress, say
from sottovoce.core.display import show_epsilon

_POLL_SECONDS = 0.5
DIRECT, SECURE_SUM = "direct", "secure_sum"


def ask(
    folder: FederationFolder,
    statistic: Annotated[
        str, typer.Argument(help="mean, variance, histogram, quantiles or location.")
    ],
    about: Annotated[
        str, typer.Option(help="The column: a name in [columns] of the sites' files.")
    ],
    epsilon: Annotated[
        float,
        typer.Option(
            help="Epsilon of each person's answer: pure, local DP; for location, per km between "
            "two places."
        ),
    ],
    lower: LowerIfAny = None,
    upper: UpperIfAny = None,
    bins: Bins = None,
    categories: Categories = None,
    quantiles: Annotated[
        str | None, typer.Option(help="Levels of quantiles, between 0 and 1 [0.25,0.5,0.75].")
    ] = None,
    center: Annotated[
        str | None,
        typer.Option("--center", "--centre", help="The map's center: LATITUDE,LONGITUDE."),
    ] = None,
    side_km: Annotated[float | None, typer.Option(help="The map's side, in km.")] = None,
    bits: PersonBits = None,
    mechanism: AnswerMechanismIfAny = None,
    confidence: Confidence = 0.95,
    minimum_sites: Annotated[
        int, typer.Option(help="The least number of sites that must answer.")
    ] = 1,
    deadline: Annotated[
        float, typer.Option(help="Seconds within which sites must answer.")
    ] = 600.0,
    channel: Annotated[
        str,
        typer.Option(
            help="direct: each site sends the tally of its people. secure_sum: only the sum of the "
            "tallies of all sites is revealed, and a person costs less."
        ),
    ] = DIRECT,
    minimum_clients: Annotated[
        int | None,
        typer.Option(
            help="Of a secure sum: the number of sites that follow the protocol, on whose people "
            "the charge counts [the least that the number of sites allows]."
        ),
    ] = None,
    colluders: Annotated[
        int, typer.Option(help="Of a secure sum: the most sites that may work with the server.")
    ] = 1,
    delta: Annotated[
        float, typer.Option(help="Of a secure sum: the delta at which its epsilon is printed.")
    ] = 1e-6,
    out: Annotated[Path | None, typer.Option(help="The folder to create [DIR/runs/NAME].")] = None,
    as_json: Json = False,
) -> None:
    """Ask the sites about their people; each answers what its policy and ledger allow."""
    from sottovoce.analytics import intervals
    from sottovoce.analytics.estimates import question_for
    from sottovoce.core.errors import ParameterError

    intervals.check_confidence(confidence)
    if minimum_sites < 1 or not deadline > 0.0:
        raise ParameterError(
            "--minimum-sites must be at least 1, and --deadline a positive number of seconds"
        )
    waiting = {
        "deadline_seconds": deadline,
        "minimum_sites": minimum_sites,
        "confidence": confidence,
        **_channel(channel, minimum_clients, colluders, delta),
    }
    given: dict[str, Any] = {
        "lower": lower,
        "upper": upper,
        "bins": bins,
        "categories": parse_words("--categories", categories) if categories else None,
        "quantiles": quantiles and parse_numbers("--quantiles", quantiles),
        "center": center and tuple(parse_numbers("--center", center)),
        "side_km": side_km,
        "bits": bits,
        "mechanism": mechanism,
    }
    options = {name: value for name, value in given.items() if value is not None}
    question = question_for(statistic, epsilon=epsilon, **options)
    if channel != DIRECT:
        from sottovoce.deployment.masked_questions import check_countable

        check_countable(question)
    found, path = _asked(folder, question, about, waiting, out)
    if as_json:
        print_json({**found, "folder": str(path)})
    else:
        _print(found, path)


def _channel(
    kind: str, minimum_clients: int | None, colluders: int, delta: float
) -> dict[str, Any]:
    """Return the terms of a secure sum for the link's server; empty for plain answers."""
    from sottovoce.core import parameter_rules
    from sottovoce.core.errors import UnknownNameError
    from sottovoce.deployment.masked_questions import channel_of_sum

    if kind not in (DIRECT, SECURE_SUM):
        raise UnknownNameError.among("channel of a question", kind, (DIRECT, SECURE_SUM))
    if kind == DIRECT:
        return {}
    channel_of_sum(2 if minimum_clients is None else minimum_clients, colluders)
    parameter_rules.delta(delta)
    return {
        "channel": kind,
        "minimum_clients": minimum_clients or 0,
        "colluders": colluders,
        "delta": delta,
    }


def _asked(
    folder: Path, question: Any, about: str, waiting: dict[str, Any], out: Path | None
) -> tuple[dict[str, Any], Path]:
    """Return the estimate that the link's server wrote, and its folder."""
    from sottovoce.analytics.question import to_json
    from sottovoce.core import files
    from sottovoce.core.errors import DeploymentError, OutputError
    from sottovoce.deployment.asking import ESTIMATE_NAME
    from sottovoce.deployment.machines.federation import Federation
    from sottovoce.flower.link import running_link
    from sottovoce.flower.runs import RunSubmission, submit

    federation = Federation.read(folder)
    name = f"{question.kind}-{about}"
    path = (out or _free(federation.runs_folder, name)).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputError(f"{path} is not an empty folder; choose another --out")
    task = {"question": to_json(question), "about": about, **waiting}
    with running_link(federation) as control, report_progress() as bars:
        run_id = submit(RunSubmission(name=name, task=task, rounds=1, out=path), federation)
        bars.update(name, 0, 1, f"asking {len(federation.sites)} sites")
        while not (ended := control.run(run_id)).has_ended:
            time.sleep(_POLL_SECONDS)
        bars.update(name, 1, 1, "done")
    if ended.failure is not None:
        raise DeploymentError(
            f"the question failed: {ended.failure}; check 'sottovoce deploy status {folder}'"
        )
    if not (path / ESTIMATE_NAME).exists():
        raise DeploymentError(
            f"the question has ended, but {path} has no estimate; ask again with another --out"
        )
    found: dict[str, Any] = files.read_json(path / ESTIMATE_NAME)
    return found, path


def _free(folder: Path, name: str) -> Path:
    """Return a folder that does not exist yet: each time a question is asked it gets its own."""
    number = 1
    while (folder / f"{name}-{number}").exists():
        number += 1
    return folder / f"{name}-{number}"


def _print(found: dict[str, Any], path: Path) -> None:
    single = "labels" not in found
    labels = [found["statistic"]] if single else found["labels"]
    estimates = [found["estimate"]] if single else found["estimate"]
    intervals = [found["interval"]] if single else found["interval"]
    rows = [
        [label, f"{value:.6g}", *([f"{end:.6g}" for end in ends] if ends else ["none", "none"])]
        for label, value, ends in zip(labels, estimates, intervals, strict=True)
    ]
    print_table([found["statistic"], "estimate", "low", "high"], rows)
    sites = found["sites"]
    print_fields(
        {
            "people": found["people"],
            **_epsilons(found),
            "bits a person": found["bits_per_person"],
            "mechanism": found["mechanism"],
            "sites that answered": len(sites["answered"]),
            "sites that did not": len(sites["failed"]),
            "folder": path,
        }
    )
    for note in found["notes"]:
        say(f"note: {note}")


def _epsilons(found: dict[str, Any]) -> dict[str, Any]:
    """Return what a person has spent, and what that assumes."""
    summed = found.get("secure_sum")
    if summed is None:
        return {"epsilon a person": found["epsilon"]}
    central = f"{show_epsilon(summed['central_epsilon'])} at delta {summed['delta']:g}"
    return {
        "epsilon a person, at most": central,
        "assumed for it": summed["promise"],
        "epsilon if the code is seen": summed["local_epsilon"],
    }
