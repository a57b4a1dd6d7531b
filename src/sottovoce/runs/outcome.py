"""What a run came to: its header, a row for each round, its result, and what to beware of."""

import dataclasses
import math
import statistics
from collections import Counter
from typing import Any, assert_never

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import ConfigError
from sottovoce.core.files import finite_or_none
from sottovoce.federated.training import Progress, RoundRecord, Training
from sottovoce.learning.task import SCORES
from sottovoce.ledger.records import SpendingRecord
from sottovoce.mechanisms.mechanism import Mechanism, bits_per_coordinate
from sottovoce.mechanisms.release import local_event
from sottovoce.privacy import events
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import (
    SAMPLE_ASSUMPTIONS,
    assumptions,
    assumptions_in_words,
    multiset,
    without_promises,
)
from sottovoce.privacy.events import NonPrivate, PrivacyEvent
from sottovoce.runs import idle_rounds
from sottovoce.runs.algorithms import algorithm_words, facts_of
from sottovoce.runs.backends import backend_word
from sottovoce.runs.client_lists import client_table, group_table
from sottovoce.runs.open_sections import channel_words, feature_words
from sottovoce.runs.parts import Assembly
from sottovoce.runs.site_counts import are_noted, site_counts
from sottovoce.version import __version__

Metrics = dict[str, Any]

_HUGE_LOSS = 100.0  # nats; a guess among c classes has log c
_SILENT_CLIENTS_TOLD = 5


def header(assembly: Assembly) -> dict[str, Any]:
    spec = assembly.spec
    return {
        "sottovoce": __version__,
        "spec": spec.plain(),
        "spec_hash": spec.hash,
        "run": assembly.run,
        "randomness": spec.randomness,
        **_grade_and_bits(assembly),
        "objective": assembly.task.objective,
        "layout": [[name, shape] for name, shape in assembly.task.layout.items()],
        "clients": [
            {
                "client": part.client,
                "weight": part.weight,
                "noise_stddev": getattr(part.mechanism, "noise_stddev", None),
            }
            for part in assembly.parts
        ],
        "guarantee": guarantee(assembly),
        # For reports, which are made where a plug-in algorithm may not be installed.
        "algorithm": {
            "enforces_budget": assembly.section.enforces_budget,
            "sends": assembly.section.sends(assembly.algorithm.unit),
        },
        **_of_plug_in_channel(assembly),
    }


def _of_plug_in_channel(assembly: Assembly) -> dict[str, Any]:
    """What reports ask of a channel that may not be installed where they are made."""
    if not channel_words(assembly.spec):
        return {}
    return {"channel": assembly.channel.facts(private=_is_private(assembly)).plain()}


def _grade_and_bits(assembly: Assembly) -> dict[str, Any]:
    """The weakest grade of all mechanisms, and bits of a coordinate, on average over clients."""
    mechanisms = [part.mechanism for part in assembly.parts]
    bits_of = {id(one): bits_per_coordinate(one) for one in _distinct(assembly)}
    bits = [bits_of[id(mechanism)] for mechanism in mechanisms]
    return {
        "sampling_grade": _grade(assembly),
        "bits_per_coordinate": bits[0] if len(set(bits)) == 1 else statistics.fmean(bits),
    }


def _distinct(assembly: Assembly) -> list[Mechanism]:
    """Each mechanism once: thousands of clients share few."""
    return list({id(part.mechanism): part.mechanism for part in assembly.parts}.values())


def _grade(assembly: Assembly) -> str:
    sampling = assembly.parts[0].mechanism.sampling
    if sampling == "none":
        return sampling
    return "float" if _is_drawn(assembly) or _any_float(assembly) else sampling


def _is_drawn(assembly: Assembly) -> bool:
    """Whether torch draws values in place of messages."""
    return assembly.spec.runtime.messages == "none"


def _any_float(assembly: Assembly) -> bool:
    return any(mechanism.sampling == "float" for mechanism in _distinct(assembly))


