"""A run trained once more, in memory, with canaries: what its releases give away, measured.

clients   on the channel 'direct': audit clients join, each like one of the run's own clients but
          for one canary. Their messages are seen one by one, so their scores are independent draws
          of two neighbours, and the whole curve of the certificate is tested.
one-run   on any channel: canaries in orthogonal directions among the records of the run's clients,
          or in place of some clients, are guessed from what the channel lets be seen.

The certificate is what the run itself charges for it.
"""

import dataclasses
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sottovoce.auditing.canary_rounds import SCORES, Canaries, CanaryAlgorithm, blocks_of
from sottovoce.auditing.finished_run import FinishedRun
from sottovoce.auditing.lower_bounds import Scores, judge, judge_one_run
from sottovoce.auditing.verdict import CONFIDENCE, Certificate, Shares, Verdict
from sottovoce.core import files, parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.training import Halted
from sottovoce.ledger.records import SpendingRecord
from sottovoce.privacy.compositions import multiset
from sottovoce.runs.build import temporary_training
from sottovoce.runs.folder import AUDIT_NAME as AUDIT_NAME
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.spec import RunSpec, SamplingSpec

Method = Literal["clients", "one-run"]
OnRound = Callable[[int, int], None]  # rounds done, and of how many

_AUDIT_CLIENTS, _FEWEST_CLIENTS = 2000, 100
_REFERENCES = 64
_REAL_CLIENTS = 20  # that train beside audit clients: these do not look at the model
_MOST_NUMBERS = 1 << 30  # of canaries' gradients in all rounds, unless more canaries are asked for
_MOST_MESSAGES = 200_000  # likewise
_CHOOSING_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planted:
    """A run with canaries in it."""

    resolved: Resolved
    canaries: Canaries


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audited:
    """Every canary's scores, and the certificate: what the client `account` was charged."""

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
    """Audit a run's spec, and keep what was found in its folder."""
    place = finished.place_of(AUDIT_NAME)
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
    """Train the spec with canaries; a lower bound on epsilon, the certificate and the gap."""
    direct = spec.channel.opened().shows_each
    if method is None:
        method = "clients" if direct else "one-run"
    if method == "clients" and not direct:
        raise ConfigError(
            f"the channel '{spec.channel.kind}' lets nobody see a client's messages, which audit "
            "clients are judged by; use --method one-run"
        )
    Shares.of(confidence, 1)  # refused here, before anything is trained
    seed = secrets.randbits(64) if seed is None else seed
    resolved, whole = _once_more(spec, rounds, seed)
    plant = _audit_clients if method == "clients" else _canaries_within
    planted = plant(resolved, canaries, SeededRandomness(seed).generator("canaries"))
    audited = _trained(planted, on_round)
    scores, certificate, coins = audited.scores, audited.certificate, planted.canaries.coins
    if method == "clients":
        statistics = [Scores(first=row[coins > 0], second=row[coins < 0]) for row in scores]
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
    found = _described(verdict, planted, spec, whole)
    return {**found, "account": audited.account, "seed": seed}


def _described(verdict: Verdict, planted: _Planted, spec: RunSpec, whole: int) -> dict[str, Any]:
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
            f"{rounds} of {whole} rounds were audited: lower bound and certificate are of those"
        )
    if spec.runtime.messages == "none":
        notes.append("values were drawn in float32 and nothing was encoded, as in the run")
    if not resolved.section.enforces_budget:
        notes.append("the certificate is the ledger's; the published epsilon is no bound")
    if resolved.channel.noise_at_server:
        notes.append("central noise: the audit sees the noisy means and nothing else")
    return notes


def _once_more(spec: RunSpec, rounds: int | None, seed: int) -> tuple[Resolved, int]:
    """The run as it was, in this process, under another name and so with other coins.

    Every client takes part in as many rounds as a client of the run at most, which is the number
    beside it, and in a row.
    """
    central = spec.channel.opened().noise_at_server
    runtime = {"backend": "fast", "deterministic": False}
    update: dict[str, Any] = {
        "randomness": "seeded",
        "runtime": spec.runtime.model_copy(update=runtime),
    }
    resolved = resolve(load_inputs(spec.model_copy(update=update)))
    whole = spec.rounds
    if not central:  # there every client pays for every round
        whole = resolved.sampling.most_participations(len(resolved.clients), spec.rounds)
    if rounds is not None:
        parameter_rules.integer(
            "rounds", rounds, low=1, high=whole, remedy=f"a client takes part in {whole} at most"
        )
    update["rounds"] = rounds or whole
    if not central:  # there the sample is secret, and part of what is certified
        update["sampling"] = SamplingSpec(kind="everyone")
    again = resolve(load_inputs(resolved.spec.model_copy(update=update)))
    return dataclasses.replace(again, run=f"audit-{seed:x}"), whole


