"""Run a spec into a folder, resume it, and launch it on the backend that it names."""

import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from sottovoce.core.errors import ConfigError, DataError, LedgerError, OutputError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.stages import stage
from sottovoce.federated.training import Halted
from sottovoce.learning.clients import counted_clipping
from sottovoce.ledger.ledger import Ledger
from sottovoce.runs.backends import BACKENDS, register_backend
from sottovoce.runs.build import BackendFactory, build
from sottovoce.runs.folder import Checkpoints, RunFolder, describe_resume
from sottovoce.runs.inputs import digest_of, load_inputs
from sottovoce.runs.outcome import (
    Metrics,
    header,
    may_count_clipping,
    metrics_row,
    result_of,
    stop_if_diverged,
)
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.site_counts import check_any_round_counted
from sottovoce.runs.spec import RunSpec
from sottovoce.version import __version__

OnRound = Callable[[Metrics], None]
OnResume = Callable[[str], None]
ScheduleFactory = Callable[[Resolved], SeededRandomness | None]


def run(
    spec: RunSpec,
    folder: Path,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_resume: OnResume | None = None,
    make_backend: BackendFactory | None = None,
    make_schedule: ScheduleFactory | None = None,
) -> dict[str, Any]:
    """Run a spec to its end in a folder, and return the result.

    A resumed run continues from its last checkpoint. Seeded runs continue bit for bit; rounds that
    were already charged send their stored messages again, without another charge. A run that has
    ended is evaluated again, without training. On a KeyboardInterrupt the finished rounds are saved
    before it is raised.

    Args:
        spec: What to run.
        folder: The run folder. It must be empty or not exist, unless the run is resumed.
        resume: Continue the interrupted run in `folder`.
        on_round: Called with the metrics of each finished round.
        on_resume: Called with a sentence that says where a resumed run continues.
        make_backend: A function of the run and its ledger that returns the object which collects
            the messages of each round; by default all clients are in this process.
        make_schedule: A function of the run that returns the randomness of its cohorts, or None
            for that of the spec's seed, which is the default. Such a run cannot be resumed.

    Returns:
        The content of result.json. If too few clients had budget for a round, the run stops before
        it and `halted` says why; otherwise `halted` is None.

    Raises:
        UnknownNameError: Something that the spec names is not registered.
        ConfigError: Parts of the spec do not fit together, or differ from the run to resume; or the
            model has diverged, which result.json then says.
        ParameterError: A parameter is out of range, or no noise keeps the budget.
        DataError: The data are missing or damaged, or differ from those of the run to resume.
        OutputError: The folder cannot be used.
        LedgerError: The ledger of the run to resume is damaged or lacks charges.
        DeploymentError: With `make_backend`: no round had enough replies to change the model.
    """
    run_folder = RunFolder(folder)
    with limit_threads(spec):
        with stage("load"):
            resolved = resolve(load_inputs(spec))
        return _run(
            resolved,
            run_folder,
            resume,
            on_round or _ignore,
            on_resume or _ignore,
            make_backend,
            make_schedule(resolved) if make_schedule else None,
        )


def _ignore(_: object) -> None:
    return None


