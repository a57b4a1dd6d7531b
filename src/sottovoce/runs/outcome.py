"""The records of a run: its header, a row for each round, its result and its warnings."""

import dataclasses
import math
import statistics
from collections import Counter
from typing import Any, assert_never

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import ConfigError
from sottovoce.core.files import finite_or_none
from sottovoce.core.stages import stage
from sottovoce.federated.algorithms.algorithm import ALGORITHMS, AlgorithmSection
from sottovoce.federated.training import Progress, RoundRecord, Training
from sottovoce.learning.features import FEATURES
from sottovoce.learning.objectives import ACCURACY
from sottovoce.learning.task import Evaluation
from sottovoce.ledger.records import SpendingRecord
from sottovoce.mechanisms.mechanism import Mechanism, bits_per_coordinate, masked_bytes
from sottovoce.mechanisms.release import local_event
from sottovoce.privacy import events
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import (
    SAMPLE_ASSUMPTIONS,
    assumptions,
    compose_repeated,
    describe_assumptions,
    without_trust,
)
from sottovoce.privacy.events import NonPrivate, PrivacyEvent
from sottovoce.protocol.channels.channel import CHANNELS
from sottovoce.runs.backends import BACKENDS
from sottovoce.runs.baseline import UNCLIPPED
from sottovoce.runs.client_lists import client_table, group_table
from sottovoce.runs.diagnosis import diagnose
from sottovoce.runs.inputs import facts_of
from sottovoce.runs.public_facts import overshoots, public_facts
from sottovoce.runs.record import DIVERGED
from sottovoce.runs.resolve import Resolved
from sottovoce.runs.site_counts import have_site_replies, idle_warnings, site_counts
from sottovoce.runs.spec import RunSpec
from sottovoce.runs.statistics import (
    latest_statistics,
    sends_statistics,
    sent_statistics,
    statistics_metrics,
    statistics_warnings,
)
from sottovoce.version import __version__

Metrics = dict[str, Any]

NOT_PRIVATE = (
    "not private: clients' values are sent without noise, so neither the model nor these figures "
    "may be published if the data are private"
)
_SILENT_CLIENTS_TOLD = 5


def header(resolved: Resolved) -> dict[str, Any]:
    """Return the content of run.json: the spec, its hash, all clients and what is guaranteed."""
    spec = resolved.spec
    return {
        "sottovoce": __version__,
        "spec": spec.plain(),
        "spec_hash": spec.hash,
        "run": resolved.run,
        "randomness": spec.randomness,
        **_grade_and_bits(resolved),
        "objective": resolved.task.objective,
        "layout": [[name, shape] for name, shape in resolved.task.layout.items()],
        **({"frozen": frozen} if (frozen := resolved.task.fixed_digest) else {}),
        "clients": [
            {
                "client": part.client,
                "weight": part.weight,
                "noise_stddev": getattr(part.mechanism, "noise_stddev", None),
            }
            for part in resolved.parts
        ],
        "guarantee": guarantee(resolved),
        # For reports, which may be made where a plug-in algorithm is not installed.
        "algorithm": {
            "enforces_budget": resolved.section.enforces_budget,
            "sends": sent_statistics(spec, resolved.section.sends(resolved.algorithm.unit)),
        },
        **_of_plug_in_channel(resolved),
    }


def _of_plug_in_channel(resolved: Resolved) -> dict[str, Any]:
    """Return what reports need of a plug-in channel, which may not be installed there."""
    if not channel_plug_ins(resolved.spec):
        return {}
    return {"channel": resolved.channel.facts(private=_is_private(resolved)).plain()}


def _grade_and_bits(resolved: Resolved) -> dict[str, Any]:
    """Return the weakest sampling grade, and the mean bits per coordinate over clients."""
    mechanisms = [part.mechanism for part in resolved.parts]
    bits_of = {id(one): bits_per_coordinate(one) for one in _distinct(resolved)}
    bits = [bits_of[id(mechanism)] for mechanism in mechanisms]
    return {
        "sampling_grade": _grade(resolved),
        "bits_per_coordinate": bits[0] if len(set(bits)) == 1 else statistics.fmean(bits),
    }


def _distinct(resolved: Resolved) -> list[Mechanism]:
    """Return each mechanism once: thousands of clients share a few."""
    return list({id(part.mechanism): part.mechanism for part in resolved.parts}.values())