def _is_private(assembly: Assembly) -> bool:
    mechanism, adjacency = assembly.parts[0].mechanism, assembly.spec.privacy.adjacency
    return not isinstance(local_event(mechanism, adjacency=adjacency), NonPrivate)


def guarantee(assembly: Assembly) -> str:
    """What is protected, in a sentence; and what the sentence does not cover."""
    spec = assembly.spec
    if not _is_private(assembly):
        return "none: values are sent as they are"
    sample = assembly.algorithm.unit is Unit.SAMPLE
    unit = "one training sample" if sample else "one client's whole update"
    match spec.privacy.adjacency:
        case Adjacency.ZERO_OUT:
            change = f"whether {unit} contributed or a zero stood in its place"
        case Adjacency.REPLACE_ONE:
            change = f"{unit}, even against any other in its place"
        case _:
            assert_never(spec.privacy.adjacency)
    public = "; the number of samples of each client is public" if sample else ""
    if own := assembly.section.guarantee():
        public += f"; {own}"
    if records := assembly.terms.sample:
        public += f"; it assumes that {SAMPLE_ASSUMPTIONS[records.hidden_by]}"
    for name in _assumptions(assembly):
        public += f"; it assumes that {events.assumption_in_words(name)}"
    reasons = [
        *(["seeded randomness"] if spec.randomness == "seeded" else []),
        *(["values drawn in float32"] if _is_drawn(assembly) else []),
        *(["float noise"] if _any_float(assembly) and not _is_drawn(assembly) else []),
    ]
    grade = f" (simulation only: {' and '.join(reasons)})" if reasons else ""
    each = ", each client within its own budget" if len(assembly.groups) > 1 else ""
    return (
        f"{spec.privacy.level}-level {assembly.channel.guarantee()} {change}{each}{public}{grade}"
    )


def _charged(assembly: Assembly, record: SpendingRecord) -> list[PrivacyEvent]:
    """What clients were charged with in all, each distinct total once: most share theirs."""
    histories = dict.fromkeys(tuple(record.history(part.client)) for part in assembly.parts)
    return [multiset(history) for history in histories if history]


def _assumes(assembly: Assembly, charged: list[PrivacyEvent]) -> str | None:
    """Everything that some client's epsilon rests on beside its proof, in a line."""
    if not charged:
        return None
    sentences = [
        *(sentence for total in charged for sentence in assumptions_in_words(total)),
        *filter(None, [assembly.channel.assumption]),
        *map(events.assumption_in_words, _plug_in_words(assembly)),
    ]
    return "; ".join(dict.fromkeys(sentences)) or None


def _assumptions(assembly: Assembly) -> list[str]:
    """What mechanisms' events, an algorithm's domain and features rest on, each once."""
    adjacency = assembly.spec.privacy.adjacency
    own = [local_event(one, adjacency=adjacency) for one in _distinct(assembly)]
    found = {name for event in own for name in assumptions(event)}
    return sorted(found | set(_plug_in_words(assembly)))


def _plug_in_words(assembly: Assembly) -> list[str]:
    """The plug-ins, beside mechanisms, on whose word the run's privacy rests."""
    algorithm = algorithm_words(assembly.spec, assembly.section)
    backend = backend_word(assembly.spec)
    return [
        *algorithm,
        *([backend] if backend else []),
        *feature_words(assembly.spec),
        *channel_words(assembly.spec),
    ]


def _both_epsilons(
    assembly: Assembly, charged: list[PrivacyEvent], epsilon: float
) -> dict[str, float | None]:
    """The worst epsilon if nothing were hidden (messages, samples), and what a channel leaves."""
    hidden = None if assembly.channel.shows_each else finite_or_none(epsilon)
    if assembly.channel.noise_at_server:  # messages have no noise of their own
        return {"local_epsilon": None, "central_epsilon": hidden}
    delta = assembly.spec.privacy.delta
    seen = (privacy_spent(without_promises(total), delta) for total in charged)
    local = max((spent.epsilon for spent in seen), default=0.0)
    return {"local_epsilon": finite_or_none(local), "central_epsilon": hidden}


