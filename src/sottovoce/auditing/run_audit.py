"""Audits of a run: train its spec again in memory, with canaries, and measure what leaks.

clients   for the channel 'direct': audit clients join, each like one of the run's clients except
          for one canary. Their messages are seen separately, so their scores are independent draws
          of two neighbors, and the whole curve of the certificate is tested.
one-run   for every channel: canaries in orthogonal directions, among the records of the run's
          clients or in place of some clients, are guessed from what the channel reveals.

The certificate is the composition of the charges that the audited training itself makes.
"""

import dataclasses
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sottovoce.auditing.canary_rounds import SCORES, Canaries, CanaryAlgorithm, split_coordinates
from sottovoce.auditing.finished_run import FinishedRun
from sottovoce.auditing.lower_bounds import DrawScores, judge, judge_one_run
from sottovoce.auditing.verdict import CONFIDENCE, Certificate, ErrorShares, Verdict
from sottovoce.core import files, parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.training import Halted
from sottovoce.ledger.records import SpendingRecord
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.runs.build import temporary_training
from sottovoce.runs.folder import AUDIT_NAME as AUDIT_NAME
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.spec import RunSpec, SamplingSpec

Method = Literal["clients", "one-run"]
OnRound = Callable[[int, int], None]  # (rounds done, rounds in all)

_AUDIT_CLIENTS, _FEWEST_CLIENTS = 2000, 100
_REFERENCES = 64
# Few real clients are enough, because the messages of audit clients do not depend on the model.
_REAL_CLIENTS = 20
# Limits on the entries of canaries' gradients and on their messages in all rounds, for the default
# number of canaries.
_MOST_NUMBERS = 1 << 30
_MOST_MESSAGES = 200_000
_CHOOSING_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planted:
    """A resolved run and the canaries in it."""

    resolved: Resolved
    canaries: Canaries


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audited:
    """The scores of all canaries, and the certificate: the charges of the client `account`."""

    scores: Vector
    certificate: Certificate
    account: str


