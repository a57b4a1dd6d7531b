"""The command `sottovoce plugins`, which lists everything that is registered."""

import importlib
from typing import TYPE_CHECKING, Any

from sottovoce.cli.output import Json, print_json, print_table, say

if TYPE_CHECKING:
    from sottovoce.core.registry import Register

# The module and name of each register; imported one by one, because some need torch.
_REGISTERS = {
    "mechanism": "sottovoce.mechanisms.registry:MECHANISMS",
    "accountant": "sottovoce.privacy.accounting:ACCOUNTANTS",
    "algorithm": "sottovoce.federated.algorithms.algorithm:ALGORITHMS",
    "aggregation": "sottovoce.federated.algorithms.algorithm:AGGREGATIONS",
    "channel": "sottovoce.protocol.channels.channel:CHANNELS",
    "sampling": "sottovoce.federated.cohorts:SAMPLINGS",
    "attack": "sottovoce.auditing.attacks.context:ATTACKS",
    "dataset": "sottovoce.learning.datasets.register:DATASETS",
    "partition": "sottovoce.learning.partition:PARTITIONS",
    "model": "sottovoce.learning.models.register:MODELS",
    "feature": "sottovoce.learning.features:FEATURES",
    "backend": "sottovoce.runs.backends:BACKENDS",
    "command": "sottovoce.cli.commands:COMMANDS",
    "experiment": "sottovoce_papers.experiment:EXPERIMENTS",
}


def plugins(as_json: Json = False) -> None:
    """List what is registered of each kind, its distribution, and what cannot be used.

    Plug-ins of other distributions are found by their entry points and imported to see whether
    they work; one that fails is listed with the reason.
    """
    rows = [row for kind, place in _REGISTERS.items() for row in _rows(kind, place)]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["kind", "name", "from", "state"],
        [[row["kind"], row["name"], row["from"], row["problem"] or "ready"] for row in rows],
    )
    say(_summary(rows))


def _rows(kind: str, place: str) -> list[dict[str, Any]]:
    module, _, attribute = place.partition(":")
    try:
        register: Register[Any] = getattr(importlib.import_module(module), attribute)
        listed = register.listed()
    except ModuleNotFoundError as error:  # torch, or another extra, is not installed
        if str(error.name).partition(".")[0] == "sottovoce_papers":  # the papers are not installed
            return []
        problem = f"needs {error.name}: pip install 'sottovoce[learn]'"
        return [{"kind": kind, "name": "all", "from": "sottovoce", "problem": problem}]
    return [
        {"kind": kind, "name": one.name, "from": one.source, "problem": one.problem}
        for one in listed
    ]


def _summary(rows: list[dict[str, Any]]) -> str:
    from sottovoce.core.registry import OUR_SOURCES

    foreign = [row for row in rows if row["from"] not in OUR_SOURCES]
    broken = sum(row["problem"] is not None for row in foreign)
    if not foreign:
        return "No plug-ins are installed; see docs/how-to/write-a-plug-in.md to write one."
    number = "1 plug-in" if len(foreign) == 1 else f"{len(foreign)} plug-ins"
    return (
        f"{number}, {broken} of which cannot be used. Guarantees that depend on what a plug-in "
        "declares say so."
    )