@contextlib.contextmanager
def limit_threads(spec: RunSpec) -> Iterator[None]:
    """Let torch use one thread in the `with` block if `runtime.deterministic` is true.

    Results then do not depend on the number of cores.
    """
    before = torch.get_num_threads()
    if spec.runtime.deterministic:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(
    resolved: Resolved,
    run_folder: RunFolder,
    resume: bool,
    on_round: OnRound,
    on_resume: OnResume,
    backend_of: BackendFactory | None,
    schedule: SeededRandomness | None,
) -> dict[str, Any]:
    stored = resolved.spec.runtime.messages == "stored"
    if resume:
        check_can_resume(run_folder, resolved)
        resolved = dataclasses.replace(resolved, run=run_folder.header().get("run", resolved.run))
    else:
        resolved = _with_own_name(resolved)
        run_folder.create(header(resolved), with_ledger=stored)
        if not resolved.spec.data.sites:
            run_folder.save_data_digest(digest_of(resolved.spec, resolved.clients, resolved.task))
    with run_folder.locked(), run_folder.ledger() if stored else contextlib.nullcontext() as ledger:
        if resume:
            _check_nothing_is_missing(run_folder, ledger, resolved.run)
            on_resume(describe_resume(run_folder, resolved.spec))
        training = build(resolved, ledger, backend_of, schedule)
        progress = run_folder.load_checkpoint() or training.start()
        training.replay(progress)
        run_folder.keep_metrics_up_to(progress.rounds_done)
        checkpoints = Checkpoints(run_folder, resolved, training.record, done=progress)
        halted = None
        remote, needed = backend_of is not None, resolved.spec.deployment.minimum_replies
        with checkpoints.save_on_interrupt():
            while progress.rounds_done < resolved.spec.rounds:
                with counted_clipping(may_count_clipping(resolved)) as clipping:
                    outcome = training.step(progress)
                if isinstance(outcome, Halted):
                    halted = outcome.reason
                    checkpoints.save()
                    break
                progress, record = outcome
                row = metrics_row(resolved, training.record, progress, record)
                if clipping.rows:
                    row["clipped_share"] = clipping.clipped / clipping.rows
                if remote and progress.rounds_done == resolved.spec.rounds:
                    # Check this before saving, so that a resumed run repeats the round.
                    check_any_round_counted([*run_folder.metrics(), row], minimum_replies=needed)
                with stage("checkpoint"):
                    run_folder.append_metrics(row)
                    if "diverged" in row:
                        break  # The last checkpoint stays that of a model that can be used.
                    checkpoints.after_round(progress)
                on_round(row)
        if remote:
            check_any_round_counted(run_folder.metrics(), minimum_replies=needed)
        result = result_of(resolved, training, run_folder.metrics(), progress, halted)
        run_folder.save_result(result)
    stop_if_diverged(result)
    return result


def _with_own_name(resolved: Resolved) -> Resolved:
    """Return the run with a unique name, since another run may have the same spec.

    A seeded run keeps the name, because it repeats the earlier one exactly.
    """
    spec = resolved.spec
    if spec.randomness == "seeded":
        return resolved
    return dataclasses.replace(resolved, run=f"{spec.hash}-{secrets.token_hex(4)}")


def _check_nothing_is_missing(run_folder: RunFolder, ledger: Ledger | None, run_name: str) -> None:
    """Refuse files that contradict each other: spending must not look smaller than it is."""
    checkpoint = run_folder.load_checkpoint()
    if ledger is not None:
        _check_ledger(run_folder, ledger, run_name)
    done = checkpoint.rounds_done if checkpoint else 0
    rounds = [row["round"] for row in run_folder.metrics()][:done]
    if rounds != list(range(1, done + 1)):
        raise OutputError(
            f"{run_folder.path / 'metrics.jsonl'} lacks rounds that the checkpoint has; restore it "
            "from a backup"
        )


def _check_ledger(run_folder: RunFolder, ledger: Ledger, run_name: str) -> None:
    problems = ledger.verify()
    if problems:
        raise LedgerError(
            f"the ledger of {run_folder.path} is damaged: {problems[0]}; restore it from a backup"
        )
    expected = run_folder.charges_at_checkpoint()
    if ledger.num_charges < expected:
        raise LedgerError(
            f"the ledger of {run_folder.path} holds {ledger.num_charges} charges, but there were "
            f"{expected} at the checkpoint; restore it from a backup, together with its -wal file "
            "if there is one"
        )
    if run_folder.load_checkpoint() is None and ledger.discarded_messages(run_name):
        raise OutputError(
            f"{run_folder.path} has lost its checkpoint.npz; restore it from a backup, since "
            "otherwise rounds that were sent would be charged again"
        )


def check_can_resume(run_folder: RunFolder, resolved: Resolved) -> None:
    """Refuse to resume with another spec, model or data than the run was started with.

    Raises:
        OutputError: The folder holds no run, or run.json is damaged.
        ConfigError: The spec or the model differs.
        DataError: The data differ; data at remote sites are not compared.
    """
    _check_same_spec(run_folder, resolved.spec)
    _check_same_parts(run_folder, resolved)


