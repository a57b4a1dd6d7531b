"""The baseline of a spec: the same training without privacy, to see what privacy costs.

It is never private, charges no ledger and has a name and a hash of its own.
"""

from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.runs.inputs import section_of, with_section
from sottovoce.runs.spec import ChannelSpec, MechanismSpec, RunSpec

UNCLIPPED = 1e12  # The largest clip norm that is allowed: no update that has not diverged has it.
_SUFFIX = {False: "-no-privacy", True: "-no-noise"}


def without_privacy(spec: RunSpec, *, keep_clipping: bool = False) -> RunSpec:
    """Return the spec of the same training without noise, budgets, clipping and rounding.

    What is switched off: the mechanism with its noise and its few bits (`mechanism.kind` is
    "no_privacy"), clipping (unless `keep_clipping`), the budgets of all clients and groups, the
    channel (it is "direct"), the random rotation, and the rounding of the model that clients
    receive. Values are added in float32 in this process; no message is stored and no ledger is
    written. The data, their partition, the initial model, the clients of each round, and the
    algorithm with its rates and steps stay. So does `privacy.record_sampling_rate`, which then only
    makes minibatches.

    Args:
        spec: The spec of a private run.
        keep_clipping: Whether to clip as before. The difference between the two baselines is what
            clipping costs; the rest is what noise and rounding cost.

    Returns:
        A spec with the name of the private one and "-no-privacy" (or "-no-noise").

    Raises:
        ConfigError: The records are at the sites of a federation, or the algorithm adds noise of
            its own.
    """
    if spec.data.sites:
        raise ConfigError(
            "a run without privacy is a simulation in this process, but 'data.sites' keep their "
            "records on other machines; set data.clients and a data set that is here"
        )
    section = section_of(spec).without_privacy(
        Unit(spec.privacy.level), clip_norm=None if keep_clipping else UNCLIPPED
    )
    privacy = {"epsilon": None, "groups": ()}
    runtime = {"backend": "fast", "messages": "none", "downlink": "float32"}
    changed = spec.model_copy(
        update={
            "name": spec.name + _SUFFIX[keep_clipping],
            "randomness": "seeded",
            "rotation": "off",
            "privacy": spec.privacy.model_copy(
                update=privacy if keep_clipping else {**privacy, "clip_norm": UNCLIPPED}
            ),
            "mechanism": MechanismSpec(kind="no_privacy"),
            "channel": ChannelSpec(kind="direct"),
            "runtime": spec.runtime.model_copy(update=runtime),
        }
    )
    return with_section(changed, section)
