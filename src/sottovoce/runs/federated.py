"""What of a spec a federation of machines can do."""

import math

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.federated.algorithms.recipe import RECIPES
from sottovoce.runs.algorithms import section_of
from sottovoce.runs.spec import CentralSpec, FixedSizeSpec, PoissonSpec, RunSpec, SecretOrderSpec


def check_runtime(spec: RunSpec) -> None:
    """Refuse what no federation of machines can do."""
    backend = spec.runtime.backend
    if spec.data.dataset.startswith("memory:") or spec.model.kind == "in_memory":
        raise ConfigError(
            f"runtime.backend = '{backend}' trains in other processes, which do not have data or "
            "models of this one's memory; set runtime.backend = 'fast', or name a file "
            "('npz:PATH') and a factory (model.kind = 'module')"
        )
    if spec.runtime.messages != "stored":
        raise ConfigError(
            f"runtime.backend = '{backend}' sends every message: set runtime.messages = 'stored'"
        )
    if isinstance(spec.channel, CentralSpec):
        raise ConfigError(
            f"runtime.backend = '{backend}' has no trusted server that adds noise to sums; set "
            "channel.kind = 'direct'"
        )
    if isinstance(spec.channel, SecretOrderSpec):
        raise ConfigError(
            f"runtime.backend = '{backend}' asks clients by name, so the server would know the "
            "order that is to be secret; use the channel 'shuffler', which hides who sent which "
            "message of a round, or simulate with runtime.backend = 'fast'"
        )
    # Before anything of a plug-in's is imported.
    if RECIPES.find_ours(spec.algorithm.kind) is None or not section_of(spec).is_ours():
        raise ConfigError(
            f"runtime.backend = '{backend}' runs algorithms and aggregations of Sottovoce's own "
            f"only: no site takes a server's word for the algorithm '{spec.algorithm.kind}'; "
            "simulate with runtime.backend = 'fast'"
        )
    if section_of(spec).traits(Unit(spec.privacy.level)).keeps_client_state:
        raise ConfigError(
            f"runtime.backend = '{backend}' keeps no control variates at sites; use the algorithm "
            "'fedavg', with algorithm.proximal_weight where clients differ, or level 'sample'"
        )
    if spec.data.sites and backend == "flower-sim":
        raise ConfigError(
            "'data.sites' have records elsewhere; simulate with 'data.clients', or set "
            "runtime.backend = 'flower'"
        )
    if spec.deployment.oversampling > 1.0 and not isinstance(
        spec.sampling, FixedSizeSpec | PoissonSpec
    ):
        raise ConfigError(
            "'deployment.oversampling' asks more clients than sampling says: set sampling.kind to "
            f"'fixed_size' or 'poisson', not '{spec.sampling.kind}'"
        )


def oversampled(spec: RunSpec) -> RunSpec:
    """The spec with as many clients asked as `deployment.oversampling` wants."""
    factor = spec.deployment.oversampling
    match spec.sampling:
        case FixedSizeSpec(size=size):
            names = spec.data.clients or len(spec.data.names) or len(spec.data.sites) or size
            wanted = math.ceil(round(size * factor, 9))  # 50 times 1.1 is 55, and not a bit more
            more = FixedSizeSpec(kind="fixed_size", size=min(names, wanted))
            return spec.model_copy(update={"sampling": more})
        case PoissonSpec(rate=rate):
            likelier = PoissonSpec(kind="poisson", rate=min(1.0, rate * factor))
            return spec.model_copy(update={"sampling": likelier})
        case _:
            return spec