# -- where canaries go ----------------------------------------------------------------------------


def _audit_clients(
    resolved: Resolved, canaries: int | None, generator: np.random.Generator
) -> _Planted:
    """Audit clients like the smallest client of those that may spend most, half of them in."""
    like = _like(resolved)
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
        remedy="half of them are in, and some of each half only say where to look",
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
        clip_norm=resolved.spec.privacy.clip_norm,
        adjacency=resolved.spec.privacy.adjacency,
    )
    parts = [resolved.parts[i] for i in kept]
    parts += [dataclasses.replace(part, client=name) for name in names]
    return _Planted(
        resolved=dataclasses.replace(
            resolved,
            clients=resolved.clients.take(kept).joined_by(names, like=kept.index(like)),
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


def _like(resolved: Resolved) -> int:
    """The position of the smallest client among those with the largest budget."""
    sizes = resolved.clients.sizes

    def rank(position: int) -> tuple[float, int]:
        budget = resolved.budgets.get(resolved.parts[position].client)
        return (-budget.epsilon if budget else -np.inf), sizes[position]

    return min(range(len(sizes)), key=rank)


def _canaries_within(
    resolved: Resolved, canaries: int | None, generator: np.random.Generator
) -> _Planted:
    """Canaries among the records of the run's clients, or in place of every other client."""
    if len({id(part.mechanism) for part in resolved.parts}) > 1 and len(resolved.groups) > 1:
        raise ConfigError(
            "clients with budgets of their own ('privacy.groups') have certificates of their own; "
            "use --method clients, which audits the largest"
        )
    hosts, places = _places(resolved, generator)
    most = min(len(hosts), resolved.task.dimension)
    count = min(most, _AUDIT_CLIENTS) if canaries is None else canaries
    parameter_rules.integer(
        "canaries", count, low=10, high=most, remedy="there are no more places for them"
    )
    planted = Canaries(
        blocks=blocks_of(resolved.task.dimension, count),
        signs=generator.choice([-1.0, 1.0], resolved.task.dimension),
        coins=generator.choice([-1, 1], count),
        hosts=tuple(hosts[:count]),
        places=tuple(places[:count]),
        silent=frozenset(),
        clip_norm=resolved.spec.privacy.clip_norm,
        adjacency=resolved.spec.privacy.adjacency,
    )
    seen = resolved.channel.shows_each
    algorithm = _with_canaries(resolved, planted, gathers=seen)
    return _Planted(resolved=dataclasses.replace(resolved, algorithm=algorithm), canaries=planted)


def _places(resolved: Resolved, generator: np.random.Generator) -> tuple[list[str], list[int]]:
    """Where canaries may go, in random order: half of all records, or of all clients."""
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


def _trained(planted: _Planted, on_round: OnRound | None) -> _Audited:
    """Every canary's scores after the run, and what its hosts were charged."""
    resolved = planted.resolved
    with temporary_training(resolved) as training:
        progress = training.start()
        while progress.rounds_done < resolved.spec.rounds:
            outcome = training.step(progress)
            if isinstance(outcome, Halted):
                raise ConfigError(f"the audit cannot run to its end: {outcome.reason}")
            progress, _ = outcome
            if on_round:
                on_round(progress.rounds_done, resolved.spec.rounds)
        certificate, account = _dearest(resolved, planted.canaries.hosted, training.record)
    scores = np.asarray(progress.algorithm_state[SCORES])
    return _Audited(scores=scores, certificate=certificate, account=account)


def _dearest(
    resolved: Resolved, hosts: Iterable[str], record: SpendingRecord
) -> tuple[Certificate, str]:
    """The largest of the hosts' certificates, and whose it is.

    Every canary is within it. Mechanisms whose noise does not follow the number of records (a
    table, integers on a grid) leave clients of other sizes with other accounts.
    """
    owners = {multiset(record.history(host)): host for host in sorted(hosts, reverse=True)}
    found = []
    for event, host in owners.items():
        budget = resolved.budgets.get(host)
        delta = budget.delta if budget else resolved.spec.privacy.delta
        found.append((Certificate(event=event, delta=delta), host))
    return max(found, key=lambda one: one[0].epsilon)
