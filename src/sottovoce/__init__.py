"""Sottovoce: federated learning and analytics in a whisper.

Clients send a few bits instead of float32 updates, and those bits are differentially private.
The names below are loaded on first use, so importing the package stays cheap. Plain functions for
notebooks and programs: `plan`, `simulate`, `open_run`, `spend` and `ledger_total`.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from sottovoce.version import __version__ as __version__

if sys.version_info < (3, 11):  # noqa: UP036  (pip refuses, a source tree on the path does not)
    raise ImportError(
        f"Sottovoce needs Python 3.11 or newer, and this is {sys.version.split()[0]}; make a "
        "virtual environment with a newer one: python3.11 -m venv .venv"
    )

from sottovoce.core.moved import name_new_paths

name_new_paths()

if TYPE_CHECKING:
    from sottovoce.analytics.estimates import estimate as estimate
    from sottovoce.analytics.result import Estimate as Estimate
    from sottovoce.core.adjacency import Adjacency as Adjacency
    from sottovoce.core.domains import Box as Box
    from sottovoce.core.domains import L1Ball as L1Ball
    from sottovoce.core.domains import L2Ball as L2Ball
    from sottovoce.core.errors import SottovoceError as SottovoceError
    from sottovoce.core.randomness import SeededRandomness as SeededRandomness
    from sottovoce.core.randomness import SystemRandomness as SystemRandomness
    from sottovoce.core.table import Table as Table
    from sottovoce.deployment.totals import LedgerTotal as LedgerTotal
    from sottovoce.deployment.totals import ledger_total as ledger_total
    from sottovoce.deployment.totals import ledger_totals as ledger_totals
    from sottovoce.ledger.ledger import Ledger as Ledger
    from sottovoce.ledger.records import Budget as Budget
    from sottovoce.mechanisms.bitwise_rr import (
        BitwiseRandomisedResponse as BitwiseRandomisedResponse,
    )
    from sottovoce.mechanisms.clamped_sign import ClampedSign as ClampedSign
    from sottovoce.mechanisms.cldp import Cldp as Cldp
    from sottovoce.mechanisms.discrete_gaussian import DiscreteGaussian as DiscreteGaussian
    from sottovoce.mechanisms.discrete_laplace import DiscreteLaplace as DiscreteLaplace
    from sottovoce.mechanisms.discrete_staircase import DiscreteStaircase as DiscreteStaircase
    from sottovoce.mechanisms.gauss_hermite import GaussHermite as GaussHermite
    from sottovoce.mechanisms.gaussian import Gaussian as Gaussian
    from sottovoce.mechanisms.generalized_rr import (
        GeneralisedRandomisedResponse as GeneralisedRandomisedResponse,
    )
    from sottovoce.mechanisms.interpolated_mvu import InterpolatedMvu as InterpolatedMvu
    from sottovoce.mechanisms.laplace import Laplace as Laplace
    from sottovoce.mechanisms.metric_mvu import MetricMvu as MetricMvu
    from sottovoce.mechanisms.mvu import Mvu as Mvu
    from sottovoce.mechanisms.no_privacy import NoPrivacy as NoPrivacy
    from sottovoce.mechanisms.rotation import Rotation as Rotation
    from sottovoce.mechanisms.skellam import Skellam as Skellam
    from sottovoce.mechanisms.staircase import Staircase as Staircase
    from sottovoce.mechanisms.stochastic_sign import StochasticSign as StochasticSign
    from sottovoce.planning.plan import Plan as Plan
    from sottovoce.planning.plan import plan as plan
    from sottovoce.planning.spending import Spent as Spent
    from sottovoce.planning.spending import spend as spend
    from sottovoce.privacy.accounting import privacy_spent as privacy_spent
    from sottovoce.privacy.events import Composed as Composed
    from sottovoce.privacy.events import Repeated as Repeated
    from sottovoce.privacy.events import Sampled as Sampled
    from sottovoce.runs.check import check as check
    from sottovoce.runs.opened import Run as Run
    from sottovoce.runs.opened import open_run as open_run
    from sottovoce.runs.simulate import simulate as simulate

_HOMES = {
    "Adjacency": "core.adjacency",
    "estimate": "analytics.estimates",
    "Estimate": "analytics.result",
    "Plan": "planning.plan",
    "plan": "planning.plan",
    "check": "runs.check",
    "Run": "runs.opened",
    "open_run": "runs.opened",
    "simulate": "runs.simulate",
    "Spent": "planning.spending",
    "spend": "planning.spending",
    "Table": "core.table",
    "LedgerTotal": "deployment.totals",
    "ledger_total": "deployment.totals",
    "ledger_totals": "deployment.totals",
    "Box": "core.domains",
    "L1Ball": "core.domains",
    "L2Ball": "core.domains",
    "SottovoceError": "core.errors",
    "Budget": "ledger.records",
    "Ledger": "ledger.ledger",
    "BitwiseRandomisedResponse": "mechanisms.bitwise_rr",
    "ClampedSign": "mechanisms.clamped_sign",
    "Cldp": "mechanisms.cldp",
    "DiscreteGaussian": "mechanisms.discrete_gaussian",
    "DiscreteLaplace": "mechanisms.discrete_laplace",
    "DiscreteStaircase": "mechanisms.discrete_staircase",
    "GaussHermite": "mechanisms.gauss_hermite",
    "Gaussian": "mechanisms.gaussian",
    "GeneralisedRandomisedResponse": "mechanisms.generalized_rr",
    "InterpolatedMvu": "mechanisms.interpolated_mvu",
    "Laplace": "mechanisms.laplace",
    "MetricMvu": "mechanisms.metric_mvu",
    "Mvu": "mechanisms.mvu",
    "NoPrivacy": "mechanisms.no_privacy",
    "Skellam": "mechanisms.skellam",
    "Staircase": "mechanisms.staircase",
    "StochasticSign": "mechanisms.stochastic_sign",
    "privacy_spent": "privacy.accounting",
    "Composed": "privacy.events",
    "Repeated": "privacy.events",
    "Sampled": "privacy.events",
    "SeededRandomness": "core.randomness",
    "SystemRandomness": "core.randomness",
    "Rotation": "mechanisms.rotation",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sottovoce' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"sottovoce.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
