"""Everything Sottovoce raises on purpose.

    SottovoceError
    +-- ParameterError           a parameter breaks its rule
    +-- UnknownNameError         no mechanism, dataset, key ... of that name
    +-- PluginError              a plug-in that fails, or claims a name that is taken
    +-- DomainError              an input lies outside its declared domain (NaN, norm, dimension)
    +-- RandomnessError          a keystream asked to serve twice
    +-- DesignError              a mechanism design that cannot be found, read or certified
    +-- PrivacyError
    |   +-- AdjacencyMismatchError   events of two adjacencies in one composition
    |   +-- UnsupportedEventError    an accountant that has no sound bound for an event
    |   +-- BudgetExhaustedError     a charge that would exceed a client's budget
    |   +-- PolicyError              a request that a site's own policy does not allow
    +-- WireError                a message that is not exactly what was announced
    +-- LedgerError              the ledger cannot be read, written or trusted
    |   +-- LedgerLostError          a site's ledger is gone, or not the one that was charged
    |       +-- RolledBackError      ... or not the one that its federation has witnessed
    +-- ConfigError              a spec that cannot be run
    +-- OutputError              a run folder that cannot be read or written
    +-- DeploymentError          a federation that cannot be set up, reached or relied on
    +-- DataError                a dataset that is absent, damaged, or refused by its source

Each is a user's mistake or a state of the world, so the command line prints it in one line and
exits 2. A bug in Sottovoce is an AssertionError or whatever Python raises.
"""

import difflib
from collections.abc import Iterable


class SottovoceError(Exception):
    """Base of every error raised on purpose."""


class ParameterError(SottovoceError, ValueError):
    """A parameter breaks its rule; the message names value, rule and remedy."""


class UnknownNameError(SottovoceError, KeyError):
    """A name that is not among the known ones; the message offers the nearest."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0])

    @classmethod
    def among(cls, what: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """The error for `name`, with the nearest valid name and the whole list."""
        names = sorted(known)
        near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'? " if near else ""
        return cls(f"unknown {what} '{name}'; {hint}valid names: {', '.join(names) or 'none'}")


class PluginError(SottovoceError):
    """A plug-in that cannot be used, or a name that two claim; names the distributions."""


class DomainError(SottovoceError, ValueError):
    """An input outside the declared domain."""


class RandomnessError(SottovoceError):
    """A keystream would serve a second input."""


class DesignError(SottovoceError):
    """A design that is damaged, made for other parameters, or fails its certificate."""


class PrivacyError(SottovoceError):
    """Base of the errors about privacy events and budgets."""


class AdjacencyMismatchError(PrivacyError):
    """Events under different adjacencies cannot be composed."""


class UnsupportedEventError(PrivacyError):
    """The accountant has no sound bound for this event."""


class BudgetExhaustedError(PrivacyError):
    """The charge would exceed the client's budget, so nothing is sent."""


class PolicyError(PrivacyError):
    """A site's policy does not allow what is asked, so nothing is sent."""


class WireError(SottovoceError, ValueError):
    """A malformed, damaged or unexpected message."""


class LedgerError(SottovoceError):
    """The ledger cannot be read, written or trusted."""


class LedgerLostError(LedgerError):
    """A site's ledger is gone, replaced or older than what was charged; the site must stop."""


class RolledBackError(LedgerLostError):
    """A site's ledger is not what its federation has witnessed; the message names no path."""


class ConfigError(SottovoceError, ValueError):
    """A spec that cannot be run."""


class OutputError(SottovoceError):
    """A folder or file that cannot be read or written."""


class DataError(SottovoceError):
    """Data that is absent, damaged or not what was announced; names the file and the remedy."""


class DeploymentError(SottovoceError):
    """A federation that cannot be set up, reached or relied on; names what to do."""
