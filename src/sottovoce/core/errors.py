"""The errors that Sottovoce raises on purpose.

    SottovoceError
    +-- ParameterError           a parameter is outside its allowed range
    +-- UnknownNameError         there is no mechanism, data set, key ... of that name
    +-- PluginError              a plug-in fails, or claims a name that is taken
    +-- DomainError              an input is outside its declared domain (NaN, norm, dimension)
    +-- RandomnessError          two inputs would get the same random bits
    +-- DesignError              a mechanism design cannot be found, read or certified
    +-- PrivacyError
    |   +-- AdjacencyMismatchError   one composition has events of two adjacencies
    |   +-- UnsupportedEventError    an accountant has no sound bound for an event
    |   +-- BudgetExhaustedError     a charge would exceed a client's budget
    |   +-- PolicyError              a site's own policy does not allow a request
    +-- WireError                a message is not exactly what was announced
    +-- AbandonedError           a protocol for a secure sum or shuffle was given up
    +-- LedgerError              the ledger cannot be read, written or trusted
    |   +-- LedgerLostError          a site's ledger is missing, or not the one that was charged
    |       +-- RolledBackError      a site's ledger is older than its federation has witnessed
    +-- ConfigError              a spec cannot be run
    +-- OutputError              a run folder cannot be read or written
    +-- DeploymentError          a federation cannot be set up, reached or relied on
    +-- DataError                a data set is missing, damaged, or refused by its source

Each of them reports a mistake of the user or a state of the environment, so the command line
prints its message without a traceback and exits with status 2. A bug in Sottovoce shows as an
AssertionError or another exception of Python.
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class SottovoceError(Exception):
    """The base class of every error that Sottovoce raises on purpose."""


class ParameterError(SottovoceError, ValueError):
    """An error for a parameter outside its allowed range.

    The message names the parameter, the rule, the value and, where there is one, the remedy.
    """


class UnknownNameError(SottovoceError, KeyError):
    """An error for a name that is not a known one; the message suggests a similar name, if any."""

    # KeyError would print the repr of the message.
    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def among(cls, what: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """Return the error for an unknown name, with all valid names and the nearest similar one.

        Args:
            what: What the name should denote, such as "mechanism".
            name: The name that was given.
            known: The valid names.

        Returns:
            The error, to be raised by the caller.

        Examples:
            >>> print(UnknownNameError.among("unit", "samples", ["sample", "client"]))
            unknown unit 'samples'; did you mean 'sample'? valid names: client, sample
        """
        names = sorted(known)
        near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'? " if near else ""
        return cls(f"unknown {what} '{name}'; {hint}valid names: {', '.join(names) or 'none'}")


class PluginError(SottovoceError):
    """An error for a plug-in that cannot be used, or for a name that two distributions register.

    The message names the plug-in and, where they are known, the distributions.
    """


class DomainError(SottovoceError, ValueError):
    """An error for an input that is outside the domain that the mechanism declares."""


class RandomnessError(SottovoceError):
    """An error for randomness that would or could be used for a second input.

    A keystream was used before, or seeded randomness has no label that names the input.
    """


class DesignError(SottovoceError):
    """An error for a mechanism design that is damaged, for other parameters, or not certified."""


class PrivacyError(SottovoceError):
    """The base class of the errors about privacy events, budgets and policies."""


class AdjacencyMismatchError(PrivacyError):
    """An error for events under different adjacencies in one composition."""


class UnsupportedEventError(PrivacyError):
    """An error for an event for which the accountant has no sound bound."""


class BudgetExhaustedError(PrivacyError):
    """An error for a charge that would exceed its client's budget.

    That client was not charged, and nothing was sent for it; other clients of a batch may be.
    """


class PolicyError(PrivacyError):
    """An error for a request that the site's policy does not allow; nothing was sent."""


class WireError(SottovoceError, ValueError):
    """An error for a message that is malformed, damaged or not the one that was expected.

    Its messages say what was expected and what arrived. The remedy is the same for all of them, so
    the command line prints it after the message.

    Attributes:
        remedy: What to do about any such error.
    """

    remedy: ClassVar[str] = (
        "The message was not used; check that both ends run the same version of Sottovoce."
    )


class AbandonedError(SottovoceError):
    """An error for a secure sum or shuffle that was given up, so that nothing of it is published.

    A new attempt needs fresh codes, which are a new charge.
    """


class LedgerError(SottovoceError):
    """An error for a ledger that cannot be read, written or trusted."""


class LedgerLostError(LedgerError):
    """An error for a site's ledger that is missing, replaced or older than what was charged.

    The site must stop: without its ledger it does not know what it has spent.
    """


class RolledBackError(LedgerLostError):
    """An error for a site's ledger that is older than its federation has witnessed.

    The message names no path, because it is also sent to the server.
    """


class ConfigError(SottovoceError, ValueError):
    """An error for a spec that cannot be run."""


class OutputError(SottovoceError):
    """An error for a folder or file that cannot be read or written, or that is locked."""


class DataError(SottovoceError):
    """An error for data that is missing, damaged or not what was announced.

    The message says which data it is about, and what to do.
    """


class DeploymentError(SottovoceError):
    """An error for a federation that cannot be set up, reached or relied on."""
