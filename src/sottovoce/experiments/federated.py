"""A spec on machines that Flower connects: what can be run there, and the rounds that do."""

from sottovoce.config.spec import CentralSpec, RunSpec, ScaffoldSpec
from sottovoce.errors import ConfigError


def check_runtime(spec: RunSpec) -> None:
    """Refuse what no federation of machines can do."""
    backend = spec.runtime.backend
    if spec.runtime.messages != "stored":
        raise ConfigError(
            f"runtime.backend = '{backend}' sends every message: set runtime.messages = 'stored'"
        )
    if isinstance(spec.channel, CentralSpec):
        raise ConfigError(
            f"runtime.backend = '{backend}' has no trusted server that adds noise to sums; set "
            "channel.kind = 'direct'"
        )
    if isinstance(spec.algorithm, ScaffoldSpec) and spec.privacy.level == "client":
        raise ConfigError(
            f"runtime.backend = '{backend}' keeps no control variates at sites; use the algorithm "
            "'fedavg', with algorithm.proximal_weight where clients differ, or level 'sample'"
        )
    if spec.data.sites and backend == "flower-sim":
        raise ConfigError(
            "'data.sites' have records elsewhere; simulate with 'data.clients', or set "
            "runtime.backend = 'flower'"
        )
