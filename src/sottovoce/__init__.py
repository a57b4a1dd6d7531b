"""Sottovoce: federated learning and analytics with differentially private few-bit messages.

Clients send a few bits instead of float32 updates, and those bits are differentially private.

    mechanism = sottovoce.calibrate("gauss_hermite", levels=2, epsilon=2.0, delta=1e-5, rounds=100,
                                    dimension=10_000, clip_norm=1.0)
    estimate = mechanism.decode(mechanism.privatize(update))
    sottovoce.spend(mechanism, rounds=100, delta=1e-5)

Functions for notebooks and programs: `plan`, `calibrate`, `spend`, `estimate`, `simulate`,
`tune`, `open_run`, `ledger_total`. Classes for a training loop of your own: `Client` and `Server`.
Names are loaded on first use, so importing the package is fast. The packages one level below have
more.
"""

import sys

from sottovoce.version import __version__ as __version__

if sys.version_info < (3, 11):  # noqa: UP036  (pip refuses, a source tree on the path does not)
    raise ImportError(
        f"Sottovoce needs Python 3.11 or newer, but this is {sys.version.split()[0]}; create a "
        "virtual environment with a newer one: python3.11 -m venv .venv"
    )

from sottovoce.core.faces import export_lazily
from sottovoce.core.moved import explain_moved_imports

explain_moved_imports()

TYPE_CHECKING = False  # Importing it from `typing` would double the package's import time.
if TYPE_CHECKING:
    from sottovoce.analytics.estimates import estimate as estimate
    from sottovoce.analytics.result import Estimate as Estimate
    from sottovoce.core.adjacency import Adjacency as Adjacency
    from sottovoce.core.adjacency import Unit as Unit
    from sottovoce.core.display import Table as Table
    from sottovoce.core.domains import Box as Box
    from sottovoce.core.domains import L1Ball as L1Ball
    from sottovoce.core.domains import L2Ball as L2Ball
    from sottovoce.core.errors import BudgetExhaustedError as BudgetExhaustedError
    from sottovoce.core.errors import SottovoceError as SottovoceError
    from sottovoce.core.randomness import SeededRandomness as SeededRandomness
    from sottovoce.core.randomness import SystemRandomness as SystemRandomness
    from sottovoce.deployment.totals import LedgerTotal as LedgerTotal
    from sottovoce.deployment.totals import ledger_total as ledger_total
    from sottovoce.deployment.totals import ledger_totals as ledger_totals
    from sottovoce.ledger.ledger import Ledger as Ledger
    from sottovoce.ledger.records import Budget as Budget
    from sottovoce.mechanisms.clamped_sign import ClampedSign as ClampedSign
    from sottovoce.mechanisms.cldp import Cldp as Cldp
    from sottovoce.mechanisms.discrete_gaussian import DiscreteGaussian as DiscreteGaussian
    from sottovoce.mechanisms.discrete_laplace import DiscreteLaplace as DiscreteLaplace
    from sottovoce.mechanisms.discrete_staircase import DiscreteStaircase as DiscreteStaircase
    from sottovoce.mechanisms.gauss_hermite import GaussHermite as GaussHermite
    from sottovoce.mechanisms.gaussian import Gaussian as Gaussian
    from sottovoce.mechanisms.interpolated_mvu import InterpolatedMvu as InterpolatedMvu
    from sottovoce.mechanisms.laplace import Laplace as Laplace
    from sottovoce.mechanisms.mechanism import Mechanism as Mechanism
    from sottovoce.mechanisms.metric_mvu import MetricMvu as MetricMvu
    from sottovoce.mechanisms.mvu import Mvu as Mvu
    from sottovoce.mechanisms.no_privacy import NoPrivacy as NoPrivacy
    from sottovoce.mechanisms.poisson_binomial import PoissonBinomial as PoissonBinomial
    from sottovoce.mechanisms.randomized_response import (
        BitwiseRandomizedResponse as BitwiseRandomizedResponse,
    )
    from sottovoce.mechanisms.randomized_response import (
        GeneralizedRandomizedResponse as GeneralizedRandomizedResponse,
    )
    from sottovoce.mechanisms.rotation import Rotation as Rotation
    from sottovoce.mechanisms.seeded_sign import SeededSign as SeededSign
    from sottovoce.mechanisms.seeded_step import SeededStep as SeededStep
    from sottovoce.mechanisms.skellam import Skellam as Skellam
    from sottovoce.mechanisms.staircase import Staircase as Staircase
    from sottovoce.mechanisms.stochastic_sign import StochasticSign as StochasticSign
    from sottovoce.planning.calibrate import calibrate as calibrate
    from sottovoce.planning.plan import Plan as Plan
    from sottovoce.planning.plan import plan as plan
    from sottovoce.planning.spending import SpendResult as SpendResult
    from sottovoce.planning.spending import spend as spend
    from sottovoce.privacy.events import Composed as Composed
    from sottovoce.privacy.events import Repeated as Repeated
    from sottovoce.privacy.events import Sampled as Sampled
    from sottovoce.protocol.parties import Client as Client
    from sottovoce.protocol.parties import Server as Server
    from sottovoce.runs.check import check as check
    from sottovoce.runs.opened import Run as Run
    from sottovoce.runs.opened import open_run as open_run
    from sottovoce.runs.simulate import simulate as simulate
    from sottovoce.runs.tune import tune as tune

