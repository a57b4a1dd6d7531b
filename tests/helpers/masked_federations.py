"""Runs and policies for federations that sum behind masks."""

import json
from collections.abc import Sequence
from typing import Any

from federated_runs import federated_table
from federations import RunningFederation
from specs import LOCAL_STEPS

CHANNEL = {"kind": "secure_sum", "protocol": "pairwise", "minimum_clients": 2}


def masked_table(name: str, *, rounds: int, sites: Sequence[str], **changes: Any) -> dict[str, Any]:
    table = federated_table(
        name,
        clients=len(sites),
        rounds=rounds,
        channel=CHANNEL,
        mechanism={"kind": "clamped_sign", "logit_bound": 0.5},
        algorithm=LOCAL_STEPS,
        privacy={"level": "client", "clip_norm": 1.0, "epsilon": 40.0, "delta": 1e-5},
    )
    runtime = {"deterministic": True, "backend": "flower"}  # also where it is simulated
    return table | {"runtime": runtime} | changes


def permit(running: RunningFederation, site: str, **changes: Any) -> None:
    """Write a site's policy, and leave the roster pinned."""
    policy = {
        "mechanisms": ["clamped_sign"],
        "level": "client",
        "adjacency": "zero-out",
        "epsilon_per_round": 100.0,
        "epsilon_total": 1000.0,
        "delta": 1e-5,
        "smallest_cohort": 1,
        "seeded_randomness": True,
        "honest": 2,
        "colluders": 1,
    } | changes
    file = running.site(site).file
    before, _, after = file.read_text().partition("[policy]")
    trust = after[after.index("[trust]") :]
    lines = [f"{key} = {json.dumps(value)}" for key, value in policy.items()]
    file.write_text("\n".join([before + "[policy]", *lines, "", trust]))
