"""Three sentences about a run's privacy to be quoted: what is protected, spent and assumed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon
from sottovoce.federated.algorithms.statistics import AdaptiveClip
from sottovoce.protocol.channels.channel import ChannelFacts
from sottovoce.runs.record import RunRecord, algorithm_facts
from sottovoce.runs.site_counts import BY_SERVER

_GRADE = re.compile(r" \(simulation only: [^()]*\)$")
_ASSUMES = "it assumes that "
_PROTECTS = "This run protects "
_BUDGETS_SHOWN = 5
WEAK_EPSILON = 12.0  # from here on odds may change by a factor of more than 160,000


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyStatement:
    """What a run guarantees, in three sentences.

    Attributes:
        protected: What is protected, against whom, at which level and under which adjacency.
        spent: The largest epsilon over clients, its delta and accountant, and of what budget.
        assumes: What must be true for the other two, what is public, and whether the guarantee
            holds for a simulation only.
    """

    protected: str
    spent: str
    assumes: str

    def sentences(self) -> list[str]:
        """Return the three sentences: what is protected, what was spent, what is assumed."""
        return [self.protected, self.spent, self.assumes]


def statement_of(
    record: RunRecord, epsilon: float | None, clients: Sequence[Mapping[str, Any]]
) -> PrivacyStatement:
    """Return the statement of a run that has ended, was halted or is still running.

    Args:
        record: The run as its folder has it.
        epsilon: The largest epsilon over clients at the run's delta; None if none is finite.
        clients: The rows of clients (`budget`, `delta`, `epsilon`, `ran_out`); empty where they
            are not known yet.

    Returns:
        The three sentences. A run without a finite epsilon gets sentences that say so.
    """
    if epsilon is None or record.header.get("sampling_grade") == "none":
        return _nothing_protected(record, clients)
    return PrivacyStatement(
        protected=_protected(record),
        spent=_spent(record, epsilon, clients),
        assumes=_assumes(record),
    )


def summary_of(statements: Mapping[str, PrivacyStatement]) -> list[str]:
    """Return three texts about several runs.

    Args:
        statements: The statement of each run, by its label.

    Returns:
        What is protected in which runs, what each spent, and a note that what runs on the same
        people's data spent adds up; the first two have a sentence for each run or group of runs.
    """
    protected: dict[str, list[str]] = {}
    for label, one in statements.items():
        protected.setdefault(one.protected.rstrip("."), []).append(label)
    return [
        " ".join(_protects(text, labels) for text, labels in protected.items()),
        " ".join(f"{_labels([label])}: {one.spent}" for label, one in statements.items()),
        "Each run rests on the assumptions in its own section below; if the same people's data "
        "went into several of these runs, what the runs spent adds up, and 'sottovoce ledger "
        "total' computes the sum.",
    ]


def _protects(text: str, labels: Sequence[str]) -> str:
    if not text.startswith(_PROTECTS):
        return f"{_labels(labels)}: {text}."
    verb = "protects" if len(labels) == 1 else "each protect"
    return f"{_labels(labels)} {verb} {text.removeprefix(_PROTECTS)}."


def _labels(labels: Sequence[str]) -> str:
    return f"{'Run' if len(labels) == 1 else 'Runs'} {', '.join(labels)}"


def channel_facts(record: RunRecord, *, private: bool = True) -> ChannelFacts:
    """Return what a run's channel says about itself: what it hides, and from whom.

    Args:
        record: The run. If its run.json describes the channel, as for a plug-in, that is returned;
            otherwise the channel is built from the spec.
        private: Whether messages have noise at all.
    """
    told = ChannelFacts.read(record.header.get("channel"))
    return told or record.spec.channel.build().facts(private=private)


def simulated_because(record: RunRecord) -> list[str]:
    """Return the reasons why the guarantee holds for a simulation only; empty if there are none."""
    spec, reasons = record.spec, []
    grade = record.header.get("sampling_grade")
    if spec.randomness == "seeded" and grade != "none":
        reasons.append("its noise comes from a seed, and anyone who has the seed can subtract it")
    if grade == "float":
        reasons.append("its noise is drawn in floating point, which leaks in the last digits")
    channel = channel_facts(record)
    if not channel.shows_each and not channel.is_cryptographic:
        name = spec.channel.kind.replace("_", " ")
        reasons.append(f"its channel ({name}) is simulated, not a protocol between machines")
    return reasons


def _nothing_protected(record: RunRecord, clients: Sequence[Mapping[str, Any]]) -> PrivacyStatement:
    delta = record.spec.privacy.delta
    if record.header.get("sampling_grade") == "none":
        why = "clients' values are sent without noise"
    else:
        without = sum(row["epsilon"] is None for row in clients)
        who = f"{without} of {len(clients)} clients" if without else "at least one client"
        why = f"no accountant proves a finite epsilon at delta {delta:g} for {who}"
    return PrivacyStatement(
        protected=f"Nothing is protected by this run: {why}, so there is no differential privacy "
        "guarantee against anyone.",
        spent="There is no epsilon to report and no budget was kept, because nothing is "
        "guaranteed.",
        assumes="No assumption changes this; to protect the data, train with a mechanism that "
        "adds noise ('sottovoce plan' ranks them).",
    )


def _protected(record: RunRecord) -> str:
    privacy = record.spec.privacy
    sample = privacy.level == "sample"
    what = "one training sample of a client" if sample else "everything that one client contributes"
    match privacy.adjacency:
        case Adjacency.ZERO_OUT:
            change = "whether it contributed or a zero took its place"
        case Adjacency.REPLACE_ONE:
            change = "it from any other that might have been in its place"
        case _:
            assert_never(privacy.adjacency)
    return (
        f"{_PROTECTS}{what} against {_observer(record)}: how well they can tell {change} "
        f"is limited ({privacy.level} level, adjacency {privacy.adjacency})."
    )


def _observer(record: RunRecord) -> str:
    """Return against whom the guarantee holds, by what the channel reveals."""
    channel = channel_facts(record)
    if channel.noise_at_server:
        return (
            "anyone who sees the noisy means and the models, but not against the server, which "
            "sees every update"
        )
    if "tuning" in record.header:  # The party that made the trials has seen all of them.
        hidden = "" if channel.shows_each else f" ({channel.seen_by.rstrip('.')})"
        return f"anyone who sees this run{hidden}, but nothing of the other trials"
    if channel.shows_each:
        return "anyone who sees the messages and the models, the server included"
    if channel.is_cryptographic:
        seen = "sums of messages" if channel.only_sums else "the messages without their senders"
        return (
            f"anyone who sees only {seen}, and the models, those who run the servers included: a "
            "protocol hides the rest from them, as long as its assumptions hold"
        )
    if channel.only_sums:
        return (
            "anyone who sees only sums of messages, and the models, but not against the server, "
            "which sees every message and is trusted to reveal only sums"
        )
    order = record.spec.channel.kind == "secret_order"
    return (
        "anyone who sees the messages without their senders, and the models, but not against the "
        "server, which sees every message and is trusted to forget who sent what"
        f"{' and to keep the order secret' if order else ''}"
    )


def _spent(record: RunRecord, epsilon: float, clients: Sequence[Mapping[str, Any]]) -> str:
    spec, result = record.spec, record.result
    rounds = f"after {record.rounds_done} of {spec.rounds} rounds"
    if result is None:
        rounds = f"{rounds} (the run has not ended)"
    elif result.get("halted"):
        rounds = f"{rounds} (the run was halted)"
    elif result.get("diverged"):
        rounds = f"{rounds} (the model diverged)"
    of, more = _budget(record, clients)
    asked = any(row.get("clients_asked") for row in record.rows)
    if epsilon == 0.0 and not asked and not any(row.get("rounds") for row in clients):
        return f"No client has been charged {rounds}, so no privacy has been spent{of}{more}."
    grade = " (simulation only)" if simulated_because(record) else ""
    accountant = (result or {}).get("accountant")
    by = f"the {accountant} accountant" if accountant else "the smallest of the proved bounds"
    counted = ""
    if record.has_sites:
        counted = (
            f"; this is {BY_SERVER}, which charges every site that it asks, and what a site has "
            "spent is in the site's own ledger"
        )
    if epsilon >= WEAK_EPSILON:
        more = f"{more}; an epsilon of {WEAK_EPSILON:g} or more guarantees very little by itself"
    return (
        f"The client that spent most has been charged epsilon {show_epsilon(epsilon)}{grade}{of} "
        f"at delta {spec.privacy.delta:g} {rounds}, by {by}{more}{counted}."
    )


def _budget(record: RunRecord, clients: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the budget to name after epsilon, or else a clause about budgets for the end."""
    privacy = record.spec.privacy
    budgets = {(row["budget"], row["delta"]) for row in clients}
    if not budgets:
        if privacy.groups and algorithm_facts(record.header).enforces_budget:
            return "", "; clients have different budgets"
        enforced = algorithm_facts(record.header).enforces_budget
        budgets = {(privacy.epsilon if enforced else None, privacy.delta)}
    limits = sorted((epsilon, delta) for epsilon, delta in budgets if epsilon is not None)
    if not limits:
        enforced = algorithm_facts(record.header).enforces_budget
        if privacy.epsilon is not None and not enforced:
            return "", "; 'privacy.epsilon' determined the noise and was not a budget"
        return "", "; no budget was set"
    if len(budgets) == 1:
        ((epsilon, delta),) = limits
        if delta == privacy.delta:
            return f" of a budget of {epsilon:.15g}", ""
        return "", f"; each client's budget is epsilon {epsilon:.15g} at delta {delta:g}"
    shown = [f"{epsilon:.15g} at delta {delta:g}" for epsilon, delta in limits[:_BUDGETS_SHOWN]]
    shown += ["others"] if len(limits) > _BUDGETS_SHOWN else []
    shown += ["none"] if len(limits) < len(budgets) else []
    out = sum(bool(row["ran_out"]) for row in clients)
    ended = f", and {out} of {len(clients)} have none left for another round" if out else ""
    return "", f"; clients have different budgets (epsilon {', '.join(shown)}){ended}"


