"""What of a spec a federation of machines can do."""

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.federated.algorithms.algorithm import RECIPES
from sottovoce.federated.cohorts import SAMPLINGS, ClientSampling
from sottovoce.protocol.channels.channel import CHANNELS
from sottovoce.runs.algorithms import section_of
from sottovoce.runs.spec import RunSpec


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
    # Before anything of a plug-in's is imported.
    for register, kind in ((CHANNELS, spec.channel.kind), (SAMPLINGS, spec.sampling.kind)):
        if register.find_ours(kind) is None:
            raise ConfigError(
                f"runtime.backend = '{backend}' runs channels and samplings of Sottovoce's own "
                f"only: no site takes a server's word for the {register.kind} '{kind}'; simulate "
                "with runtime.backend = 'fast'"
            )
    spec.channel.opened().check_federation(backend)
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
    if spec.deployment.oversampling > 1.0 and spec.sampling.opened().oversampled(1.0, None) is None:
        raise ConfigError(
            "'deployment.oversampling' asks more clients than sampling says: set sampling.kind to "
            f"'fixed_size' or 'poisson', not '{spec.sampling.kind}'"
        )


def oversampled(spec: RunSpec) -> ClientSampling:
    """Return the sampling that asks as many clients as `deployment.oversampling` wants."""
    sampling = spec.sampling.opened()
    most = spec.data.clients or len(spec.data.names) or len(spec.data.sites) or None
    return sampling.oversampled(spec.deployment.oversampling, most) or sampling