def audit_run(
    finished: FinishedRun,
    *,
    method: Method | None = None,
    canaries: int | None = None,
    rounds: int | None = None,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Audit the spec of a finished run and write the result into the run's folder.

    Args:
        finished: The run, from `open_run`.
        method: "clients" or "one-run"; None chooses "clients" if the channel reveals each message.
        canaries: Number of canaries; None chooses what can be trained in reasonable time.
        rounds: Number of rounds to audit; None audits as many as one client takes part in at most,
            or with central noise all of them.
        confidence: Probability with which the lower bounds hold, at least 0.5 and below 1.
        seed: Seed of the canaries and the noise; None draws one, which the result records.
        on_round: Called after each round with the rounds done and their total number.

    Returns:
        The verdict as plain data: the lower bound on epsilon, the certified epsilon, whether the
        certificate is violated, and how the audit was made.

    Raises:
        ConfigError: The method does not fit the channel or the spec, or the training stopped early.
        ParameterError: The confidence, or the number of canaries or rounds, is out of range.
        OutputError: The result cannot be written; this is checked before the training.
    """
    place = finished.result_path(AUDIT_NAME)
    found = audit_spec(
        finished.spec,
        method=method,
        canaries=canaries,
        rounds=rounds,
        confidence=confidence,
        seed=seed,
        on_round=on_round,
    )
    files.write_json(place, found, sort_keys=False, mode=files.PRIVATE)
    return found


def audit_spec(
    spec: RunSpec,
    *,
    method: Method | None = None,
    canaries: int | None = None,
    rounds: int | None = None,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Train a spec with canaries and return the lower bound on epsilon and the certificate.

    Arguments and result are those of `audit_run`. The training and its ledger are temporary:
    nothing of them is kept, and no real budget is charged.
    """
    direct = spec.channel.build().shows_each
    if method is None:
        method = "clients" if direct else "one-run"
    if method == "clients" and not direct:
        raise ConfigError(
            f"the method 'clients' needs each client's message, and the channel "
            f"'{spec.channel.kind}' does not reveal it; use --method one-run"
        )
    ErrorShares.of(confidence, 1)  # This refuses a wrong confidence before anything is trained.
    seed = secrets.randbits(64) if seed is None else seed
    resolved, whole = _resolve_again(spec, rounds, seed)
    plant = _add_audit_clients if method == "clients" else _replace_with_canaries
    planted = plant(resolved, canaries, SeededRandomness(seed).generator("canaries"))
    audited = _train(planted, on_round)
    scores, certificate, coins = audited.scores, audited.certificate, planted.canaries.coins
    if method == "clients":
        statistics = [DrawScores(first=row[coins > 0], second=row[coins < 0]) for row in scores]
        verdict = judge(
            statistics,
            certificate,
            confidence=confidence,
            method="gradient canaries of audit clients",
            choosing=round(_CHOOSING_SHARE * min((coins > 0).sum(), (coins < 0).sum())),
            expected="normal",
        )
    else:
        verdict = judge_one_run(
            scores[0], coins, certificate, confidence=confidence, method="canaries in one run"
        )
    found = _describe(verdict, planted, spec, whole)
    return {**found, "account": audited.account, "seed": seed}


def _describe(verdict: Verdict, planted: _Planted, spec: RunSpec, whole: int) -> dict[str, Any]:
    resolved = planted.resolved
    rounds = resolved.spec.rounds
    return {
        **verdict.plain(),
        "canaries": len(planted.canaries),
        "rounds": rounds,
        "rounds_of_the_run": whole,
        "level": spec.privacy.level,
        "mechanism": spec.mechanism.kind,
        "channel": resolved.channel.describe(),
        "notes": _notes(rounds, whole, resolved, spec),
    }


def _notes(rounds: int, whole: int, resolved: Resolved, spec: RunSpec) -> list[str]:
    notes = []
    if rounds < whole:
        notes.append(
            f"{rounds} of {whole} rounds were audited; lower bound and certificate are for those"
        )
    if spec.runtime.messages == "none":
        notes.append("values were drawn in float32 and nothing was encoded, as in the run")
    if not resolved.section.enforces_budget:
        notes.append(
            "the certificate is what the ledger charges; 'privacy.epsilon' only sets the noise of "
            "this algorithm and is not a proven bound"
        )
    if resolved.channel.noise_at_server:
        notes.append("central noise: the audit sees only the noisy means")
    return notes


def _resolve_again(spec: RunSpec, rounds: int | None, seed: int) -> tuple[Resolved, int]:
    """Return the run, resolved to train in this process with new noise, and its rounds per client.

    The second value is the largest number of rounds that a client of the run takes part in. In the
    audit every client takes part in that many successive rounds. With central noise the sampling is
    secret and part of what is certified, so all rounds and the sampling are kept.
    """
    central = spec.channel.build().noise_at_server
    runtime = {"backend": "fast", "deterministic": False}
    update: dict[str, Any] = {
        "randomness": "seeded",
        "runtime": spec.runtime.model_copy(update=runtime),
    }
    resolved = resolve(load_inputs(spec.model_copy(update=update)))
    whole = spec.rounds
    if not central:  # With central noise every client is charged for every round.
        whole = resolved.sampling.most_participations(len(resolved.clients), spec.rounds)
    if rounds is not None:
        parameter_rules.integer(
            "rounds",
            rounds,
            low=1,
            high=whole,
            remedy=f"a client takes part in at most {whole} rounds",
        )
    update["rounds"] = rounds or whole
    if not central:
        update["sampling"] = SamplingSpec(kind="everyone")
    again = resolve(load_inputs(resolved.spec.model_copy(update=update)))
    return dataclasses.replace(again, run=f"audit-{seed:x}"), whole


# -- placing canaries -----------------------------------------------------------------------------


def _add_audit_clients(
    resolved: Resolved, canaries: int | None, generator: np.random.Generator
) -> _Planted:
    """Add audit clients with canaries, half of them in.

    They are like the smallest client among those with the largest budget.
    """
    like = _template_client(resolved)
    dimension, size = resolved.task.dimension, resolved.clients.sizes[like]
    rows = size if resolved.algorithm.record_sampling_rate < 1.0 else 1
    rounds = resolved.spec.rounds
    affordable = min(_MOST_NUMBERS // (dimension * rows * rounds), _MOST_MESSAGES // rounds)
    usual = int(np.clip(affordable, _FEWEST_CLIENTS, _AUDIT_CLIENTS))
    count = usual if canaries is None else canaries
    parameter_rules.integer(
        "canaries",
        count,
        low=_FEWEST_CLIENTS,
        high=10**6,
        remedy="half of them are included in training, and some of each half choose a threshold",
    )
    names = [f"audit-{number:06d}" for number in range(count + _REFERENCES)]
    part = resolved.parts[like]
    kept = sorted({*range(min(_REAL_CLIENTS, len(resolved.clients))), like})
    budget = resolved.budgets.get(part.client)
    coins = np.where(np.arange(count) % 2 == 0, 1, -1)
    planted = Canaries(
        blocks=(slice(0, dimension),) * count,
        signs=generator.choice([-1.0, 1.0], dimension),
        coins=coins,
        hosts=tuple(names[:count]),
        places=(0,) * count,
        silent=frozenset(names),
        clip_norm=resolved.spec.privacy.message_norm,
        adjacency=resolved.spec.privacy.adjacency,
    )
    parts = [resolved.parts[i] for i in kept]
    parts += [dataclasses.replace(part, client=name) for name in names]
    return _Planted(
        resolved=dataclasses.replace(
            resolved,
            clients=resolved.clients.take(kept).with_copies(names, like=kept.index(like)),
            parts=tuple(parts),
            budgets={**resolved.budgets, **(dict.fromkeys(names, budget) if budget else {})},
            algorithm=_with_canaries(resolved, planted, gathers=True),
        ),
        canaries=planted,
    )


def _with_canaries(resolved: Resolved, planted: Canaries, *, gathers: bool) -> CanaryAlgorithm:
    return CanaryAlgorithm(
        inner=resolved.algorithm,
        canaries=planted,
        gathers=gathers,
        sends_models=resolved.section.traits(resolved.algorithm.unit).sends_models,
    )


def _template_client(resolved: Resolved) -> int:
    """Return the position of the smallest client among those with the largest budget."""
    sizes = resolved.clients.sizes

    def rank(position: int) -> tuple[float, int]:
        budget = resolved.budgets.get(resolved.parts[position].client)
        return (-budget.epsilon if budget else -np.inf), sizes[position]

    return min(range(len(sizes)), key=rank)


def _replace_with_canaries(
    resolved: Resolved, canaries: int | None, generator: np.random.Generator
) -> _Planted:
    """Replace up to half of the run's records by canaries, or of its clients at client level."""
    if len({id(part.mechanism) for part in resolved.parts}) > 1 and len(resolved.groups) > 1:
        raise ConfigError(
            "groups of clients with different budgets ('privacy.groups') have different "
            "certificates, and one run tests a single one; use --method clients, which audits the "
            "group with the largest budget and needs the channel 'direct'"
        )
    hosts, places = _draw_positions(resolved, generator)
    most = min(len(hosts), resolved.task.dimension)
    count = min(most, _AUDIT_CLIENTS) if canaries is None else canaries
    parameter_rules.integer(
        "canaries",
        count,
        low=10,
        high=most,
        remedy="at most half of the records or clients, and at most one per coordinate",
    )
    planted = Canaries(
        blocks=split_coordinates(resolved.task.dimension, count),
        signs=generator.choice([-1.0, 1.0], resolved.task.dimension),
        coins=generator.choice([-1, 1], count),
        hosts=tuple(hosts[:count]),
        places=tuple(places[:count]),
        silent=frozenset(),
        clip_norm=resolved.spec.privacy.message_norm,
        adjacency=resolved.spec.privacy.adjacency,
    )
    seen = resolved.channel.shows_each
    algorithm = _with_canaries(resolved, planted, gathers=seen)
    return _Planted(resolved=dataclasses.replace(resolved, algorithm=algorithm), canaries=planted)


def _draw_positions(
    resolved: Resolved, generator: np.random.Generator
) -> tuple[list[str], list[int]]:
    """Draw the hosts and record positions of canaries: half of all records or clients."""
    names = resolved.clients.names
    if resolved.algorithm.unit is Unit.CLIENT:
        found = [(name, 0) for name in names]
    else:
        found = [
            (name, place)
            for name, size in zip(names, resolved.clients.sizes, strict=True)
            for place in range(size)
        ]
    order = generator.permutation(len(found))[: max(1, len(found) // 2)]
    chosen = [found[i] for i in order]
    return [name for name, _ in chosen], [place for _, place in chosen]


# -- training -------------------------------------------------------------------------------------


def _train(planted: _Planted, on_round: OnRound | None) -> _Audited:
    """Train, and return the scores of all canaries and the certificate of their hosts."""
    resolved = planted.resolved
    with temporary_training(resolved) as training:
        progress = training.start()
        while progress.rounds_done < resolved.spec.rounds:
            outcome = training.step(progress)
            if isinstance(outcome, Halted):
                raise ConfigError(
                    f"the audited training stopped early: {outcome.reason}; lower --rounds"
                )
            progress, _ = outcome
            if on_round:
                on_round(progress.rounds_done, resolved.spec.rounds)
        certificate, account = _largest_certificate(
            resolved, planted.canaries.hosted, training.record
        )
    scores = np.asarray(progress.algorithm_state[SCORES])
    return _Audited(scores=scores, certificate=certificate, account=account)


def _largest_certificate(
    resolved: Resolved, hosts: Iterable[str], record: SpendingRecord
) -> tuple[Certificate, str]:
    """Return the largest of the hosts' certificates, and the host that it belongs to.

    It holds for every canary. Hosts with different numbers of records can have different
    certificates where a mechanism's noise does not scale with that number (tables, integer grids).
    """
    owners = {compose_repeated(record.history(host)): host for host in sorted(hosts, reverse=True)}
    found = []
    for event, host in owners.items():
        budget = resolved.budgets.get(host)
        delta = budget.delta if budget else resolved.spec.privacy.delta
        found.append((Certificate(event=event, delta=delta), host))
    return max(found, key=lambda one: one[0].epsilon)