def _check_same_spec(run_folder: RunFolder, spec: RunSpec) -> None:
    if not run_folder.exists:
        raise OutputError(
            f"nothing to resume: {run_folder.path} is not a run folder; leave out --resume (in "
            "Python resume=True) to start a run, or name the folder of an interrupted run with "
            "--out (in Python out=)"
        )
    header = run_folder.header()
    if "tuning" in header:
        raise ConfigError(
            f"{run_folder.path} holds the best of several trials, which has ended; resuming it "
            "would lose what the choice cost. Choose another folder (--out, in Python out=)"
        )
    found = header["spec_hash"]
    begun = header.get("sottovoce", "earlier than 0.1")
    if isinstance(header["spec"], dict) and "rotation" not in header["spec"]:
        raise ConfigError(
            f"{run_folder.path} was started by version {begun}, which had no rotations; resume it "
            "with that version, or choose another folder (--out, in Python out=)"
        )
    if found != spec.hash:
        versions = f"it was started by version {begun}, and this is {__version__}"
        other = f", or calibrated by another version: {versions}" if begun != __version__ else ""
        raise ConfigError(
            f"{run_folder.path} was started with another spec "
            f"({spec.changes_since(header['spec'])}){other}; resume with the same spec and "
            "version, set the mechanism's parameters to those in its run.json (--set "
            "mechanism.noise_multiplier=...), or choose another folder (--out, in Python out=)"
        )


def _check_same_parts(run_folder: RunFolder, resolved: Resolved) -> None:
    """Refuse another model or other data.

    The spec only names files, functions and arrays in memory, and they may have changed.
    """
    layout = [[name, list(shape)] for name, shape in resolved.task.layout.items()]
    before = run_folder.header()
    # Earlier versions did not store the digest.
    frozen = before.get("frozen", resolved.task.fixed_digest)
    if before["layout"] != layout or frozen != resolved.task.fixed_digest:
        raise ConfigError(
            f"the model of {run_folder.path} has other parameters than the model that the spec "
            "now describes; resume with the model of the start, or choose another folder (--out, "
            "in Python out=)"
        )
    if resolved.spec.data.sites:
        return
    expected = run_folder.data_digest()
    if expected is not None and expected != digest_of(
        resolved.spec, resolved.clients, resolved.task
    ):
        raise DataError(
            f"{run_folder.path} was started on other data: '{resolved.spec.data.dataset}' has "
            "changed since; restore it, or choose another folder (--out, in Python out=)"
        )


def launch(
    spec: RunSpec,
    folder: Path,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_resume: OnResume | None = None,
) -> dict[str, Any]:
    """Run a spec to its end in a folder, on the backend that it names.

    The arguments, the result and the errors are those of `run`.

    Raises:
        UnknownNameError: There is no such backend.
        ConfigError: The backend is "flower", which only `sottovoce deploy run` can use.
    """
    backend = BACKENDS.find(spec.runtime.backend)
    return backend(spec, folder, resume=resume, on_round=on_round, on_resume=on_resume)


@register_backend("fast")
def _in_this_process(
    spec: RunSpec,
    folder: Path,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_resume: OnResume | None = None,
) -> dict[str, Any]:
    return run(spec, folder, resume=resume, on_round=on_round, on_resume=on_resume)


@register_backend("flower")
def _on_machines(*_: Any, **__: Any) -> dict[str, Any]:
    raise ConfigError(
        "runtime.backend = 'flower' runs on a federation of machines; use 'sottovoce deploy run "
        "FEDERATION SPEC', or set runtime.backend to 'fast' or 'flower-sim'"
    )


@register_backend("relay")
def _through_relay(*_: Any, **__: Any) -> dict[str, Any]:
    raise ConfigError(
        "runtime.backend = 'relay' runs between a relay, a collector and clients on machines of "
        "their own; use 'sottovoce deploy run COLLECTOR_DIR SPEC', or set runtime.backend to 'fast'"
    )
