"""Differential privacy accounting: privacy events, accountants, calibration and amplification.

    event = Repeated(event=GaussianNoise(mu=0.1, adjacency=Adjacency.ZERO_OUT), count=100)

A mechanism describes its privacy as an event (plain data), and an accountant bounds the epsilon of
an event. `sottovoce.spend` asks all accountants and reports the smallest sound epsilon. This
package does not know any mechanism and imports `sottovoce.core` only.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.privacy.accounting import Accountant as Accountant
    from sottovoce.privacy.accounting import PrivacySpent as PrivacySpent
    from sottovoce.privacy.accounting import register as register
    from sottovoce.privacy.accounting import within as within
    from sottovoce.privacy.bellman import BellmanAccountant as BellmanAccountant
    from sottovoce.privacy.calibration import calibrate as calibrate
    from sottovoce.privacy.calibration import rounds_within as rounds_within
    from sottovoce.privacy.cubic import CubicAccountant as CubicAccountant
    from sottovoce.privacy.cubic import QuinticAccountant as QuinticAccountant
    from sottovoce.privacy.events import Allocated as Allocated
    from sottovoce.privacy.events import Composed as Composed
    from sottovoce.privacy.events import Conditional as Conditional
    from sottovoce.privacy.events import FinitePair as FinitePair
    from sottovoce.privacy.events import FiniteTable as FiniteTable
    from sottovoce.privacy.events import GaussianNoise as GaussianNoise
    from sottovoce.privacy.events import LaplaceNoise as LaplaceNoise
    from sottovoce.privacy.events import MetricDp as MetricDp
    from sottovoce.privacy.events import NonPrivate as NonPrivate
    from sottovoce.privacy.events import OneBit as OneBit
    from sottovoce.privacy.events import PrivacyEvent as PrivacyEvent
    from sottovoce.privacy.events import PureDp as PureDp
    from sottovoce.privacy.events import RenyiCurve as RenyiCurve
    from sottovoce.privacy.events import Repeated as Repeated
    from sottovoce.privacy.events import Sampled as Sampled
    from sottovoce.privacy.events import SeededBits as SeededBits
    from sottovoce.privacy.events import Shuffled as Shuffled
    from sottovoce.privacy.events import SummedBits as SummedBits
    from sottovoce.privacy.events import SummedNoise as SummedNoise
    from sottovoce.privacy.events import ZeroConcentrated as ZeroConcentrated
    from sottovoce.privacy.gaussian import GaussianAccountant as GaussianAccountant
    from sottovoce.privacy.moment_comparison import MomentsAccountant as MomentsAccountant
    from sottovoce.privacy.pld import PldAccountant as PldAccountant
    from sottovoce.privacy.pure import pure_epsilon as pure_epsilon
    from sottovoce.privacy.renyi import RenyiAccountant as RenyiAccountant
    from sottovoce.privacy.shuffling import ShufflingAccountant as ShufflingAccountant
    from sottovoce.privacy.zcdp import ZcdpAccountant as ZcdpAccountant

export_lazily(
    __name__,
    {
        "accounting": ["Accountant", "PrivacySpent", "register", "within"],
        "bellman": ["BellmanAccountant"],
        "calibration": ["calibrate", "rounds_within"],
        "cubic": ["CubicAccountant", "QuinticAccountant"],
        "events": [
            "Allocated",
            "Conditional",
            "Composed",
            "FinitePair",
            "FiniteTable",
            "GaussianNoise",
            "LaplaceNoise",
            "MetricDp",
            "NonPrivate",
            "OneBit",
            "PrivacyEvent",
            "PureDp",
            "RenyiCurve",
            "Repeated",
            "Sampled",
            "SummedBits",
            "SummedNoise",
            "SeededBits",
            "Shuffled",
            "ZeroConcentrated",
        ],
        "gaussian": ["GaussianAccountant"],
        "moment_comparison": ["MomentsAccountant"],
        "pld": ["PldAccountant"],
        "pure": ["pure_epsilon"],
        "renyi": ["RenyiAccountant"],
        "shuffling": ["ShufflingAccountant"],
        "zcdp": ["ZcdpAccountant"],
    },
)
