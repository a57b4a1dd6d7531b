"""One site: its file, its ledger, and the only way by which anything leaves it.

site.toml       name, [policy], [link], and [data] if its records are its own
ledger.sqlite   beside it: everything that was ever charged, over all runs
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sottovoce.deployment import policy
from sottovoce.deployment.policy import History
from sottovoce.domains import Vector
from sottovoce.errors import PolicyError, SottovoceError, UnknownNameError
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Due
from sottovoce.randomness import Grade, Randomness
from sottovoce.rounds.charging import amount_due
from sottovoce.rounds.client import Refused, Request, privatise
from sottovoce.rounds.plan import ClientPlan, RoundPlan

SITE_FILE = "site.toml"
LEDGER_NAME = "ledger.sqlite"
_TABLES = ("name", "policy", "link", "data", "factories")


class Rules(Protocol):
    """What a site allows: a `Policy`, but for simulated sites."""

    def check_request(
        self, plan: RoundPlan, part: ClientPlan, cohort: int, grade: Grade
    ) -> None: ...

    def check_spending(self, history: History, dues: Sequence[Due]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One client's part of a round as the server announces it."""

    plan: RoundPlan
    part: ClientPlan
    cohort: int  # clients that are asked in the round
    uplinks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Who answers: under this name, within this policy, on the account of this ledger.

    `dataset` names the site's own records; None where the spec's own data are shared out.
    `factories` are the functions that a spec may name to make a model ("package.module:function").
    """

    name: str
    policy: Rules
    ledger: Path
    dataset: str | None = None
    factories: tuple[str, ...] = ()

    def answer(
        self,
        asked: Asked,
        randomness: Randomness,
        train: Callable[[], Sequence[Vector]],
        *,
        keep_from: int,
    ) -> list[bytes]:
        """The sealed message of every uplink, or an error and nothing.

        Checked before `train` runs, checked again where it is charged, and charged before a single
        code is drawn. Asked once more, it sends the bytes it sent before, as long as it keeps
        them: messages of rounds before `keep_from` are dropped.
        """
        if asked.part.client != self.name:
            # Another name would have another account.
            raise PolicyError(f"this site is '{self.name}', not '{asked.part.client}'")
        self.policy.check_request(asked.plan, asked.part, asked.cohort, randomness.grade)
        with Ledger(self.ledger) as ledger:
            self._permit(ledger, _dues(asked, ledger, randomness))
            requests = [
                Request(part=asked.part, uplink=uplink, values=values)
                for uplink, values in enumerate(train())
            ]
            if len(requests) != asked.uplinks:
                raise PolicyError(f"{asked.uplinks} vectors are asked for, not {len(requests)}")
            outcomes = privatise(
                asked.plan,
                requests,
                ledger,
                randomness,
                permit=lambda dues: self._permit(ledger, dues),
            )
            ledger.discard_messages(asked.plan.run, before_round=keep_from)
        messages = []
        for outcome in outcomes:
            if isinstance(outcome, Refused):
                raise outcome.error
            messages.append(outcome.message)
        return messages

    def _permit(self, ledger: Ledger, dues: Sequence[Due]) -> None:
        self.policy.check_spending(ledger.history(self.name), dues)


def _dues(asked: Asked, ledger: Ledger, randomness: Randomness) -> list[Due]:
    """What the round would be charged with, if it were charged now."""
    releases = [asked.plan.release(asked.part.client, uplink) for uplink in range(asked.uplinks)]
    earlier = ledger.latest_of(releases)
    event = asked.plan.event(asked.part)
    dues = [amount_due(event, one, earlier.get(one), randomness) for one in releases]
    return [due for due in dues if due is not None]


def read_site(path: Path) -> Site:
    """The site that a file describes; without a policy there is none."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(
            f"cannot read the site's file {path}: {error.strerror or error}; without a policy "
            "nothing is answered"
        ) from None
    except ValueError as error:  # neither UTF-8 nor TOML
        raise PolicyError(f"{path} is not valid TOML: {error}") from None
    try:
        return _site(table, path)
    except SottovoceError as error:
        raise PolicyError(f"{path}: {error}") from None


def _site(table: dict[str, Any], path: Path) -> Site:
    for key in table:
        if key not in _TABLES:
            raise UnknownNameError.among("key", key, _TABLES)
    name, limits, data = table.get("name"), table.get("policy"), table.get("data", {})
    if not isinstance(name, str) or not name:
        raise PolicyError("'name' is missing: the client that this site is")
    if not isinstance(limits, dict):
        raise PolicyError("[policy] is missing; without it nothing is answered")
    if not isinstance(data, dict) or not set(data) <= {"dataset"}:
        raise PolicyError("[data] holds one key, 'dataset'")
    dataset = data.get("dataset")
    if dataset is not None and not isinstance(dataset, str):
        raise PolicyError(f"[data] dataset must be a name or a path, got {dataset!r}")
    factories = table.get("factories", [])
    if not isinstance(factories, list) or not all(isinstance(one, str) for one in factories):
        raise PolicyError(f"'factories' must be a list of 'module:function', got {factories!r}")
    return Site(
        name=name,
        policy=policy.from_table(limits),
        ledger=path.parent / LEDGER_NAME,
        dataset=dataset,
        factories=tuple(factories),
    )
