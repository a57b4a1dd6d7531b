"""On what terms `sottovoce deploy ask` asks a federation, or the clients of a relay."""

from dataclasses import dataclass
from typing import Any

DIRECT, SECURE_SUM, SHUFFLER = "direct", "secure_sum", "shuffler"
_DELTA = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class AskTerms:
    """The options that depend on who is asked; None for one that was not given."""

    channel: str | None
    minimum_sites: int | None
    minimum_clients: int | None
    colluders: int | None
    people_per_client: int | None
    delta: float | None

    def of_federation(self) -> dict[str, Any]:
        """Return the terms for the link's server.

        Raises:
            ParameterError: An option is out of range, or of no use with the others.
            UnknownNameError: The channel is not known.
        """
        from sottovoce.core import parameter_rules
        from sottovoce.core.errors import ParameterError, UnknownNameError
        from sottovoce.deployment.masked_questions import channel_of_sum

        kind = self.channel or DIRECT
        if self.people_per_client is not None:
            raise ParameterError(
                "--people-per-client is for a relay's collector; sites of a federation declare how "
                "many people they have; leave it out"
            )
        if kind == SHUFFLER:
            raise ParameterError(
                "a federation's link has no shuffler; use --channel secure_sum, or name the folder "
                "of a relay's collector"
            )
        if kind not in (DIRECT, SECURE_SUM):
            raise UnknownNameError.among("channel of a question", kind, (DIRECT, SECURE_SUM))
        sites = 1 if self.minimum_sites is None else self.minimum_sites
        parameter_rules.integer("--minimum-sites", sites, low=1, high=2**31)
        if kind == DIRECT:
            self._refuse_without_sum()
            return {"minimum_sites": sites}
        colluders = 1 if self.colluders is None else self.colluders
        channel_of_sum(2 if self.minimum_clients is None else self.minimum_clients, colluders)
        return {
            "minimum_sites": sites,
            "channel": kind,
            "minimum_clients": self.minimum_clients or 0,
            "colluders": colluders,
            "delta": self._delta(),
        }

    def of_collector(self) -> dict[str, Any]:
        """Return the terms for the collector of a relay.

        Raises:
            ParameterError: An option is out of range, or of no use with a collector.
        """
        from sottovoce.core.errors import ParameterError
        from sottovoce.deployment.operators.relayed_questions import check_channel

        kind = self.channel or SECURE_SUM
        check_channel(kind)
        if self.minimum_sites is not None:
            raise ParameterError(
                "--minimum-sites is for a federation; a relay forwards nothing of fewer clients "
                "than --minimum-clients + --colluders; use these"
            )
        return {
            "channel": kind,
            "minimum_clients": self.minimum_clients,
            "colluders": self.colluders,
            "people_per_client": 1 if self.people_per_client is None else self.people_per_client,
            "delta": self._delta(),
        }

    def _delta(self) -> float:
        from sottovoce.core import parameter_rules

        return parameter_rules.delta(_DELTA if self.delta is None else self.delta)

    def _refuse_without_sum(self) -> None:
        """Raise ParameterError for an option that says nothing about tallies that are all seen."""
        from sottovoce.core.errors import ParameterError

        for name in ("minimum_clients", "colluders", "delta"):
            if getattr(self, name) is not None:
                option = "--" + name.replace("_", "-")
                raise ParameterError(
                    f"{option} is of use only where tallies are hidden; add --channel secure_sum, "
                    "or leave it out"
                )