def _grade(resolved: Resolved) -> str:
    sampling = resolved.parts[0].mechanism.sampling
    if sampling == "none":
        return sampling
    return "float" if _is_drawn(resolved) or _any_float(resolved) else sampling


def _is_drawn(resolved: Resolved) -> bool:
    """Return whether torch draws decoded values instead of encoding messages."""
    return resolved.spec.runtime.messages == "none"


def _any_float(resolved: Resolved) -> bool:
    return any(mechanism.sampling == "float" for mechanism in _distinct(resolved))


def _is_private(resolved: Resolved) -> bool:
    mechanism, adjacency = resolved.parts[0].mechanism, resolved.spec.privacy.adjacency
    return not isinstance(local_event(mechanism, adjacency=adjacency), NonPrivate)


def guarantee(resolved: Resolved) -> str:
    """Return what is protected, and on which assumptions, in a sentence."""
    spec = resolved.spec
    if not _is_private(resolved):
        return "none: values are sent unprotected"
    sample = resolved.algorithm.unit is Unit.SAMPLE
    unit = "one training sample" if sample else "one client's whole update"
    if sends_statistics(spec):
        unit += " with its statistics"
    match spec.privacy.adjacency:
        case Adjacency.ZERO_OUT:
            change = f"whether {unit} contributed or was replaced by zero"
        case Adjacency.REPLACE_ONE:
            change = f"{unit} among all values that it could have"
        case _:
            assert_never(spec.privacy.adjacency)
    public = "; the number of samples of each client is public" if sample else ""
    if own := resolved.section.guarantee():
        public += f"; {own}"
    if records := resolved.terms.sample:
        public += f"; it assumes that {SAMPLE_ASSUMPTIONS[records.hidden_by]}"
    for name in _assumptions(resolved):
        public += f"; it assumes that {events.describe_assumption(name)}"
    reasons = [
        *(["seeded randomness"] if spec.randomness == "seeded" else []),
        *(["values drawn in float32"] if _is_drawn(resolved) else []),
        *(["float noise"] if _any_float(resolved) and not _is_drawn(resolved) else []),
    ]
    grade = f" (simulation only: {' and '.join(reasons)})" if reasons else ""
    each = ", each client within its own budget" if len(resolved.groups) > 1 else ""
    return (
        f"{spec.privacy.level}-level {resolved.channel.guarantee()} {change}{each}{public}{grade}"
    )


def charged_totals(resolved: Resolved, record: SpendingRecord) -> list[PrivacyEvent]:
    """Return the distinct totals that clients were charged; most clients have the same.

    Args:
        resolved: The run.
        record: What the clients were charged.
    """
    histories = dict.fromkeys(tuple(record.history(part.client)) for part in resolved.parts)
    return [compose_repeated(history) for history in histories if history]


def _assumes(resolved: Resolved, charged: list[PrivacyEvent]) -> str | None:
    """Return everything that some client's epsilon assumes in addition to its proof."""
    if not charged:
        return None
    sentences = [
        *(sentence for total in charged for sentence in describe_assumptions(total)),
        *filter(None, [resolved.channel.assumption]),
        *map(events.describe_assumption, _trusted_plug_ins(resolved)),
    ]
    return "; ".join(dict.fromkeys(sentences)) or None


def _assumptions(resolved: Resolved) -> list[str]:
    """Return what the events of mechanisms, and plug-ins, assume; each once."""
    adjacency = resolved.spec.privacy.adjacency
    own = [local_event(one, adjacency=adjacency) for one in _distinct(resolved)]
    found = {name for event in own for name in assumptions(event)}
    return sorted(found | set(_trusted_plug_ins(resolved)))


def _trusted_plug_ins(resolved: Resolved) -> list[str]:
    """Return the plug-ins, other than mechanisms, whose claims the run's privacy relies on."""
    algorithm = algorithm_plug_ins(resolved.spec, resolved.section)
    backend = backend_plug_in(resolved.spec)
    return [
        *algorithm,
        *([backend] if backend else []),
        *feature_plug_ins(resolved.spec),
        *channel_plug_ins(resolved.spec),
    ]


