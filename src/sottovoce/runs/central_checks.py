"""What a run with a trusted server's noise may ask for, and what it must not."""

from sottovoce.core.errors import ConfigError
from sottovoce.protocol.channels.central import Central
from sottovoce.runs.algorithms import traits_of
from sottovoce.runs.spec import EveryoneSpec, PoissonSpec, RunSpec

WARNING = (
    "central noise is no local privacy: the server is trusted with every update, and nobody else "
    "may see who was sampled; bytes are those of a float32 message of every client in every round"
)


ASSUMPTION = "the server is trusted with every update, and adds the noise once, to the sum"


def check_runtime(spec: RunSpec) -> None:
    """A simulation without messages: nobody sends what a trusted server would add up."""
    if spec.runtime.messages != "none" or spec.randomness != "seeded":
        raise ConfigError(
            "the channel 'central' is simulated without messages: set runtime.messages = 'none' "
            "and randomness = 'seeded'"
        )
    if spec.rotation == "on":
        raise ConfigError(
            "'rotation' turns messages before they are encoded, and the channel 'central' encodes "
            "none; set it to 'off'"
        )
    if not traits_of(spec).plain_mean:
        raise ConfigError(
            "the channel 'central' releases one noisy mean a round: use the algorithm 'fedavg' "
            "with aggregation 'mean', or the channel 'direct'"
        )


def channel(spec: RunSpec) -> Central:
    """The channel with the secret sampling that the spec asks for."""
    match spec.sampling:
        case EveryoneSpec():
            return Central()
        case PoissonSpec(rate=rate):
            if spec.privacy.level == "sample" and rate < 1.0:
                raise ConfigError(
                    "a client that is sampled brings all of its records, so sampling clients hides "
                    "no single record: set privacy.record_sampling_rate and sampling 'everyone', "
                    "or privacy.level = 'client'"
                )
            return Central(client_sampling_rate=rate)
        case _:
            raise ConfigError(
                f"the channel 'central' accounts for sampling 'everyone' or 'poisson', not for "
                f"'{spec.sampling.kind}'"
            )
