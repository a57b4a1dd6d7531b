"""Privacy settings in a Flower app's run config, under the keys that start with 'sottovoce'.

    [tool.flwr.app.config.sottovoce]
    epsilon = 8.0                   # of each client, over the whole run
    delta = 1e-5
    clip-norm = 1.0                 # of the whole update
    mechanism = "gauss_hermite"     # the default
    bits = 1                        # per coordinate; the default if the mechanism has levels
    adjacency = "zero-out"          # the default; or "replace-one"
    ledger = "/var/server.sqlite"   # the server's ledger [default: one for this run only]
    public-num-examples = false     # true: clients send the number of examples of an update
    parameters.<name> = ...         # any other parameter of the mechanism

Flower joins nested tables with dots, so these arrive as 'sottovoce.epsilon' and so on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ConfigError, ParameterError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import ReleaseTerms

PREFIX = "sottovoce."
_PARAMETERS = "parameters."
_REQUIRED = ("epsilon", "delta", "clip-norm")
_KEYS = (*_REQUIRED, "mechanism", "bits", "adjacency", "ledger", "public-num-examples")
DEFAULT_MECHANISM = "gauss_hermite"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSettings:
    """The privacy settings of a run; the noise also depends on dimension and number of rounds.

    Attributes:
        mechanism: Kind of the mechanism.
        parameters: Its parameters except the calibrated one.
        clip_norm: L2 norm to which a whole update is clipped.
        epsilon: Budget of each client over the whole run.
        delta: Delta of the budget.
        adjacency: Adjacency of the guarantee.
        ledger: The server's ledger file; None for a temporary one.
        public_num_examples: Whether clients send the number of examples in the clear.
    """

    mechanism: str
    parameters: Mapping[str, Any]
    clip_norm: float
    epsilon: float
    delta: float
    adjacency: Adjacency
    ledger: Path | None
    public_num_examples: bool

    def __post_init__(self) -> None:
        parameter_rules.epsilon(self.epsilon)
        parameter_rules.delta(self.delta)
        if str(self.clip_norm) == "auto":
            raise ParameterError(
                "clip-norm must be a number, because a wrapped strategy clips to a constant norm; "
                "for adaptive clipping train a spec with 'sottovoce deploy run'"
            )
        parameter_rules.clip_norm("clip-norm", self.clip_norm)
        domains = registry.find(self.mechanism).example_domains
        if not any(isinstance(domain, L2Ball) for domain in domains):
            raise ParameterError(
                f"mechanism '{self.mechanism}' does not privatize an update that is clipped in L2 "
                f"as a whole; choose '{DEFAULT_MECHANISM}', or another from 'sottovoce plan'"
            )

    def calibrated(self, dimension: int, num_rounds: int) -> Mechanism:
        """Return the mechanism whose noise keeps the budget of a client that joins every round.

        `dimension` is the number of coordinates of an update.
        """
        registration = registry.find(self.mechanism)
        domain = L2Ball(dimension=dimension, radius=float(self.clip_norm))
        found = registration.calibrated(
            domain,
            self.parameters,
            rounds=num_rounds,
            epsilon=self.epsilon,
            delta=self.delta,
            event_of=ReleaseTerms(adjacency=self.adjacency),
        )
        return registration.build(domain, found)


def settings_of(run_config: Mapping[str, Any]) -> PrivateSettings:
    """Return the settings in a run config; keys that do not start with 'sottovoce.' are ignored.

    Raises UnknownNameError for an unknown key, and ConfigError or ParameterError for a missing key
    or a value that is not valid.
    """
    own = {
        key.removeprefix(PREFIX): value
        for key, value in run_config.items()
        if key.startswith(PREFIX)
    }
    for key in own:
        if key not in _KEYS and not key.startswith(_PARAMETERS):
            raise UnknownNameError.among("key of 'sottovoce' in the run config", key, _KEYS)
    missing = [f"'{PREFIX}{key}'" for key in _REQUIRED if key not in own]
    if missing:
        raise ConfigError(
            f"the run config lacks {', '.join(missing)}, which have no defaults; add them under "
            "[tool.flwr.app.config.sottovoce]"
        )
    public = own.get("public-num-examples", False)
    if not isinstance(public, bool):
        raise ConfigError(f"'{PREFIX}public-num-examples' must be true or false, got {public!r}")
    kind = str(own.get("mechanism", DEFAULT_MECHANISM))
    return PrivateSettings(
        mechanism=kind,
        parameters=_parameters_of(kind, own),
        clip_norm=own["clip-norm"],
        epsilon=own["epsilon"],
        delta=own["delta"],
        adjacency=Adjacency.parse(str(own.get("adjacency", Adjacency.ZERO_OUT))),
        ledger=Path(own["ledger"]) if own.get("ledger") else None,
        public_num_examples=public,
    )


def _parameters_of(kind: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mechanism's parameters except the calibrated one.

    They are given, follow from the number of bits, or are chosen automatically.
    """
    registration = registry.find(kind)
    given = {
        key.removeprefix(_PARAMETERS): value
        for key, value in own.items()
        if key.startswith(_PARAMETERS)
    }
    registration.check_names(given)
    automatic = dict.fromkeys(registration.automatic, "auto")
    return {**automatic, **_from_bits(registration, own.get("bits"), given), **given}


def _from_bits(
    registration: registry.Registration, bits: int | str | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameter that sets the number of bits per coordinate."""
    names = [name for name in ("levels", "bits", "output_bits") if name in registration.parameters]
    if bits is None:
        return {"levels": 2} if names[:1] == ["levels"] else {}
    if not names or names[0] in given:
        why = f"'{names[0]}' is given too" if names else "its number of bits is fixed"
        raise ConfigError(
            f"'{PREFIX}bits' has no effect on mechanism '{registration.kind}': {why}; remove it"
        )
    if bits == "auto":
        return {names[0]: "auto"}
    number = parameter_rules.integer("bits", bits, low=1, high=32)  # type: ignore[arg-type]
    return {names[0]: 2**number if names[0] == "levels" else number}