def _both_epsilons(
    resolved: Resolved, charged: list[PrivacyEvent], epsilon: float
) -> dict[str, float | None]:
    """Return the largest epsilon with and without the protection of the channel.

    `local_epsilon` holds against an observer of every message and sample; it is None where messages
    have no noise of their own. `central_epsilon` holds under the channel's assumptions; it is None
    where the channel hides nothing.
    """
    hidden = None if resolved.channel.shows_each else finite_or_none(epsilon)
    if resolved.channel.noise_at_server:  # Messages have no noise of their own.
        return {"local_epsilon": None, "central_epsilon": hidden}
    delta = resolved.spec.privacy.delta
    seen = (privacy_spent(without_trust(total), delta) for total in charged)
    local = max((spent.epsilon for spent in seen), default=0.0)
    return {"local_epsilon": finite_or_none(local), "central_epsilon": hidden}


def _figures(resolved: Resolved, record: SpendingRecord) -> dict[str, float]:
    """Return other figures of the algorithm, such as the epsilon of a published analysis."""
    return resolved.section.figures(
        resolved.algorithm,
        resolved.spec.mechanism.parameters,
        facts_of(resolved.spec, resolved.clients),
        max(record.rounds_charged(resolved.run).values(), default=0),
    )


def warnings_of(
    resolved: Resolved,
    rows: list[Metrics],
    spending: dict[str, Any],
    halted: str | None,
) -> list[str]:
    """Return the sentences to read before relying on the result, each with a remedy.

    Args:
        resolved: The run.
        rows: The metrics of its rounds.
        spending: What was spent, as `spending_of` returns it.
        halted: Why the run stopped before its last round; None if it did not.

    Returns:
        The sentences; empty if there is nothing to warn of.
    """
    found = [] if _is_private(resolved) else [NOT_PRIVATE]
    remedy = (
        "remove the mechanism's noise parameter, so that it is calibrated to the budget, or ask "
        "for fewer rounds"
    )
    if halted:
        found.append(
            f"halted after {len(rows)} of {resolved.spec.rounds} rounds: {halted}; {remedy}"
        )
    short = next((row for row in rows if row["clients_out_of_budget"]), None)
    if short:
        drawn = short["clients_out_of_budget"] + short["clients_asked"]
        found.append(
            f"{short['clients_out_of_budget']} of {drawn} clients were out of budget in round "
            f"{short['round']} of {resolved.spec.rounds}; {remedy}"
        )
    found += _silent_clients(rows)
    found += idle_warnings(rows)
    found += resolved.channel.warnings(spending["local_epsilon"], spending["central_epsilon"])
    found += resolved.section.warnings(resolved.algorithm.unit, private=_is_private(resolved))
    found += statistics_warnings(resolved.spec, rows)
    if overshoots(resolved, rows):
        found.append(
            f"the test loss is {rows[-1]['loss']:.3g}, far above that of guessing: the training "
            "may be diverging; lower the learning rate"
        )
    sample = resolved.algorithm.unit is Unit.SAMPLE
    protected = sum(resolved.clients.sizes) if sample else len(resolved.clients)
    if resolved.spec.privacy.delta > 1.0 / protected:
        found.append(
            f"delta {resolved.spec.privacy.delta:g} is larger than 1/{protected}, one over the "
            f"number of protected {resolved.algorithm.unit}s; choose a much smaller one"
        )
    return found


def _silent_clients(rows: list[Metrics]) -> list[str]:
    """Return how often remote clients were asked, and charged, in vain, and their last reason."""
    times: Counter[str] = Counter()
    last: dict[str, str] = {}
    for row in rows:
        times.update(row.get("unanswered", {}).keys())
        last |= row.get("unanswered", {})
    found = [
        f"no reply of '{client}' counted in {count} of {len(rows)} rounds; the last reason: "
        f"{last[client]}"
        for client, count in times.most_common(_SILENT_CLIENTS_TOLD)
    ]
    if len(times) > len(found):
        found.append(
            f"the same holds for {len(times) - len(found)} more clients; see metrics.jsonl"
        )
    return found