def _assumes(record: RunRecord) -> str:
    spec = record.spec
    clipped = "every sample's gradient" if spec.privacy.level == "sample" else "what it sends"
    channel = channel_facts(record)
    noise = "adds its noise as specified"
    if channel.noise_at_server:
        noise = "the server adds the noise as specified"
    found = [f"each client clips {clipped} {clip_bound(record)} and {noise}"]
    if not channel.shows_each:
        described = (record.result or {}).get("channel")
        told = described if isinstance(described, str) else channel.seen_by.rstrip(".")
        found.append(f"the channel works as described ({told})")
    assumed, public = _remarks(record)
    found += assumed
    if "tuning" in record.header:
        found.append(
            "and that no setting, apart from those of the grid, was chosen by looking at the data"
        )
    else:
        found.append(
            "and that no setting, such as a clip norm, a learning rate or the best of several "
            "runs, was chosen by looking at the data"
        )
    parts = [f"This assumes that {', that '.join(found[:-1])}, {found[-1]}", *public]
    parts.append("accuracy and loss are exact figures of the test data, which is not protected")
    if local := _without_the_channel(record, channel):
        parts.append(local)
    if spec.runtime.backend in ("fast", "flower-sim"):
        parts.append(
            "clients and server ran on one machine, which has the data, so this covers what it "
            "publishes"
        )
    if spec.channel.kind == "secret_order" and _stopped_early(record):
        parts.append("the last epoch may be incomplete, and this bound is for complete epochs")
    if reasons := simulated_because(record):
        parts.append(f"the guarantee is of a simulation only: {', and '.join(reasons)}")
    return f"{'; '.join(parts)}."


