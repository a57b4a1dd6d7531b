"""The command `sottovoce deploy ask`, which estimates a statistic over the people of all parties.

A federation's link passes the question on to its sites; a collector asks through its relay. Both
go on with a question if this command is interrupted.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.ask_terms import SECURE_SUM, SHUFFLER, AskTerms
from sottovoce.cli.options import (
    AnswerMechanismIfAny,
    Bins,
    Categories,
    Confidence,
    LowerIfAny,
    PersonBits,
    ServerFolder,
    UpperIfAny,
    parse_numbers,
    parse_words,
)
from sottovoce.cli.output import Json, print_fields, print_json, print_table, report_progress, say
from sottovoce.cli.servers import server_of
from sottovoce.core.display import show_epsilon

if TYPE_CHECKING:
    from sottovoce.cli.servers import RunsServer

_POLL_SECONDS = 0.5
_INTERRUPTED = 130


def ask(
    folder: ServerFolder,
    statistic: Annotated[
        str, typer.Argument(help="mean, variance, histogram, quantiles or location.")
    ],
    about: Annotated[
        str, typer.Option(help="The column: a name in [columns] of the site.toml files.")
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
        int | None, typer.Option(help="Of a federation: the least number of sites that answer [1].")
    ] = None,
    deadline: Annotated[
        float,
        typer.Option(
            help="Seconds within which to answer. A relay forwards nothing earlier, so a collector "
            "always waits so long; with a shuffler also 'confirm_seconds' of collector.toml [60], "
            "in which clients confirm."
        ),
    ] = 600.0,
    channel: Annotated[
        str | None,
        typer.Option(
            help="direct: each site sends the tally of its people. secure_sum: only the sum of all "
            "tallies is revealed, and a person costs less. shuffler, of a collector: each client "
            "has one person, and the answers arrive without senders. [direct; of a collector, "
            "secure_sum]"
        ),
    ] = None,
    minimum_clients: Annotated[
        int | None,
        typer.Option(
            help="Of secure_sum and shuffler: the number of clients that follow the protocol, on "
            "whose people the charge counts [the least that the number of sites allows; of a "
            "collector, that of its file]."
        ),
    ] = None,
    colluders: Annotated[
        int | None,
        typer.Option(
            help="Of secure_sum and shuffler: the most clients that may work with the server, or "
            "with one of the two operators [1; of a collector, that of its file]."
        ),
    ] = None,
    people_per_client: Annotated[
        int | None,
        typer.Option(
            help="Of a collector's secure_sum: clients with fewer people do not take part, so that "
            "charges count on so many people of each [1]."
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Of secure_sum and shuffler: the delta at which their epsilon is printed [1e-6]."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to create [DIR/runs/NAME].")] = None,
    as_json: Json = False,
) -> None:
    """Ask sites, or the clients of a relay, about their people.

    Each answers what its own policy and ledger allow. Link or collector must be running.
    """
    from sottovoce.analytics import intervals
    from sottovoce.analytics.estimates import question_for
    from sottovoce.analytics.question import to_json
    from sottovoce.core import parameter_rules

    intervals.check_confidence(confidence)
    parameter_rules.positive("--deadline", deadline)
    given_terms = AskTerms(
        channel=channel,
        minimum_sites=minimum_sites,
        minimum_clients=minimum_clients,
        colluders=colluders,
        people_per_client=people_per_client,
        delta=delta,
    )
    server = server_of(folder)
    terms = {
        "deadline_seconds": deadline,
        "confidence": confidence,
        **server.terms(given_terms),
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
    server.check_question(question, terms)
    task = {"question": to_json(question), "about": about, **terms}
    found, path = _ask(server, f"{question.kind}-{about}", task, out)
    if as_json:
        print_json({**found, "folder": str(path)})
    else:
        _print(found, path)


def _ask(
    server: "RunsServer", name: str, task: dict[str, Any], out: Path | None
) -> tuple[dict[str, Any], Path]:
    """Return the estimate that the server wrote, and its folder."""
    from sottovoce.core import files
    from sottovoce.core.errors import DeploymentError, OutputError
    from sottovoce.deployment.machines.submitted_runs import ESTIMATE_NAME, RunSubmission

    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{out} is not an empty folder; choose another --out")
    with server.running() as runs, report_progress() as bars:
        path = (out or _create_free(server.runs_folder, name)).absolute()
        run_id = runs.submit(RunSubmission(name=name, task=task, rounds=1, out=path))
        bars.update(name, 0, 1, f"asking {server.asked}")
        try:
            while not (ended := runs.status(run_id)).has_ended:
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            say(
                f"the question stays open, and its estimate will be in {path}; to see whether it "
                f"is done run: sottovoce deploy status {server.folder}; to stop it run: sottovoce "
                f"deploy stop {server.folder} --run {run_id}",
                err=True,
            )
            raise SystemExit(_INTERRUPTED) from None
        bars.update(name, 1, 1, "done")
    if ended.failure is not None:
        raise DeploymentError(
            f"the question failed: {ended.failure}; check 'sottovoce deploy status {server.folder}'"
        )
    if not (path / ESTIMATE_NAME).exists():
        raise DeploymentError(
            f"the question has ended, but {path} has no estimate; ask again with another --out"
        )
    found: dict[str, Any] = files.read_json(path / ESTIMATE_NAME)
    return found, path


def _create_free(folder: Path, name: str) -> Path:
    """Create a folder that did not exist: each time a question is asked it gets its own."""
    from sottovoce.core import files

    number = 1
    with files.explain_os_errors("create", folder):
        while True:
            path = folder / f"{name}-{number}"
            try:
                path.mkdir(mode=files.PRIVATE_FOLDER, parents=True)
            except FileExistsError:
                number += 1
            else:
                return path


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
    print_fields(
        {
            "people": found["people"],
            **_epsilons(found),
            "bits a person": found["bits_per_person"],
            "mechanism": found["mechanism"],
            **_parties(found),
            "folder": path,
        }
    )
    for note in found["notes"]:
        say(f"note: {note}")


def _parties(found: dict[str, Any]) -> dict[str, int]:
    """Return how many sites, or clients of a relay, have answered."""
    if "clients" in found:
        clients = found["clients"]
        dropped = {"messages that were no answer": clients["dropped"]} if clients["dropped"] else {}
        return {
            "clients that answered": clients["answered"],
            "clients that were admitted": clients["admitted"],
            **dropped,
        }
    sites = found["sites"]
    return {
        "sites that answered": len(sites["answered"]),
        "sites that did not": len(sites["failed"]),
    }


def _epsilons(found: dict[str, Any]) -> dict[str, Any]:
    """Return what a person has spent, and what that assumes."""
    hidden = found.get(SECURE_SUM) or found.get(SHUFFLER)
    if hidden is None:
        return {"epsilon a person": found["epsilon"]}
    central = f"{show_epsilon(hidden['central_epsilon'])} at delta {hidden['delta']:g}"
    return {
        "epsilon a person, at most": central,
        "assumed for it": hidden["promise"],
        "epsilon if the code is seen": hidden["local_epsilon"],
    }