export_lazily(
    __name__,
    {
        "analytics.estimates": ["estimate"],
        "analytics.result": ["Estimate"],
        "core.adjacency": ["Adjacency", "Unit"],
        "core.display": ["Table"],
        "core.domains": ["Box", "L1Ball", "L2Ball"],
        "core.errors": ["BudgetExhaustedError", "SottovoceError"],
        "core.randomness": ["SeededRandomness", "SystemRandomness"],
        "deployment.totals": ["LedgerTotal", "ledger_total", "ledger_totals"],
        "ledger.ledger": ["Ledger"],
        "ledger.records": ["Budget"],
        "mechanisms.clamped_sign": ["ClampedSign"],
        "mechanisms.cldp": ["Cldp"],
        "mechanisms.discrete_gaussian": ["DiscreteGaussian"],
        "mechanisms.discrete_laplace": ["DiscreteLaplace"],
        "mechanisms.discrete_staircase": ["DiscreteStaircase"],
        "mechanisms.gauss_hermite": ["GaussHermite"],
        "mechanisms.gaussian": ["Gaussian"],
        "mechanisms.interpolated_mvu": ["InterpolatedMvu"],
        "mechanisms.laplace": ["Laplace"],
        "mechanisms.mechanism": ["Mechanism"],
        "mechanisms.metric_mvu": ["MetricMvu"],
        "mechanisms.mvu": ["Mvu"],
        "mechanisms.no_privacy": ["NoPrivacy"],
        "mechanisms.poisson_binomial": ["PoissonBinomial"],
        "mechanisms.randomized_response": [
            "BitwiseRandomizedResponse",
            "GeneralizedRandomizedResponse",
        ],
        "mechanisms.rotation": ["Rotation"],
        "mechanisms.seeded_sign": ["SeededSign"],
        "mechanisms.seeded_step": ["SeededStep"],
        "mechanisms.skellam": ["Skellam"],
        "mechanisms.staircase": ["Staircase"],
        "mechanisms.stochastic_sign": ["StochasticSign"],
        "planning.calibrate": ["calibrate"],
        "planning.plan": ["Plan", "plan"],
        "planning.spending": ["SpendResult", "spend"],
        "privacy.events": ["Composed", "Repeated", "Sampled"],
        "protocol.parties": ["Client", "Server"],
        "runs.check": ["check"],
        "runs.opened": ["Run", "open_run"],
        "runs.simulate": ["simulate"],
        "runs.tune": ["tune"],
    },
)
