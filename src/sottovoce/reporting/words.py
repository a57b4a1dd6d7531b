"""Answers to five questions about a run: what was released, who sees it, what is protected."""

import math
from typing import Any, assert_never

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon
from sottovoce.reporting.statement import WEAK_EPSILON, channel_facts, clip_bound
from sottovoce.runs.record import RunRecord, algorithm_facts
from sottovoce.runs.site_counts import BY_SERVER, show_charged
from sottovoce.runs.spec import RunSpec


def facts(record: RunRecord, accounts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return five questions about a run's privacy with their answers.

    Args:
        record: The run as its folder has it.
        accounts: What was spent, as `runs.accounts.accounts_of` returns it.

    Returns:
        (question, answer) for: what was released, who sees it, what is protected, how well, and
        what this assumes.
    """
    return [
        ("What was released", _released(record, private=accounts["epsilon"] is not None)),
        ("Who sees it", channel_facts(record, private=accounts["epsilon"] is not None).seen_by),
        ("What is protected", _protected(record.spec, accounts)),
        ("How well", _how_well(record, accounts)),
        ("What this assumes", _assumptions(record, private=accounts["epsilon"] is not None)),
    ]


def _released(record: RunRecord, *, private: bool) -> str:
    spec, rows = record.spec, record.rows
    parameters = ", ".join(
        f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in spec.mechanism.parameters.items()
    )
    mechanism = f"the mechanism {spec.mechanism.kind}" + (f" ({parameters})" if parameters else "")
    if len({str(row["mechanism"]["kind"]) for row in _groups(record)}) > 1:
        mechanism = "mechanisms that differ by group"
    done = f"{record.rounds_done} of {spec.rounds} rounds"
    channel = channel_facts(record)
    if channel.noise_at_server:
        return (
            f"After each of {done}, a mean of clients' updates: {record.dimension:,} numbers with "
            f"noise from {mechanism}. The model that is computed from these means is released too."
        )
    bits = record.header.get("bits_per_coordinate")
    size = f"{bits:.3g} bits" if isinstance(bits, int | float) else "bits"
    if bits == 1:
        size = "1 bit"
    received = f"{sum(row['clients_received'] for row in rows):,} replies of clients"
    if channel.only_sums:
        received = f"sums over {received}"
    drawn = f"privatized by {mechanism}" if private else f"sent without noise by {mechanism}"
    bound = "; it reveals no more than the replies do" if channel.shows_each else ""
    return (
        f"In {done}, {received}. Each describes {_sent(record)} in {size} a number, {drawn}. The "
        f"model that is computed from the replies is released too{bound}."
    )


def _sent(record: RunRecord) -> str:
    """Return what a client's reply describes."""
    sends = algorithm_facts(record.header).sends
    return sends.replace("{numbers}", f"{record.dimension:,} numbers")


def _groups(record: RunRecord) -> list[dict[str, Any]]:
    groups = (record.result or {}).get("groups", [])
    return [group for group in groups if isinstance(group["mechanism"], dict)]


def _protected(spec: RunSpec, accounts: dict[str, Any]) -> str:
    if accounts["epsilon"] is None or spec.mechanism.kind == "no_privacy":
        return "Nothing: values are sent without noise."
    sample = spec.privacy.level == "sample"
    what = "One training sample of a client" if sample else "Everything that one client contributes"
    match spec.privacy.adjacency:
        case Adjacency.ZERO_OUT:
            change = "whether it contributed or a zero took its place"
        case Adjacency.REPLACE_ONE:
            change = "it from any other that might have been in its place"
        case _:
            assert_never(spec.privacy.adjacency)
    return (
        f"{what}: there is a limit to how well an observer can tell {change} (adjacency "
        f"{spec.privacy.adjacency})."
    )


def _how_well(record: RunRecord, accounts: dict[str, Any]) -> str:
    epsilon, delta = accounts["epsilon"], record.spec.privacy.delta
    if epsilon is None:
        return "There is no guarantee."
    if epsilon == 0.0:
        return "No client has been charged yet."
    seen = _if_seen_with_senders(record)
    stated = f"Epsilon {show_epsilon(epsilon)} at delta {delta:g}, for the client that spent most"
    if record.has_sites:
        stated += f", {BY_SERVER}, which charges every site that is asked{_charged(accounts)}"
    if epsilon >= WEAK_EPSILON:
        return f"{stated}. An epsilon this large guarantees very little by itself.{seen}"
    odds = show_epsilon(math.exp(epsilon), 1)
    # Between two arbitrary contributions the bound of zero-out holds twice, by way of zero.
    zero_out = record.spec.privacy.adjacency is Adjacency.ZERO_OUT
    between = "that it contributed rather than a zero" if zero_out else "of any statement about it"
    return (
        f"{stated}: the run changes an observer's odds {between} by a factor of at most {odds} (e "
        f"to the epsilon), except with a probability of about delta.{seen}"
    )


def _charged(accounts: dict[str, Any]) -> str:
    """Return what sites say they charged."""
    sites = accounts["sites"]
    if sites is None:
        return ""
    told = show_charged(sites)
    return (
        f" ({sites['rounds']} requests; {sites['answered']} were answered, {sites['refused']} "
        f"refused; rounds that sites say they charged: {told})"
    )


def _if_seen_with_senders(record: RunRecord) -> str:
    """Return the epsilon if the senders of replies, or the sampled records, were known."""
    local = (record.result or {}).get("local_epsilon")
    channel = channel_facts(record)
    if channel.noise_at_server or local is None:
        return ""
    if not channel.shows_each:
        return f" An observer of replies and their senders has epsilon {show_epsilon(local)}."
    if record.spec.privacy.record_sampling_rate < 1.0:
        return (
            f" An observer who knows which records are sampled has epsilon {show_epsilon(local)}."
        )
    return ""


def _assumptions(record: RunRecord, *, private: bool) -> str:
    spec = record.spec
    stated = (record.result or record.header).get("guarantee")
    found = [f"Stated formally: {stated}." if isinstance(stated, str) else ""]
    assumed = (record.result or {}).get("assumes")
    if isinstance(assumed, str) and assumed not in found[0]:
        found.append(f"Epsilon assumes that {assumed}.")
    if not private:
        return found[0]
    clipped = "every sample's gradient" if spec.privacy.level == "sample" else "what it sends"
    noise = "adds its noise as specified."
    if channel_facts(record).noise_at_server:
        noise = "trusts the server, which adds the noise."
    found.append(
        f"Each client clips {clipped} {clip_bound(record)} and {noise} Settings that were "
        "chosen by looking at the data, such as a clip norm, a learning rate or the best of "
        "several runs, are not covered."
    )
    return " ".join(part for part in found if part)
