"""A run in plain words: what was released, to whom, protecting what, and on what that rests."""

import math
from typing import Any, assert_never

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon
from sottovoce.reporting.statement import WEAK_EPSILON, channel_facts
from sottovoce.runs.record import RunRecord, algorithm_facts
from sottovoce.runs.site_counts import BY_SERVER, show_charged
from sottovoce.runs.spec import RunSpec


def facts(record: RunRecord, accounts: dict[str, Any]) -> list[tuple[str, str]]:
    """What a person who signs for the data should read first, as (question, answer)."""
    return [
        ("What was released", _released(record, private=accounts["epsilon"] is not None)),
        ("Who sees it", channel_facts(record, private=accounts["epsilon"] is not None).seen_by),
        ("What is protected", _protected(record.spec, accounts)),
        ("How well", _how_well(record, accounts)),
        ("What that rests on", _rests_on(record, private=accounts["epsilon"] is not None)),
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
            f"noise from {mechanism}. The model that grows from these means is released too."
        )
    bits = record.header.get("bits_per_coordinate")
    size = f"{bits:.3g} bits" if isinstance(bits, int | float) else "bits"
    if bits == 1:
        size = "1 bit"
    received = f"{sum(row['clients_received'] for row in rows):,} replies of clients"
    if channel.only_sums:
        received = f"sums over {received}"
    drawn = f"drawn by {mechanism}" if private else f"sent as they are by {mechanism}"
    bound = "; it can tell no more than they do" if channel.shows_each else ""
    return (
        f"In {done}, {received}. Each describes {_sent(record)} in {size} a number, {drawn}. The "
        f"model that grows from the replies is released too{bound}."
    )


def _sent(record: RunRecord) -> str:
    """What a client's reply is about."""
    sends = algorithm_facts(record.header).sends
    return sends.replace("{numbers}", f"{record.dimension:,} numbers")


def _groups(record: RunRecord) -> list[dict[str, Any]]:
    groups = (record.result or {}).get("groups", [])
    return [group for group in groups if isinstance(group["mechanism"], dict)]


def _protected(spec: RunSpec, accounts: dict[str, Any]) -> str:
    if accounts["epsilon"] is None:
        return "Nothing: values are sent as they are."
    sample = spec.privacy.level == "sample"
    what = "One training sample of a client" if sample else "Everything that one client contributes"
    match spec.privacy.adjacency:
        case Adjacency.ZERO_OUT:
            change = "whether it contributed or a zero stood in its place"
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
        return "Nobody has been charged yet."
    seen = _if_seen_with_senders(record)
    stated = f"Epsilon {show_epsilon(epsilon)} at delta {delta:g}, for the client that spent most"
    if record.has_sites:
        stated += f", {BY_SERVER}, which charges every site that is asked{_charged(accounts)}"
    if epsilon >= WEAK_EPSILON:
        return f"{stated}. An epsilon this large guarantees very little by itself.{seen}"
    odds = show_epsilon(math.exp(epsilon), 1)
    return (
        f"{stated}: whatever an observer held likely before, the run changes those odds by a "
        f"factor of at most {odds} (e to the epsilon), save for cases about as rare as delta.{seen}"
    )


def _charged(accounts: dict[str, Any]) -> str:
    """What sites say instead, in a few words."""
    sites = accounts["sites"]
    if sites is None:
        return ""
    told = show_charged(sites)
    return (
        f" ({sites['rounds']} orders; {sites['answered']} were answered, {sites['refused']} "
        f"refused; rounds that sites say they charged: {told})"
    )


def _if_seen_with_senders(record: RunRecord) -> str:
    """The epsilon if what the run hides, replies' senders or samples of records, were seen."""
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


def _rests_on(record: RunRecord, *, private: bool) -> str:
    spec = record.spec
    stated = (record.result or record.header).get("guarantee")
    found = [f"Stated formally: {stated}." if isinstance(stated, str) else ""]
    assumed = (record.result or {}).get("assumes")
    if isinstance(assumed, str) and assumed not in found[0]:
        found.append(f"Epsilon assumes that {assumed}.")
    if not private:
        return found[0]
    clipped = "every sample's gradient" if spec.privacy.level == "sample" else "what it sends"
    noise = "draws its noise as announced."
    if channel_facts(record).noise_at_server:
        noise = "trusts the server, which draws the noise."
    found.append(
        f"Each client clips {clipped} (norm {spec.privacy.clip_norm:g}) and {noise} What was "
        "chosen by looking at the data, such as a clip norm, a learning rate or the best of "
        "several runs, is not covered."
    )
    return " ".join(part for part in found if part)
