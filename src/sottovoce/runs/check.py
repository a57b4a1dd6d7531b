"""The function `check`: what a run would cost, and why it would be refused.

Costs are not predicted. Rounds are charged to a tally in memory by the same code that charges a
run, and epsilons are read from it by the code that writes a run's result.
"""

import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sottovoce.core.domains import Vector
from sottovoce.core.errors import SottovoceError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.rounds import compute_finite_uplinks
from sottovoce.federated.training import MAX_COORDINATES_IN_MEMORY, Halted, Training
from sottovoce.learning import datasets
from sottovoce.learning.in_memory import provide_objects
from sottovoce.ledger.records import SpendingRecord
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import compose_repeated, without_trust
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.protocol.message import HEADER_BYTES
from sottovoce.runs.build import build
from sottovoce.runs.checked import CheckResult, ClientCost, problems_of, table_of
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import ReadSpec, check_code_allowed, data_folders, read_with_problems
from sottovoce.runs.outcome import Metrics, spending_of, warnings_of
from sottovoce.runs.refusals import refusals
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.runner import limit_threads
from sottovoce.runs.simulate import collect_parts, read_given_table
from sottovoce.runs.spec import RunSpec

if TYPE_CHECKING:
    from sottovoce.runs.simulate import Model

History = tuple[tuple[PrivacyEvent, int], ...]  # Events, and how often each was charged.

_TIMED_CLIENTS = 64
_TIMED_SECONDS = 0.5
_LONG_SECONDS = 10.0  # A first attempt this long is not repeated.
_FLOAT_BYTES = 8
_ONLY_SITES_KNOW = (
    "only the sites know what their ledgers hold from earlier runs and what their policies allow: "
    "a site may refuse orders, and its own ledger counts everything that it has ever spent",
    "only the sites know how long they train; the bytes are those of the messages, without the "
    "overhead of the transport",
)


def check(
    spec: str | Path | Mapping[str, Any] | RunSpec,
    *,
    model: "Model | None" = None,
    data: object = None,
    overrides: Mapping[str, Any] | None = None,
    allow_code: bool = False,
    timed: bool = True,
) -> CheckResult:
    """Return what a run would cost each client, or the reasons why it would be refused.

    Nothing is charged or downloaded, and no run folder is written. Only caches, of
    calibrated parameters and of computed features, may be updated.

    Args:
        spec: The path of a TOML file, the same as a dictionary, or a `RunSpec`, as for `simulate`.
        model: A model that replaces the spec's, as for `simulate`.
        data: Data that replace the spec's, as for `simulate`.
        overrides: Values by dotted key, such as {"privacy.epsilon": 2.0}.
        allow_code: Import and run the code that a file or a dictionary names.
        timed: Train and encode for a few clients, to estimate time and memory; the results are
            discarded. Otherwise, and where clients train on other machines, the estimates are None.

    Returns:
        Epsilons, bytes and estimates; or the problems, where the run would be refused. An invalid
        spec raises no error: it is a problem, too.

    Raises:
        ParameterError: `model` is not a module or function.
        DataError: `data` cannot be read as arrays.

    Examples:
        >>> import numpy as np
        >>> import sottovoce
        >>> spec = {
        ...     "rounds": 2,
        ...     "randomness": "seeded",
        ...     "data": {"clients": 4},
        ...     "model": {"kind": "linear"},
        ...     "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0},
        ...     "privacy": {"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5},
        ...     "mechanism": {"kind": "gauss_hermite", "levels": 2},
        ... }
        >>> data = np.eye(8), np.arange(8) % 2
        >>> found = sottovoce.check(spec, data=data, timed=False)
        >>> found.would_run, found.costs[0].rounds, round(found.costs[0].epsilon, 2)
        (True, 2, 4.0)
        >>> sottovoce.check({**spec, "rounds": 0}, data=data).problems
        ("spec: 'rounds' must be greater than or equal to 1, got 0",)
    """
    parts = collect_parts(model, data, spec)
    try:
        table = read_given_table(spec, overrides or {}, parts)
    except SottovoceError as error:
        return CheckResult(problems=problems_of(error))
    source, folders = "spec", list[Path]()
    if isinstance(spec, str | Path):
        source = str(Path(spec).expanduser())
        folders = data_folders(Path(source), overrides or {})
    read = read_with_problems(table, source, folders)
    allowed = allow_code or isinstance(spec, RunSpec)
    with provide_objects(*parts):
        return check_read(read, allow_code=allowed, how="allow_code=True", timed=timed)