def metrics_row(
    resolved: Resolved,
    spending: SpendingRecord,
    progress: Progress,
    record: RoundRecord,
    *,
    evaluated: bool = True,
) -> Metrics:
    """Return the metrics of a round.

    Args:
        resolved: The run.
        spending: What the clients were charged.
        progress: The model after the round.
        record: What the round sent.
        evaluated: Whether to test the model; otherwise accuracy and loss are None.

    Returns:
        A row of metrics.jsonl. If the model was tested and its test loss is not finite, accuracy
        and loss are None, and `diverged` says so; see `stop_if_diverged`.
    """
    with stage("evaluate"):
        evaluation = resolved.task.evaluate(progress.model) if evaluated else None
    diverged = _diverged(evaluation, record.round)
    if diverged:
        evaluation = None
    # A resumed run finds charges of rounds that it will repeat: they do not count for this round.
    with stage("account"):
        spent = spending.largest_spent(
            resolved.spec.privacy.delta, through=(resolved.run, record.round)
        )
    told = dataclasses.asdict(record)
    for name in ("unanswered", "sites"):
        if not told[name]:
            del told[name]  # As in every run whose clients are all in this process.
    return {
        **told,
        **_score(evaluation),
        "loss": evaluation.loss if evaluation else None,
        "epsilon": finite_or_none(spent.epsilon) if spent else 0.0,
        "bounds": {name: finite_or_none(bound) for name, bound in spent.bounds} if spent else {},
        **(_of_algorithm(resolved, progress) if evaluated else {}),
        **({"diverged": diverged} if diverged else {}),
        **statistics_metrics(resolved, progress, record),
    }


def may_count_clipping(resolved: Resolved) -> bool:
    """Return whether the number of clipped rows may be stated: nothing is protected anyway."""
    clip = resolved.spec.privacy.clip_norm
    clips = isinstance(clip, float) and clip < UNCLIPPED
    return clips and all(group.mechanism.kind == "no_privacy" for group in resolved.groups)


def _diverged(evaluation: Evaluation | None, number: int) -> str | None:
    """Return why the run stops after a round whose model has no finite test loss, or None."""
    if evaluation is None or math.isfinite(evaluation.loss):
        return None
    return (
        f"{DIVERGED} in round {number} (test loss {evaluation.loss}); lower "
        "algorithm.server_learning_rate, or clip the gradients of local steps "
        "(algorithm.gradient_clip)"
    )


def stop_if_diverged(row: Metrics) -> None:
    """Raise ConfigError if the metrics of a round, or a result, say that the model diverged."""
    if row.get("diverged"):
        raise ConfigError(row["diverged"])


def _of_algorithm(resolved: Resolved, progress: Progress) -> Metrics:
    return resolved.section.metrics(resolved.task, progress.algorithm_state)


