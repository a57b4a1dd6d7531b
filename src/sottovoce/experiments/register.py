"""Every experiment that there is: studies, and the catalogue of grids."""

import importlib
import pkgutil
from functools import cache

from sottovoce.errors import UnknownNameError
from sottovoce.experiments import studies
from sottovoce.experiments.experiment import ENTERED, Experiment
from sottovoce.experiments.learning import study as learning_study


@cache
def _discover() -> None:
    """Import every study, so that it enters; of a folder, the module `study`."""
    for module in pkgutil.iter_modules(studies.__path__):
        name = f"{studies.__name__}.{module.name}"
        importlib.import_module(f"{name}.study" if module.ispkg else name)
    learning_study.enter_catalogue()


def experiments() -> tuple[Experiment, ...]:
    """Every registered experiment, by name."""
    _discover()
    return tuple(ENTERED[name] for name in sorted(ENTERED))


def find(name: str) -> Experiment:
    """The experiment of that name."""
    _discover()
    if name not in ENTERED:
        raise UnknownNameError.among("experiment", name, ENTERED)
    return ENTERED[name]