def check_read(
    read: ReadSpec, *, allow_code: bool, how: str = "--allow-code", timed: bool = True
) -> CheckResult:
    """Return the costs of a spec that `read_with_problems` has read, or all of its problems.

    Args:
        read: The spec, and the problems that were found while reading it.
        allow_code: Whether code that the spec names may be run.
        how: The option that allows it, for the message.
        timed: Whether to estimate time and memory by training and encoding for a few clients.
    """
    spec = read.spec
    if spec is None:
        return CheckResult(problems=read.problems)
    if read.problems:
        more = refusals(spec, read.broken, allow_code=allow_code, how=how)
        return CheckResult(problems=tuple(dict.fromkeys([*read.problems, *more])))
    try:
        check_code_allowed(spec, allow_code=allow_code, how=how)
        datasets.check_here(spec.data.dataset)  # A run would download it; a check does not.
        with limit_threads(spec):
            return _costs(resolve(load_inputs(spec)), timed=timed)
    except SottovoceError as error:
        more = refusals(spec, allow_code=allow_code, how=how)
        return CheckResult(problems=tuple(dict.fromkeys([*problems_of(error), *more])))


def _costs(resolved: Resolved, *, timed: bool) -> CheckResult:
    """Charge every round to a tally, and return the same fields that a run's result has."""
    spec = resolved.spec
    training = build(resolved)
    tally = training.record
    rows, halted = charge_rounds(training, spec.rounds)
    spending = spending_of(resolved, tally)
    # Messages without their own noise hide nothing from an observer who sees them.
    seen = _epsilon_if_seen if spending["local_epsilon"] is not None else _nothing_hidden
    costs, clients = _costs_of_clients(resolved, training, tally, seen)
    sums = {
        name: sum(getattr(cost, name) * cost.num_clients for cost in costs)
        for name in (
            *("payload_bytes_up", "total_bytes_up"),
            *("payload_bytes_down", "total_bytes_down"),
        )
    }
    details = {
        "name": spec.name,
        "mechanism": {"kind": spec.mechanism.kind, **spec.mechanism.parameters},
        "mechanism_choice": resolved.mechanism_choice,
        "num_clients": len(resolved.clients),
        "rounds": len(rows),
        "rounds_asked_for": spec.rounds,
        "halted": halted,
        **spending,
        **sums,
        **_estimates(resolved, training, rows, timed=timed),
    }
    notes = warnings_of(resolved, rows, spending, halted)
    problems = []
    if halted is not None and not rows:
        problems, notes = [_no_round(spec.rounds, halted)], notes[1:]
    if spec.runtime.backend != "fast":
        notes += _ONLY_SITES_KNOW
    if spec.runtime.backend == "flower":
        notes.append("run it on a federation, with 'sottovoce deploy run FEDERATION SPEC'")
    return CheckResult(
        problems=tuple(problems),
        notes=tuple(notes),
        costs=table_of(costs),
        clients=clients,
        details=details,
    )


def _no_round(rounds: int, halted: str) -> str:
    return (
        f"the run would stop after 0 of {rounds} rounds: {halted}; remove the mechanism's noise "
        "parameter so that it is calibrated, raise privacy.epsilon, or lower "
        "privacy.minimum_clients"
    )


def charge_rounds(training: Training, rounds: int) -> tuple[list[Metrics], str | None]:
    """Charge all rounds to the record of a training, without training.

    Args:
        training: A training whose charges are counted in memory.
        rounds: The number of rounds.

    Returns:
        The metrics that are known, and why the run would halt; None if it would not.
    """
    rows: list[Metrics] = []
    tally = training.record
    for number in range(1, rounds + 1):
        found = training.cohort(number)
        if isinstance(found, Halted):
            return rows, found.reason
        drawn, cohort = found
        before = tally.num_charges
        training.backend.replay(number, drawn)
        rows.append(
            {
                "round": number,
                "clients_asked": (tally.num_charges - before) // training.algorithm.uplinks,
                "clients_out_of_budget": len(drawn) - len(cohort),
                "loss": None,
            }
        )
    return rows, None


def _costs_of_clients(
    resolved: Resolved,
    training: Training,
    tally: SpendingRecord,
    epsilon_if_seen: Callable[[History, float], float],
) -> tuple[list[ClientCost], dict[str, int]]:
    """Return one cost for all clients with equal costs, and which one each client has."""
    group_of = {name: group for group in resolved.groups for name in group.clients}
    payload_of = {
        id(one): (one.code_format().payload_bits(one.input_domain.dimension) + 7) // 8
        for one in {id(part.mechanism): part.mechanism for part in resolved.parts}.values()
    }
    rounds = tally.rounds_charged(resolved.run)
    local: dict[tuple[Any, ...], float] = {}
    members: dict[tuple[Any, ...], list[str]] = {}
    for part in resolved.parts:
        name, group = part.client, group_of[part.client]
        spent = tally.spent(name, group.delta)
        history = tuple(tally.history(name))
        if (history, group.delta) not in local:
            seen = epsilon_if_seen(history, group.delta) if history else 0.0
            local[history, group.delta] = seen
        key = (
            group.number,
            rounds[name],
            spent.epsilon if spent else 0.0,
            local[history, group.delta],
            payload_of[id(part.mechanism)],
        )
        members.setdefault(key, []).append(name)
    costs: list[ClientCost] = []
    clients: dict[str, int] = {}
    for place, (key, names) in enumerate(members.items()):
        _, asked, epsilon, local_epsilon, payload = key
        group, budget = group_of[names[0]], resolved.budgets.get(names[0])
        messages = asked * resolved.algorithm.uplinks
        payload_down, total_down = training.bytes_down(asked)
        costs.append(
            ClientCost(
                num_clients=len(names),
                example=names[0],
                group=group.number,
                mechanism=group.mechanism.kind,
                budget=budget.epsilon if budget else None,
                delta=group.delta,
                rounds=asked,
                epsilon=epsilon,
                local_epsilon=local_epsilon,
                payload_bytes_up=payload * messages,
                total_bytes_up=(payload + HEADER_BYTES) * messages,
                payload_bytes_down=payload_down,
                total_bytes_down=total_down,
            )
        )
        clients |= dict.fromkeys(names, place)
    return costs, clients


