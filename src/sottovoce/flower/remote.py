"""Runs of a spec over Flower's grid, on real machines or in Flower's simulation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.masked_rounds import MaskedRounds
from sottovoce.deployment.post import Transport, Witness, with_witness
from sottovoce.deployment.remote_rounds import RemoteRounds, WaitLimits, spec_for_sites
from sottovoce.deployment.site_training import compute
from sottovoce.flower.grid_post import (
    CountTraffic,
    Grid,
    GridPost,
    KeyedDirectory,
    ReportedNameDirectory,
    count_no_traffic,
    wait_for_all,
)
from sottovoce.flower.simulation import simulate
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.channels.channel import Channel
from sottovoce.protocol.channels.secure_sum import PAIRWISE, SecureSum
from sottovoce.protocol.plan import message_dimension
from sottovoce.protocol.secure.roster import Roster
from sottovoce.runs.backends import register_backend
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs, randomness_of
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.runner import OnResume, OnRound, check_can_resume, run
from sottovoce.runs.spec import RunSpec


def run_on_grid(
    spec: RunSpec,
    folder: Path,
    grid: Grid,
    *,
    name_of_key: Mapping[bytes, str],
    traffic: CountTraffic = count_no_traffic,
    witness: Witness | None = None,
    roster: Roster | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_resume: OnResume | None = None,
) -> dict[str, Any]:
    """Run `spec` with the nodes of a grid and return the content of its result.json.

    With `name_of_key` nodes are identified by their public keys; if it is empty, they are asked for
    their names. A run without a checkpoint waits until all clients are online, and raises
    DeploymentError after `deployment.wait_seconds`; a run that is resumed from a checkpoint
    continues with those that are. `traffic` counts the bytes on the network. A `witness` keeps what
    sites state about their ledgers. A `roster` is needed for secure sums by pairwise
    masks. `resume`, `on_round` and `on_resume` are those of `runs.run`.
    """
    directory = KeyedDirectory(grid, name_of_key) if name_of_key else ReportedNameDirectory(grid)

    def backend(resolved: Resolved, ledger: Ledger) -> RemoteRounds:
        if RunFolder(folder).load_checkpoint() is None:
            names = [part.client for part in resolved.parts]
            wait_for_all(directory, names, seconds=spec.deployment.wait_seconds)
        post = with_witness(GridPost(grid, directory, traffic), witness)
        return _make_rounds(post, resolved, ledger, roster)

    return run(
        spec, folder, resume=resume, on_round=on_round, on_resume=on_resume, make_backend=backend
    )


def with_flower_backend(spec: RunSpec) -> RunSpec:
    """Return the spec with the backend 'flower', whatever backend it names."""
    runtime = spec.runtime.model_copy(update={"backend": "flower"})
    return spec.model_copy(update={"runtime": runtime})


def check_buildable(spec: RunSpec, run_folder: RunFolder, *, resume: bool) -> None:
    """Raise what `run_on_grid` would raise about the spec, its data and a run to resume.

    Nothing is written, and no client is asked. Whether the folder of a new run is empty, and
    whether clients are online, is not checked.
    """
    resolved = resolve(load_inputs(with_flower_backend(spec)))
    if resume:
        check_can_resume(run_folder, resolved)


@register_backend("flower-sim")
def run_in_flower_simulation(
    spec: RunSpec,
    folder: Path,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_resume: OnResume | None = None,
) -> dict[str, Any]:
    """Run `spec` in Flower's simulation, with a virtual node per client; return its result.

    All virtual sites share the ledger `sites.sqlite` in the run folder, next to the server's own.
    The arguments are those of `runs.run`.
    """
    # Resolving first reports errors in the spec before anything is started.
    names = resolve(load_inputs(spec)).clients.names
    return simulate(
        names,
        folder / "sites.sqlite",
        compute,
        lambda grid: run_on_grid(
            spec,
            folder,
            grid,
            name_of_key={},
            resume=resume,
            on_round=on_round,
            on_resume=on_resume,
        ),
    )


def _make_rounds(
    post: Transport[Any], resolved: Resolved, ledger: Ledger, roster: Roster | None = None
) -> RemoteRounds:
    """Return the rounds of a run whose clients are reached through `post`."""
    spec = resolved.spec
    assert not resolved.channel.noise_at_server
    waiting = spec.deployment
    common: dict[str, Any] = {
        "run": resolved.run,
        "dimension": message_dimension(resolved.parts),
        "parts": resolved.parts,
        "algorithm": resolved.algorithm,
        "adjacency": spec.privacy.adjacency,
        "randomness": randomness_of(spec),
        "ledger": ledger,
        "rotated": spec.rotation == "on",
        "channel": resolved.channel,
        "spec": spec_for_sites(spec),
        "classes": resolved.num_classes,
        "frozen": resolved.task.fixed_digest,
        "downlink": spec.runtime.downlink,
        "post": post,
        "patience": WaitLimits(
            deadline_seconds=waiting.deadline_seconds,
            enough=1.0 / waiting.oversampling,
            minimum_replies=waiting.minimum_replies,
            idle_rounds=waiting.idle_rounds,
        ),
    }
    if not _is_masked(resolved.channel):
        return RemoteRounds(**common)
    if roster is None:
        raise DeploymentError(
            "a secure sum by pairwise masks needs the roster of the sites' keys, which this "
            "federation has not; make it with 'sottovoce deploy roster'"
        )
    _check_listed(roster, [part.client for part in resolved.parts])
    return MaskedRounds(**common, roster=roster)


def _is_masked(channel: Channel) -> bool:
    return isinstance(channel, SecureSum) and channel.protocol == PAIRWISE


def _check_listed(roster: Roster, clients: Sequence[str]) -> None:
    missing = [client for client in clients if client not in roster.keys]
    if missing:
        raise DeploymentError(
            f"the roster has no key of {', '.join(missing[:5])}, so they could not take part; add "
            "their trust.pub with 'sottovoce deploy roster', and let all sites pin the new roster"
        )
