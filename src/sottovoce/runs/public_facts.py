"""Public facts about a run from which its diagnosis follows: noise, rounding and a trivial model.

They follow from the spec, from the sizes that the guarantee declares public, and from the test
data, on which the accuracy is measured too; never from a client's records.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from sottovoce.core.domains import Domain
from sottovoce.core.errors import SottovoceError
from sottovoce.federated.training import Progress
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import NoisySums
from sottovoce.protocol.broadcast import as_received
from sottovoce.protocol.plan import ClientPlan
from sottovoce.runs.groups import calibrate_group
from sottovoce.runs.resolve import Resolved, rounds_per_client
from sottovoce.runs.spec import MechanismSpec

_MOST_DOMAINS = (
    64  # Clients with different numbers of records, for each of which noise is computed.
)
_HUGE_LOSS = 100.0  # In nats; guessing among c classes has a loss of log c.
_MOST_COORDINATES = 2**16  # Where a mechanism's law depends on whole updates.


def public_facts(
    resolved: Resolved, rows: list[dict[str, Any]], progress: Progress
) -> dict[str, Any]:
    """Return the facts that `runs.diagnosis` reads.

    Args:
        resolved: The run.
        rows: The metrics of its rounds.
        progress: The model after the last round.

    Returns:
        `trivial_score`: the score of the best constant answer on the test data; `test_samples`;
        `equal_weights`: whether all clients have the same weight; `clients`: the mean number of
        replies in a round; `update_norm`: the root mean square of the norms of the decoded mean
        updates; `noise_norm`: that of the noise in them, which is known; `gaussian_noise_norm`:
        that of Gaussian noise of the same budget; `downlink_error`: the norm of the rounding of the
        model that clients receive; `overshoots`: whether the test loss is far above that of
        guessing. An entry that is not known is None.
    """
    replies = [row["clients_received"] for row in rows if row["clients_received"]]
    clients = sum(replies) / len(replies) if replies else 0.0
    norms = [row["update_norm"] for row in rows if row.get("update_norm") is not None]
    noise = noise_norm(resolved, resolved.parts, clients)
    received = as_received(progress.model, resolved.spec.runtime.downlink)
    return {
        "trivial_score": resolved.task.trivial_score(),
        "test_samples": resolved.task.num_test_samples,
        "equal_weights": len({part.weight for part in resolved.parts}) == 1,
        "clients": clients,
        "update_norm": math.sqrt(sum(n * n for n in norms) / len(norms)) if norms else None,
        "noise_norm": noise,
        "gaussian_noise_norm": _gaussian_noise_norm(resolved, clients) if noise else None,
        "downlink_error": float(np.linalg.norm(received - progress.model)),
        "overshoots": overshoots(resolved, rows),
    }


def overshoots(resolved: Resolved, rows: list[dict[str, Any]]) -> bool:
    """Return whether the last test loss is far above that of guessing.

    Args:
        resolved: The run.
        rows: The metrics of its rounds.
    """
    loss = rows[-1]["loss"] if rows else None
    return resolved.task.has_softmax and loss is not None and loss > _HUGE_LOSS


def noise_norm(resolved: Resolved, parts: tuple[ClientPlan, ...], clients: float) -> float | None:
    """Return the root mean square of the norm of the noise in a mean of so many clients."""
    if not clients or resolved.section.traits(resolved.algorithm.unit).sends_models:
        return None
    variance_of: dict[int, float] = {}
    total = weights = 0.0
    for part in parts:
        key = id(part.mechanism)
        if key not in variance_of:
            found = noise_energy(part.mechanism)
            if found is None:
                return None
            variance_of[key] = found
        total += part.weight**2 * variance_of[key]
        weights += part.weight
    mean_weight, energy = weights / len(parts), total / len(parts)
    visibility = resolved.channel.visibility
    if isinstance(visibility, NoisySums):  # One noise, divided by the expected weight.
        return math.sqrt(energy) / (visibility.client_sampling_rate * weights)
    return math.sqrt(energy / clients) / mean_weight


def noise_energy(mechanism: Mechanism) -> float | None:
    """Return the expected squared norm of the noise in a decoded message about a zero update.

    None where it depends on whole updates that are too long to compute it, and where clients add
    the noise to their local steps.
    """
    if isinstance(mechanism, registry.PostProcesses):
        return None
    domain = mechanism.input_domain
    registration = registry.find(registry.kind_of(mechanism))
    if registration.coordinatewise:
        alone: Domain = dataclasses.replace(domain, dimension=1)  # type: ignore[type-var]
        small = dataclasses.replace(mechanism, input_domain=alone)  # type: ignore[type-var]
        return domain.dimension * float(small.law(np.zeros(1)).variance()[0])
    if domain.dimension > _MOST_COORDINATES:
        return None
    return float(mechanism.law(np.zeros(domain.dimension)).variance().sum())


def _gaussian_noise_norm(resolved: Resolved, clients: float) -> float | None:
    """Return the noise of the mechanism 'gaussian' with the budgets of the run.

    None if the run has no budget, or hides messages or records, so that the comparison would take
    long or need another mechanism.
    """
    domain_of = {part.client: part.mechanism.input_domain for part in resolved.parts}
    if (
        not resolved.channel.shows_each
        or any(one.epsilon is None for one in resolved.groups)
        or resolved.algorithm.record_sampling_rate < 1.0
        or len(set(domain_of.values())) > _MOST_DOMAINS
    ):
        return None
    rounds = rounds_per_client(resolved.spec, len(resolved.clients)) * resolved.algorithm.uplinks
    parts = {part.client: part for part in resolved.parts}
    found = []
    try:
        for group in resolved.groups:
            domains = list(dict.fromkeys(domain_of[name] for name in group.clients))
            wanted = dataclasses.replace(group, mechanism=MechanismSpec(kind="gaussian"))
            done = calibrate_group(wanted, domains, rounds=rounds, terms=resolved.terms)
            registration = registry.find("gaussian")
            built = {
                domain: registration.build(domain, done.mechanism.parameters) for domain in domains
            }
            found += [
                dataclasses.replace(parts[name], mechanism=built[domain_of[name]])
                for name in group.clients
            ]
    except SottovoceError:  # No noise keeps this budget, or no bound is proved for it.
        return None
    return noise_norm(resolved, tuple(found), clients)