def _epsilon_if_seen(history: History, delta: float) -> float:
    """Return the epsilon against an observer of every message, sender and sample."""
    return privacy_spent(without_trust(compose_repeated(history)), delta).epsilon


def _nothing_hidden(history: History, delta: float) -> float:  # noqa: ARG001
    return math.inf


def _estimates(
    resolved: Resolved, training: Training, rows: list[Metrics], *, timed: bool
) -> dict[str, Any]:
    """Time the work of a few clients here, and estimate time and memory of all rounds."""
    spec = resolved.spec
    if not timed or spec.runtime.backend != "fast":
        why = "none: the clients train on other machines" if timed else "not requested"
        return {"estimated_seconds": None, "estimated_memory_bytes": None, "estimate": why}
    asked = [row["clients_asked"] for row in rows]
    alone = spec.runtime.deterministic and spec.runtime.messages == "stored"
    together = 1 if alone else max(1, MAX_COORDINATES_IN_MEMORY // resolved.task.dimension)
    together = min(together, max(asked, default=1))
    took = _timed(resolved, training, together)
    peak = _peak_bytes()
    return {
        "estimated_seconds": sum(asked) * (took.step + took.encoding) + len(rows) * took.test,
        "estimated_memory_bytes": (
            None if peak is None else peak + together * resolved.task.dimension * _FLOAT_BYTES
        ),
        "estimate": (
            f"timed here: local training of one client {took.step:.3g} s ({took.clients} at a "
            f"time), encoding {took.encoding:.3g} s, one evaluation of the model {took.test:.3g} "
            f"s; multiplied by {sum(asked)} participations of clients in {len(rows)} rounds, "
            "without writing to disk. Memory is the peak of this process plus the updates that a "
            "round holds at once"
        ),
    }


class _Seconds(NamedTuple):
    """Seconds for one client's local step (among `clients`), its encoding, and one evaluation."""

    step: float
    clients: int
    encoding: float
    test: float


def _timed(resolved: Resolved, training: Training, most: int) -> _Seconds:
    """Time what a round does, on an untrained model; discard the results."""
    start = training.broadcast(training.start())
    randomness = SeededRandomness(0)  # Its messages are discarded, so they need no secret key.

    def train(clients: Sequence[int]) -> list[tuple[int, int, Vector]]:
        data = [resolved.clients[i] for i in clients]
        step = ClientStepInput(
            run="check",
            round=1,
            model=start.model,
            state=start.state,
            randomness=SeededRandomness(0),  # Noise of local steps is drawn once from a keystream.
            mechanism_of=lambda i: resolved.parts[clients[i]].mechanism,
        )
        return compute_finite_uplinks(resolved.algorithm, resolved.task, data, step)

    order = np.argsort(resolved.clients.sizes, kind="stable").tolist()
    middle = order[len(order) // 2 : len(order) // 2 + 1]
    alone = _seconds(lambda: train(middle))
    num = max(1, min(most, len(order), _TIMED_CLIENTS, int(_TIMED_SECONDS / alone)))
    some = order[:: max(1, len(order) // num)][:num] if num > 1 else middle
    _, _, values = train(middle)[0]
    mechanism = resolved.parts[middle[0]].mechanism
    rotated = resolved.spec.rotation == "on"
    dimension = mechanism.input_domain.dimension
    rotation = Rotation.of_round("check", 1, dimension) if rotated else None
    attempts = itertools.count()

    def encode() -> None:
        keystream = randomness.stream("check", next(attempts))
        encode_packed(prepare(mechanism, values, rotation=rotation), [keystream])

    return _Seconds(
        step=min(alone, _seconds(lambda: train(some)) / num),
        clients=num,
        encoding=_seconds(encode) * resolved.algorithm.uplinks,
        test=_seconds(lambda: resolved.task.evaluate(start.model)),
    )


def _seconds(work: Callable[[], object]) -> float:
    """Return the fewest seconds of two to four runs: the first may load and compile."""
    fewest, left = math.inf, _TIMED_SECONDS
    for attempt in range(4):
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        fewest, left = min(fewest, took), left - took
        if left < 0.0 and (attempt or took > _LONG_SECONDS):
            break
    return fewest


def _peak_bytes() -> int | None:
    """Return the largest memory of this process so far; None if the system does not tell."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such module.
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