def _figures(assembly: Assembly, record: SpendingRecord) -> dict[str, float]:
    """What an algorithm reports beside epsilon, such as that of a published analysis."""
    return assembly.section.figures(
        assembly.algorithm,
        assembly.spec.mechanism.parameters,
        facts_of(assembly.spec, assembly.clients),
        max(record.rounds_charged(assembly.run).values(), default=0),
    )


def warnings_of(
    assembly: Assembly,
    rows: list[Metrics],
    spending: dict[str, Any],
    halted: str | None,
) -> list[str]:
    """What a person should know before believing the result."""
    found = []
    remedy = "leave the noise to calibration, or ask for fewer rounds"
    if halted:
        found.append(
            f"halted after {len(rows)} of {assembly.spec.rounds} rounds: {halted}; {remedy}"
        )
    short = next((row for row in rows if row["clients_out_of_budget"]), None)
    if short:
        drawn = short["clients_out_of_budget"] + short["clients_asked"]
        found.append(
            f"{short['clients_out_of_budget']} of {drawn} clients were out of budget in round "
            f"{short['round']} of {assembly.spec.rounds}; {remedy}"
        )
    found += _silent_clients(rows)
    found += idle_rounds.warnings(rows)
    found += assembly.channel.warnings(spending["local_epsilon"], spending["central_epsilon"])
    found += assembly.section.warnings(assembly.algorithm.unit, private=_is_private(assembly))
    loss = rows[-1]["loss"] if rows else None
    if assembly.task.objective == "classification" and loss is not None and loss > _HUGE_LOSS:
        found.append(
            f"the test loss is {loss:.3g}, and mere guessing has a few: the model grew far too "
            "large; lower the learning rate"
        )
    sample = assembly.algorithm.unit is Unit.SAMPLE
    protected = sum(assembly.clients.sizes) if sample else len(assembly.clients)
    if assembly.spec.privacy.delta > 1.0 / protected:
        found.append(
            f"delta {assembly.spec.privacy.delta:g} is above one over the {protected} protected "
            f"{assembly.algorithm.unit}s; choose it well below"
        )
    return found


def _silent_clients(rows: list[Metrics]) -> list[str]:
    """Clients elsewhere that were asked, and charged, in vain: how often, and what they said."""
    times: Counter[str] = Counter()
    last: dict[str, str] = {}
    for row in rows:
        times.update(row.get("unanswered", {}).keys())
        last |= row.get("unanswered", {})
    found = [
        f"nothing of '{client}' counted in {count} of {len(rows)} rounds; the last time: "
        f"{last[client]}"
        for client, count in times.most_common(_SILENT_CLIENTS_TOLD)
    ]
    if len(times) > len(found):
        found.append(f"the same of {len(times) - len(found)} more clients: see metrics.jsonl")
    return found


def metrics_row(
    assembly: Assembly,
    spending: SpendingRecord,
    progress: Progress,
    record: RoundRecord,
    *,
    evaluated: bool = True,
) -> Metrics:
    """What a round did; its accuracy is None where the model was not `evaluated`."""
    evaluation = assembly.task.evaluate(progress.model) if evaluated else None
    if evaluation is not None and not math.isfinite(evaluation.loss):
        raise ConfigError(
            f"the model diverged in round {record.round} (test loss {evaluation.loss}); "
            "lower algorithm.server_learning_rate"
        )
    # A resumed run finds charges of rounds that it is about to repeat: they are not yet spent here.
    spent = spending.largest_spent(
        assembly.spec.privacy.delta, through=(assembly.run, record.round)
    )
    told = dataclasses.asdict(record)
    for name in ("unanswered", "sites"):
        if not told[name]:
            del told[name]  # as in every round where nobody is elsewhere
    return {
        **told,
        "accuracy": evaluation.accuracy if evaluation else None,
        **_score(assembly),
        "loss": evaluation.loss if evaluation else None,
        "epsilon": finite_or_none(spent.epsilon) if spent else 0.0,
        "bounds": {name: finite_or_none(bound) for name, bound in spent.bounds} if spent else {},
        **(_of_algorithm(assembly, progress) if evaluated else {}),
    }