def clip_bound(record: RunRecord) -> str:
    """Return to which norm a client clips, such as "to norm 2".

    It is "as the spec says" where a client sends two vectors, which may have different norms.
    """
    sends = algorithm_facts(record.header).sends
    if record.spec.privacy.level == "client" and "control variate" in sends:
        return "as the spec says"
    clip_norm = record.spec.privacy.clip_norm
    if not isinstance(clip_norm, AdaptiveClip):
        return f"to norm {clip_norm:g}"
    if record.spec.privacy.level == "sample":
        return "to norm 1, by normalizing it,"
    return "to a norm that follows a private quantile of the updates' norms"


def _stopped_early(record: RunRecord) -> bool:
    result = record.result
    return result is None or bool(result.get("halted") or result.get("diverged"))


def _remarks(record: RunRecord) -> tuple[list[str], list[str]]:
    """Return what the formal guarantee assumes and what it says is public, each once."""
    stated = (record.result or record.header).get("guarantee")
    parts = _GRADE.sub("", stated).split("; ")[1:] if isinstance(stated, str) else []
    assumed = [part.removeprefix(_ASSUMES) for part in parts if part.startswith(_ASSUMES)]
    more = (record.result or {}).get("assumes")
    if isinstance(more, str):
        assumed += more.split("; ")
    public = [part for part in parts if not part.startswith(_ASSUMES) and part not in assumed]
    return list(dict.fromkeys(assumed)), list(dict.fromkeys(public))


def _without_the_channel(record: RunRecord, channel: ChannelFacts) -> str:
    """Return the epsilon against those who see what the channel or the sampling hides."""
    if channel.noise_at_server:
        return "nothing is protected against the server itself, which gets updates without noise"
    if record.result is None or "local_epsilon" not in record.result:
        return ""
    local = record.result["local_epsilon"]
    spent = "no finite epsilon" if local is None else f"epsilon {show_epsilon(local)}"
    if not channel.shows_each:
        return f"an observer of every message and its sender has {spent}"
    if record.spec.privacy.record_sampling_rate < 1.0:
        return f"an observer who knows which records were sampled has {spent}"
    return ""
