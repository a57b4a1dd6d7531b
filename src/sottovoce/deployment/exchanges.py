"""The attempts at secure sums that a site's process takes part in.

The secrets of an attempt live in the memory of the site's worker only, so a site that restarts has
dropped out of the attempt. `Exchanges` holds the newest attempt of each run.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from sottovoce.core import printable_text
from sottovoce.core.errors import PolicyError, SottovoceError, WireError
from sottovoce.deployment.machines.trust_files import load_trust
from sottovoce.deployment.masked_orders import Step
from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site import Site
from sottovoce.ledger.journal import Journal
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.pairwise_site import PairwiseSite
from sottovoce.protocol.secure.roster import Roster, TrustKey

_LOG = printable_text.logger()
_MOST_RUNS = 16  # Attempts of so many runs are kept open at once.

#: Charges the ledger, then draws and masks: from the state of the protocol, the box, the ledger and
#: the site as its file describes it now, to the message with the masked vectors.
Contribute = Callable[[PairwiseSite, bytes, Ledger, Site], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A request that opens an attempt, after the site's terms have allowed it.

    Attributes:
        key: The site's own key.
        roster: The roster that the site has pinned.
        attempt: What the server announces.
        honest: How many honest sites must be in a sum.
        colluders: How many other sites may work together with the server.
        terms: What the cost of the run's attempts depends on, as text.
        planned_rounds: How many rounds the run has.
        rows: How many persons the site declares, where a person is protected.
        contribute: Makes the site's masked vectors.
    """

    key: TrustKey
    roster: Roster
    attempt: Attempt
    honest: int
    colluders: int
    terms: str
    planned_rounds: int
    rows: int = 0
    contribute: Contribute


@dataclass(frozen=True, slots=True)
class _Assumed:
    """What the owner of a site has decided about an attempt's safety.

    A server may keep an attempt open for days. Its owner's decisions hold from the next step on.
    """

    roster: bytes
    honest: int | None
    colluders: int | None

    @classmethod
    def now(cls, site: Site) -> Self:
        """Return what the site's files say now; raise PolicyError if they allow no sums."""
        policy = sum_policy(site)
        return cls(trusted(site)[1].digest, policy.honest, policy.colluders)


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """One attempt that the site takes part in."""

    opening: Opening
    ledger: Ledger
    party: PairwiseSite
    assumed: _Assumed


@dataclass(slots=True)
class Exchanges:
    """The attempts that this process takes part in, one for each run."""

    _open: dict[str, _Exchange] = field(default_factory=dict)

    def begin(self, opening: Opening, site: Site) -> bytes:
        """Begin an attempt, and return the site's keys; nothing is trained or charged yet.

        Raises:
            PolicyError: The policy does not allow it.
            WireError: This attempt, or a later one of the run, was begun before.
        """
        run, assumed = opening.attempt.run, _Assumed.now(site)
        ledger = site.open_ledger()
        try:
            journal = ledger.journal()
            _check_attempts(journal, opening, sum_policy(site).retries)
            party = PairwiseSite(
                name=site.name,
                roster=opening.roster,
                key=opening.key,
                journal=journal,
                attempt=opening.attempt,
                honest=opening.honest,
                colluders=opening.colluders,
                declared_rows=opening.rows,
            )
            keys = party.begin()
        except BaseException:
            ledger.close()
            raise
        # Only now: an order that is refused, such as a copy of an earlier one, ends no attempt.
        self.close(run)
        if len(self._open) >= _MOST_RUNS:
            self.close(next(iter(self._open)))
        self._open[run] = _Exchange(opening=opening, ledger=ledger, party=party, assumed=assumed)
        return keys

    def step(self, step: Step, site: Site) -> bytes:
        """Return the site's next message of an open attempt.

        Raises:
            WireError: The attempt is not open, or the message is not the one that it waits for.
            PolicyError: The policy does not allow the charge.
        """
        found = self._open.get(step.run)
        place = (step.run, step.round, step.attempt)
        if found is None or step.client != site.name or place != found.opening.attempt.place:
            raise WireError(
                f"attempt {step.attempt} at round {step.round} of the run '{step.run}' is not open "
                "at this site; it may have restarted since"
            )
        if _Assumed.now(site) != found.assumed:
            self.close(step.run)
            raise PolicyError(
                "the site has changed its roster, or 'honest' or 'colluders' of its policy, since "
                "the attempt began; open a new attempt, which uses the new ones"
            )
        party = found.party
        match step.action:
            case "share":
                return party.share(step.content)
            case "contribute":
                # Checked first: computing takes as long as the data make it.
                stored = party.check_box(step.content)
                if stored is None:
                    stored = found.opening.contribute(party, step.content, found.ledger, site)
                site.settle(found.ledger.position())
                return stored
            case "sign":
                return party.sign(step.content)
            case "answer":
                answer = party.answer(step.content)
                self.close(step.run)
                return answer

    def close(self, run: str) -> None:
        """Forget the secrets of a run's open attempt, if there is one."""
        found = self._open.pop(run, None)
        if found is not None:
            try:
                found.party.close()
            finally:
                found.ledger.close()


def sum_policy(site: Site) -> Policy:
    """Return the policy of a site; raise PolicyError if it allows no secure sums."""
    policy = site.policy
    if not isinstance(policy, Policy) or policy.honest is None or policy.colluders is None:
        raise PolicyError("set 'honest' and 'colluders' in [policy] to allow secure sums")
    return policy


def trusted(site: Site) -> tuple[TrustKey, Roster]:
    """Return the site's key and pinned roster; what is wrong with its files is only logged."""
    try:
        return load_trust(site.trust)
    except SottovoceError as error:
        _LOG.error("%s", error)
        raise PolicyError(
            "this site has no usable key or pinned roster for secure sums; see its log"
        ) from None


def _check_attempts(journal: Journal, opening: Opening, retries: int) -> None:
    """Raise PolicyError if the run's terms have changed, or it has had too many attempts.

    A server that could change what an attempt costs after it has seen results would choose it by
    them, and one that could repeat attempts without end would use up the site's budget.
    """
    federation, run, planned = (
        opening.roster.federation,
        opening.attempt.run,
        opening.planned_rounds,
    )
    # A digest, because an order's spec has megabytes if the server likes, and stays for ever.
    terms = hashlib.sha256(opening.terms.encode()).hexdigest()
    if journal.fix(federation, run, terms) != terms:
        raise PolicyError(
            f"the plan of the run '{run}' differs from the one that its first attempt fixed; "
            "start a run with another name"
        )
    if journal.attempts(federation, run) >= planned + retries:
        raise PolicyError(
            f"the run '{run}' has used the {planned} planned rounds and the {retries} 'retries' "
            "that this site allows; start a new run, or raise 'retries'"
        )