def _score(evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the most important figure as "accuracy", and where it is another one, all by name."""
    if evaluation is None:
        return {"accuracy": None}
    if evaluation.score_name == ACCURACY:
        return {"accuracy": evaluation.score}
    return {
        "accuracy": evaluation.score,
        "score": evaluation.score_name,
        "metrics": dict(evaluation.metrics),
    }


def spending_of(resolved: Resolved, record: SpendingRecord) -> dict[str, Any]:
    """Return what the clients were charged in total, and what that assumes.

    Returns:
        Entries of result.json. `epsilon` is the largest of any client at the run's delta, under the
        channel's assumptions; `local_epsilon` is that against an observer of every message, its
        sender and the sampled records, and `central_epsilon` repeats `epsilon` where the channel
        hides something. None stands for an infinite epsilon, for the `local_epsilon` of messages
        without noise of their own, and for the `central_epsilon` of a channel that hides nothing.
    """
    spec = resolved.spec
    spent = record.largest_spent(spec.privacy.delta)
    charged = charged_totals(resolved, record)
    return {
        "epsilon": finite_or_none(spent.epsilon) if spent else 0.0,
        **_both_epsilons(resolved, charged, spent.epsilon if spent else 0.0),
        **_figures(resolved, record),
        "channel": resolved.channel.describe(),
        "delta": spec.privacy.delta,
        "private": spent is None or math.isfinite(spent.epsilon),
        "accountant": spent.accountant if spent else None,
        "assumes": _assumes(resolved, charged),
        "adjacency": str(spec.privacy.adjacency),
        "level": spec.privacy.level,
        "guarantee": guarantee(resolved),
        "randomness": spec.randomness,
        **_grade_and_bits(resolved),
        "rotation": spec.rotation,
        "dimension": resolved.task.dimension,
    }


def result_of(
    resolved: Resolved,
    training: Training,
    rows: list[Metrics],
    progress: Progress,
    halted: str | None,
) -> dict[str, Any]:
    """Return the content of result.json: accuracy, privacy spent, bytes sent, and warnings.

    Args:
        resolved: The run.
        training: Its training, whose record has the charges.
        rows: The metrics of its rounds.
        progress: The model after the last round; it is tested once more.
        halted: Why the run stopped before its last round; None if it did not.
    """
    spec = resolved.spec
    asked = sum(row["clients_asked"] for row in rows)
    received = sum(row["clients_received"] for row in rows)
    with stage("evaluate"):
        evaluation = resolved.task.evaluate(progress.model)
    # The last round, or, if the run halted, the round for which too few clients had budget.
    diverged = _diverged(evaluation, progress.rounds_done)
    last = progress.rounds_done + (1 if halted else 0)
    most = resolved.sampling.most_participations(len(resolved.clients), last)
    clients = client_table(
        resolved, training.record, training.clients_with_budget(last), most_rounds=most
    )
    if resolved.spec.runtime.backend != "fast":
        told = site_counts(
            rows if have_site_replies(rows) else [], [part.client for part in resolved.parts]
        )
        # `rounds` stays the count of the server's ledger.
        clients = [{**row, **told[row["client"]], "rounds": row["rounds"]} for row in clients]

    def per_client(direction: str, kind: str, count: int) -> float | None:
        total = sum(row[f"{kind}_bytes_{direction}"] for row in rows)
        return total / count if count else None

    spending = spending_of(resolved, training.record)
    result = {
        "name": spec.name,
        "mechanism": {"kind": spec.mechanism.kind, **spec.mechanism.parameters},
        "mechanism_choice": resolved.mechanism_choice,
        **_score(None if diverged else evaluation),
        "loss": None if diverged else evaluation.loss,
        **_of_algorithm(resolved, progress),
        **latest_statistics(rows),
        "rounds": progress.rounds_done,
        "halted": halted,
        **({"diverged": diverged} if diverged else {}),
        **spending,
        "payload_bytes_up_per_message": per_client("up", "payload", received),
        "total_bytes_up_per_message": per_client("up", "total", received),
        **_masked(resolved),
        "payload_bytes_down_per_message": per_client("down", "payload", asked),
        "total_bytes_down_per_message": per_client("down", "total", asked),
        "payload_bytes_up_per_client": per_client("up", "payload", len(resolved.clients)),
        "total_bytes_up_per_client": per_client("up", "total", len(resolved.clients)),
        "clients_out_of_budget": sum(row["ran_out"] for row in clients),
        "spec_hash": spec.hash,
        "groups": group_table(resolved, clients),
        "clients": clients,
        "warnings": [
            *([diverged] if diverged else []),
            *warnings_of(resolved, rows, spending, halted),
        ],
    }
    if diverged:  # There is no accuracy to explain.
        return result
    diagnosis = diagnose(result, public_facts(resolved, rows, progress), rows, spec)
    return {**result, "diagnosis": diagnosis.to_dict()}


def _masked(resolved: Resolved) -> dict[str, int | None]:
    """Return what a message of the largest cohort takes behind a real secure sum."""
    if not resolved.channel.only_sums:
        return {}
    most = resolved.sampling.facts(len(resolved.clients)).largest_cohort
    return {"masked_bytes_up_per_message": masked_bytes(resolved.parts[0].mechanism, most)}


def algorithm_plug_ins(spec: RunSpec, section: AlgorithmSection) -> list[str]:
    """Return descriptions of the algorithm's plug-ins, whose claims the run's privacy relies on.

    The list is empty if the algorithm and its parts are Sottovoce's own.

    Messages are projected onto the algorithm's domain here, but how much of them one sample can
    change is the algorithm's own claim.
    """
    own = ALGORITHMS.describe_plugin(spec.algorithm.kind)
    return [*([own] if own else []), *section.plug_ins()]


def channel_plug_ins(spec: RunSpec) -> list[str]:
    """Return a list with a description of the channel if it is a plug-in; otherwise an empty one.

    The run's privacy then relies on the plug-in's claim about what the server sees.
    """
    word = CHANNELS.describe_plugin(spec.channel.kind)
    return [] if word is None else [word]


def feature_plug_ins(spec: RunSpec) -> list[str]:
    """Return descriptions of the transformations that are plug-ins.

    The run's privacy relies on their claim that they learn from no record.

    Models need no such claim: gradients are computed and clipped for each sample, whatever the
    module does.
    """
    words = (FEATURES.describe_plugin(table.kind) for table in spec.features)
    return [word for word in words if word is not None]


def backend_plug_in(spec: RunSpec) -> str | None:
    """Return a description of the backend if it is a plug-in that was imported; otherwise None."""
    name = spec.runtime.backend
    return BACKENDS.describe_plugin(name) if name in BACKENDS.imported() else None
