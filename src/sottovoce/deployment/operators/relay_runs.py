"""Runs of a spec with the clients of a collector's relay."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.errors import ConfigError
from sottovoce.deployment.operators.collecting import (
    CollectorLink,
    ReportWindow,
    Wait,
    open_collector,
)
from sottovoce.deployment.operators.folders import COLLECTOR_FILE, CollectorFolder
from sottovoce.deployment.operators.relay_rounds import RelayRounds
from sottovoce.deployment.remote_rounds import spec_for_sites
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.channels.channel import Channel
from sottovoce.protocol.channels.secure_sum import TWO_SERVER, SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.protocol.plan import message_dimension
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs, randomness_of
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.runner import OnResume, OnRound, check_can_resume, run
from sottovoce.runs.spec import RunSpec


def with_relay_backend(spec: RunSpec) -> RunSpec:
    """Return the spec with the backend 'relay', whatever backend it names."""
    runtime = spec.runtime.model_copy(update={"backend": "relay"})
    return spec.model_copy(update={"runtime": runtime})


def run_through_relay(
    spec: RunSpec,
    folder: Path,
    collector: CollectorFolder,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_resume: OnResume | None = None,
    wait: Wait = time.sleep,
) -> dict[str, Any]:
    """Run a spec with the clients of a collector's relay, and return the content of result.json.

    Args:
        spec: What to run; its clients are named in `data.names` or `data.sites`.
        folder: The run folder.
        collector: The collector's folder.
        resume: Continue the interrupted run in `folder`. An attempt that was open is lost.
        on_round: Called with the metrics of each finished round.
        on_resume: Called with a sentence that says where a resumed run continues.
        wait: Sleeps for a number of seconds; a KeyboardInterrupt that it raises ends the run, so
            that it can be resumed.

    Raises:
        ConfigError: What `check_relayed` raises; no client was charged.
        SottovoceError: What `runs.run` raises.
    """
    with open_collector(collector, wait=wait) as link:

        def backend(resolved: Resolved, ledger: Ledger) -> RelayRounds:
            return _rounds(resolved, ledger, collector, link)

        return run(
            with_relay_backend(spec),
            folder,
            resume=resume,
            on_round=on_round,
            on_resume=on_resume,
            make_backend=backend,
        )


def check_runnable(
    spec: RunSpec, collector: CollectorFolder, run_folder: RunFolder, *, resume: bool
) -> None:
    """Raise what `run_through_relay` would raise before anyone is charged; write nothing.

    Whether the folder of a new run is empty, and whether the relay answers, is not checked.
    """
    resolved = resolve(load_inputs(with_relay_backend(spec)))
    check_relayed(resolved, collector)
    if resume:
        check_can_resume(run_folder, resolved)


def check_relayed(resolved: Resolved, collector: CollectorFolder) -> None:
    """Raise ConfigError if this collector cannot run a spec.

    The channel needs no relay or counts on fewer clients than the collector's file, or the spec
    names clients that were not admitted.
    """
    channel = _relayed_channel(resolved)
    honest = channel.fewest_messages - channel.most_colluders
    for name, value, least in (
        ("minimum_clients", honest, collector.minimum_clients),
        ("colluders", channel.most_colluders, collector.colluders),
    ):
        if value < least:
            raise ConfigError(
                f"channel.{name} = {value} is less than the {least} of this collector's "
                f"{COLLECTOR_FILE}; no client was charged. Set channel.{name} to at least {least}"
            )
    _check_admitted(collector, [part.client for part in resolved.parts])


def _rounds(
    resolved: Resolved, ledger: Ledger, collector: CollectorFolder, link: CollectorLink
) -> RelayRounds:
    spec = resolved.spec
    check_relayed(resolved, collector)
    return RelayRounds(
        run=resolved.run,
        dimension=message_dimension(resolved.parts),
        parts=resolved.parts,
        algorithm=resolved.algorithm,
        adjacency=spec.privacy.adjacency,
        randomness=randomness_of(spec),
        ledger=ledger,
        rotated=spec.rotation == "on",
        channel=resolved.channel,
        spec=spec_for_sites(spec),
        classes=resolved.num_classes,
        frozen=resolved.task.fixed_digest,
        downlink=spec.runtime.downlink,
        link=link,
        window=_window(resolved, collector),
        minimum_replies=spec.deployment.minimum_replies,
        idle_rounds=spec.deployment.idle_rounds,
        threshold=resolved.channel.fewest_messages,
    )


def _relayed_channel(resolved: Resolved) -> Channel:
    """Return the channel of a run; raise ConfigError if it does not go through a relay."""
    match resolved.channel:
        case SecureSum(protocol=protocol) as channel if protocol == TWO_SERVER:
            return channel
        case Shuffler(protocol=protocol) as channel if protocol == TWO_SERVER:
            if resolved.algorithm.uplinks > 1:
                raise ConfigError(
                    "a relay shuffles one message of each client in a round; use an algorithm "
                    "with one uplink, or the channel 'secure_sum'"
                )
            return channel
        case _:
            raise ConfigError(
                f"the channel '{resolved.channel.kind}' needs no relay; set channel.kind = "
                "'secure_sum' or 'shuffler' with protocol = 'two_server'"
            )


def _window(resolved: Resolved, collector: CollectorFolder) -> ReportWindow:
    seconds = int(resolved.spec.deployment.deadline_seconds)
    if isinstance(resolved.channel, SecureSum):
        return ReportWindow(report_seconds=seconds)
    return ReportWindow(
        report_seconds=seconds,
        confirm_seconds=collector.confirm_seconds,
        slack=collector.slack,
    )


def _check_admitted(collector: CollectorFolder, clients: Sequence[str]) -> None:
    known = collector.clients()
    missing = [client for client in clients if client not in known]
    if missing:
        raise ConfigError(
            f"the spec's client '{missing[0]}' was not admitted by this collector; sign its "
            f"request with 'sottovoce deploy admit {collector.folder}', or name other clients in "
            "'data.names'"
        )
