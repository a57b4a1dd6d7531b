"""The options that say what a round releases, apart from the mechanism's own parameters."""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

if TYPE_CHECKING:
    from sottovoce.adjacency import Adjacency
    from sottovoce.domains import Domain
    from sottovoce.harmonizer.sampling import SecretSample
    from sottovoce.mechanisms.mechanism import Mechanism
    from sottovoce.mechanisms.registry import Registration
    from sottovoce.privacy.events import PrivacyEvent

Kind = Annotated[str, typer.Option("--mechanism", help="A name from 'sottovoce mechanism list'.")]
Dimension = Annotated[
    int | None,
    typer.Option(help="Coordinates of an update [1; for one-bit codes, any number]."),
]
ClipNorm = Annotated[float, typer.Option(help="The largest norm of a contribution.")]
ClipGeometry = Annotated[
    str | None, typer.Option(help="l2, l1 or linf [what the mechanism is made for].")
]
Records = Annotated[
    int,
    typer.Option(
        help="Contributions whose mean a message is: 1 at client level, a client's samples at "
        "sample level."
    ),
]
AdjacencyName = Annotated[str, typer.Option(help="zero-out or replace-one.")]
SamplingRate = Annotated[
    float | None,
    typer.Option(help="Each round works on a secret sample, taken with this probability."),
]
Sampling = Annotated[str, typer.Option(help="poisson or fixed-size.")]
SamplingHiddenBy = Annotated[
    str,
    typer.Option(
        help="What keeps the sample secret: own-records (a client samples its own records), "
        "central-noise, secure-sum, or nothing (the server sees who sends: refused)."
    ),
]
ShuffledClients = Annotated[
    int | None, typer.Option(help="Messages that a shuffler mixes in each round.")
]
SecureSumClients = Annotated[
    int | None,
    typer.Option(help="Clients of whom a secure sum reveals nothing but the sum, at least."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one round releases, apart from the mechanism's own parameters."""

    registration: "Registration"
    domain: "Domain"
    dimension: int | None
    clip_norm: float
    adjacency: "Adjacency"
    sample: "SecretSample | None"
    shuffled_clients: int | None
    secure_sum_clients: int | None

    @property
    def amplified(self) -> bool:
        return any(
            value is not None
            for value in (self.sample, self.shuffled_clients, self.secure_sum_clients)
        )

    def event(self, mechanism: "Mechanism") -> "PrivacyEvent":
        """What is seen of one client in one round."""
        from sottovoce.adjacency import Adjacency
        from sottovoce.channels.channel import SecureSum
        from sottovoce.privacy.shuffling import shuffled

        if self.secure_sum_clients is not None:
            channel = SecureSum(minimum_clients=self.secure_sum_clients)
            event = self._any_dimension(channel.event(mechanism, self.adjacency))
        elif self.shuffled_clients is not None:
            # Clones hide any change of an input, so that is what is asked of each message, and
            # zero-out is one such change.
            local = self._any_dimension(mechanism.privacy(Adjacency.REPLACE_ONE))
            event = shuffled(local, self.shuffled_clients)
        else:
            event = self._any_dimension(mechanism.privacy(self.adjacency))
        return event if self.sample is None else self.sample.event(mechanism, event)

    def local_event(self, mechanism: "Mechanism", adjacency: "Adjacency") -> "PrivacyEvent":
        """What a message alone would give away."""
        event = self._any_dimension(mechanism.privacy(adjacency))
        return event if self.sample is None else self.sample.unsampled(event)

    def _any_dimension(self, event: "PrivacyEvent") -> "PrivacyEvent":
        """Without a stated dimension with which epsilon grows, the largest counts."""
        from sottovoce.domains import MAX_DIMENSION, L2Ball
        from sottovoce.privacy.events import LaplaceNoise, OneBit, SecureSum

        grows = isinstance(event, OneBit | SecureSum) or (
            isinstance(event, LaplaceNoise) and isinstance(self.domain, L2Ball)
        )
        if self.dimension is None and grows:
            assert isinstance(event, OneBit | SecureSum | LaplaceNoise)
            return dataclasses.replace(event, dimension=MAX_DIMENSION)
        return event

    def describe(self) -> dict[str, Any]:
        """How the release is amplified, for the result; empty if it is not."""
        described: dict[str, Any] = {}
        if self.sample is not None:
            described["sampling"] = self.sample.describe()
        if self.shuffled_clients is not None:
            described["shuffled_clients"] = self.shuffled_clients
        if self.secure_sum_clients is not None:
            described["secure_sum_clients"] = self.secure_sum_clients
        if self.amplified:
            described["assumes"] = self._assumption()
        return described

    def _assumption(self) -> str:
        """What must be true for the epsilon to hold, in a sentence."""
        if self.shuffled_clients is not None:
            return (
                f"a trusted shuffler mixes at least {self.shuffled_clients} messages each round; "
                "any change of an input is hidden (replace-one), zero-out among them"
            )
        if self.secure_sum_clients is not None:
            return (
                f"nobody sees more than sums over at least {self.secure_sum_clients} clients who "
                "do not collude"
            )
        assert self.sample is not None
        return self.sample.assumption


def _setting(
    mechanism: Kind,
    dimension: Dimension = None,
    clip_norm: ClipNorm = 1.0,
    clip_geometry: ClipGeometry = None,
    records: Records = 1,
    adjacency: AdjacencyName = "zero-out",
    sampling_rate: SamplingRate = None,
    sampling: Sampling = "poisson",
    sampling_hidden_by: SamplingHiddenBy = "own-records",
    shuffled_clients: ShuffledClients = None,
    secure_sum_clients: SecureSumClients = None,
) -> Setting:
    from sottovoce.adjacency import Adjacency
    from sottovoce.domains import clipped, geometry_of
    from sottovoce.errors import PrivacyError
    from sottovoce.mechanisms import registry

    registration = registry.find(mechanism)
    geometry = clip_geometry or geometry_of(registration.example_domain)
    hiding = {
        "--sampling-rate": sampling_rate,
        "--shuffled-clients": shuffled_clients,
        "--secure-sum-clients": secure_sum_clients,
    }
    given = [option for option, value in hiding.items() if value is not None]
    if len(given) > 1:
        raise PrivacyError(
            f"no bound is proved for {' and '.join(given)} together; give one of them"
        )
    return Setting(
        registration=registration,
        domain=clipped(geometry, 1 if dimension is None else dimension, clip_norm, records),
        dimension=dimension,
        clip_norm=clip_norm,
        adjacency=Adjacency.parse(adjacency),
        sample=secret_sample(sampling_rate, sampling, sampling_hidden_by),
        shuffled_clients=shuffled_clients,
        secure_sum_clients=secure_sum_clients,
    )


def secret_sample(rate: float | None, scheme: str, hidden_by: str) -> "SecretSample | None":
    """The sample that --sampling-rate, --sampling and --sampling-hidden-by ask for."""
    from sottovoce import parameters
    from sottovoce.errors import ParameterError, PrivacyError, UnknownNameError
    from sottovoce.harmonizer.sampling import ASSUMPTIONS, SecretSample
    from sottovoce.privacy.events import SamplingScheme

    if scheme not in get_args(SamplingScheme):
        raise UnknownNameError.among("--sampling", scheme, get_args(SamplingScheme))
    if hidden_by not in (*ASSUMPTIONS, "nothing"):
        raise UnknownNameError.among("--sampling-hidden-by", hidden_by, [*ASSUMPTIONS, "nothing"])
    if rate is None:
        if (scheme, hidden_by) != ("poisson", "own-records"):
            raise ParameterError(
                "--sampling and --sampling-hidden-by need --sampling-rate, the probability to be "
                "in the sample"
            )
        return None
    parameters.fraction("sampling rate", rate)
    if hidden_by == "nothing":
        raise PrivacyError(
            "a server that receives each message sees who took part, so sampling clients "
            "amplifies nothing; leave out --sampling-rate and count as --rounds those in "
            "which a client takes part, or hide the sample by own-records, central-noise or "
            "secure-sum"
        )
    return SecretSample(rate=rate, scheme=scheme, hidden_by=hidden_by)  # type: ignore[arg-type]


def check_plot(plot: Path | None) -> None:
    """A file that can be drawn to, checked before anything is computed."""
    from sottovoce.errors import OutputError, ParameterError

    if plot is None:
        return
    if plot.suffix != ".svg":
        raise ParameterError(f"--plot draws SVG: name a file that ends in .svg, got '{plot}'")
    if not plot.parent.is_dir():
        raise OutputError(f"there is no folder '{plot.parent}' for --plot; make it first")


def with_setting(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `_setting`, which takes what they say as its `setting`."""
    options, own = (inspect.signature(call).parameters for call in (_setting, command))

    def call(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in options}
        command(setting=_setting(**chosen), **given)

    both = [*options.values(), *(one for name, one in own.items() if name != "setting")]
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in both]
    call.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in named}
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    return call