def _of_algorithm(assembly: Assembly, progress: Progress) -> Metrics:
    return assembly.section.metrics(assembly.task, progress.algorithm_state)


def _score(assembly: Assembly) -> dict[str, str]:
    """What `accuracy` is, where it is none: of numbers to predict, no share is right."""
    objective = assembly.task.objective
    return {} if objective == "classification" else {"score": SCORES[objective]}


def spending_of(assembly: Assembly, record: SpendingRecord) -> dict[str, Any]:
    """Return what the clients were charged with in all, and what that rests on."""
    spec = assembly.spec
    spent = record.largest_spent(spec.privacy.delta)
    charged = _charged(assembly, record)
    return {
        "epsilon": finite_or_none(spent.epsilon) if spent else 0.0,
        **_both_epsilons(assembly, charged, spent.epsilon if spent else 0.0),
        **_figures(assembly, record),
        "channel": assembly.channel.describe(),
        "delta": spec.privacy.delta,
        "private": spent is None or math.isfinite(spent.epsilon),
        "accountant": spent.accountant if spent else None,
        "assumes": _assumes(assembly, charged),
        "adjacency": str(spec.privacy.adjacency),
        "level": spec.privacy.level,
        "guarantee": guarantee(assembly),
        "randomness": spec.randomness,
        **_grade_and_bits(assembly),
        "rotation": spec.rotation,
        "dimension": assembly.task.dimension,
    }


def result_of(
    assembly: Assembly,
    training: Training,
    rows: list[Metrics],
    progress: Progress,
    halted: str | None,
) -> dict[str, Any]:
    """The last line of the story: accuracy, what was spent, what was sent, and warnings."""
    spec = assembly.spec
    asked = sum(row["clients_asked"] for row in rows)
    received = sum(row["clients_received"] for row in rows)
    evaluation = assembly.task.evaluate(progress.model)
    # Who could not pay for the last round, or for the one that was not run any more.
    last = progress.rounds_done + (1 if halted else 0)
    most = assembly.sampling.most_participations(len(assembly.clients), last)
    clients = client_table(assembly, training.record, training.able(last), most_rounds=most)
    if assembly.spec.runtime.backend != "fast":
        told = site_counts(
            rows if are_noted(rows) else [], [part.client for part in assembly.parts]
        )
        # `rounds` stays what the server's ledger says.
        clients = [{**row, **told[row["client"]], "rounds": row["rounds"]} for row in clients]

    def per_client(direction: str, kind: str, count: int) -> float | None:
        total = sum(row[f"{kind}_bytes_{direction}"] for row in rows)
        return total / count if count else None

    spending = spending_of(assembly, training.record)
    return {
        "name": spec.name,
        "mechanism": {"kind": spec.mechanism.kind, **spec.mechanism.parameters},
        "mechanism_choice": assembly.mechanism_choice,
        "accuracy": evaluation.accuracy,
        **_score(assembly),
        "loss": evaluation.loss,
        **_of_algorithm(assembly, progress),
        "rounds": progress.rounds_done,
        "halted": halted,
        **spending,
        "payload_bytes_up_per_message": per_client("up", "payload", received),
        "total_bytes_up_per_message": per_client("up", "total", received),
        "payload_bytes_down_per_message": per_client("down", "payload", asked),
        "total_bytes_down_per_message": per_client("down", "total", asked),
        "payload_bytes_up_per_client": per_client("up", "payload", len(assembly.clients)),
        "total_bytes_up_per_client": per_client("up", "total", len(assembly.clients)),
        "clients_out_of_budget": sum(row["ran_out"] for row in clients),
        "spec_hash": spec.hash,
        "groups": group_table(assembly, clients),
        "clients": clients,
        "warnings": warnings_of(assembly, rows, spending, halted),
    }
