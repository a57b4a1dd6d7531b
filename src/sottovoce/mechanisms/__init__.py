"""Mechanisms that privatize and compress vectors in one step, with one file for each mechanism.

    mechanism = GaussHermite(input_domain=ball, levels=2, noise_multiplier=10.0)
    estimate = mechanism.decode(mechanism.privatize(update))

`find` returns the registration of a mechanism by its name, and a plug-in enters the register with
`register`. The package also contains the solvers, noise laws, samplers and the rotation that
mechanisms use, and `release_event`, which says what a release is charged with. It imports `privacy`
and `core`.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.mechanisms.clamped_sign import ClampedSign as ClampedSign
    from sottovoce.mechanisms.cldp import Cldp as Cldp
    from sottovoce.mechanisms.discrete_gaussian import DiscreteGaussian as DiscreteGaussian
    from sottovoce.mechanisms.discrete_laplace import DiscreteLaplace as DiscreteLaplace
    from sottovoce.mechanisms.discrete_staircase import DiscreteStaircase as DiscreteStaircase
    from sottovoce.mechanisms.dithering import dither as dither
    from sottovoce.mechanisms.dithering import dither_within as dither_within
    from sottovoce.mechanisms.dithering import dithered_norm_bound as dithered_norm_bound
    from sottovoce.mechanisms.dithering import gamma_scaling as gamma_scaling
    from sottovoce.mechanisms.dithering import lemma_10_bound as lemma_10_bound
    from sottovoce.mechanisms.encoding import EncodesOnDevice as EncodesOnDevice
    from sottovoce.mechanisms.encoding import EncodesPacked as EncodesPacked
    from sottovoce.mechanisms.encoding import PackedRows as PackedRows
    from sottovoce.mechanisms.encoding import Prepared as Prepared
    from sottovoce.mechanisms.encoding import Privatizing as Privatizing
    from sottovoce.mechanisms.encoding import encode_packed as encode_packed
    from sottovoce.mechanisms.encoding import prepare as prepare
    from sottovoce.mechanisms.gauss_hermite import GaussHermite as GaussHermite
    from sottovoce.mechanisms.gaussian import Gaussian as Gaussian
    from sottovoce.mechanisms.interpolated_mvu import InterpolatedMvu as InterpolatedMvu
    from sottovoce.mechanisms.laplace import Laplace as Laplace
    from sottovoce.mechanisms.mechanism import FiniteLaw as FiniteLaw
    from sottovoce.mechanisms.mechanism import Float32Codes as Float32Codes
    from sottovoce.mechanisms.mechanism import LevelCodes as LevelCodes
    from sottovoce.mechanisms.mechanism import Mechanism as Mechanism
    from sottovoce.mechanisms.mechanism import bits_per_coordinate as bits_per_coordinate
    from sottovoce.mechanisms.metric_mvu import MetricMvu as MetricMvu
    from sottovoce.mechanisms.mvu import Mvu as Mvu
    from sottovoce.mechanisms.no_privacy import NoPrivacy as NoPrivacy
    from sottovoce.mechanisms.noise.laws import nu_for_mean_absolute as nu_for_mean_absolute
    from sottovoce.mechanisms.packing import pack as pack
    from sottovoce.mechanisms.packing import unpack as unpack
    from sottovoce.mechanisms.poisson_binomial import PoissonBinomial as PoissonBinomial
    from sottovoce.mechanisms.randomized_response import (
        BitwiseRandomizedResponse as BitwiseRandomizedResponse,
    )
    from sottovoce.mechanisms.randomized_response import (
        GeneralizedRandomizedResponse as GeneralizedRandomizedResponse,
    )
    from sottovoce.mechanisms.registry import CalibratedParameter as CalibratedParameter
    from sottovoce.mechanisms.registry import Registration as Registration
    from sottovoce.mechanisms.registry import find as find
    from sottovoce.mechanisms.registry import register as register
    from sottovoce.mechanisms.registry import registrations as registrations
    from sottovoce.mechanisms.release import EveryMessage as EveryMessage
    from sottovoce.mechanisms.release import NoisySums as NoisySums
    from sottovoce.mechanisms.release import OnlySums as OnlySums
    from sottovoce.mechanisms.release import ReleaseTerms as ReleaseTerms
    from sottovoce.mechanisms.release import SecretSample as SecretSample
    from sottovoce.mechanisms.release import ShuffledMessages as ShuffledMessages
    from sottovoce.mechanisms.release import local_event as local_event
    from sottovoce.mechanisms.release import release_event as release_event
    from sottovoce.mechanisms.rotation import Rotation as Rotation
    from sottovoce.mechanisms.seeded_sign import SeededSign as SeededSign
    from sottovoce.mechanisms.seeded_step import SeededStep as SeededStep
    from sottovoce.mechanisms.skellam import Skellam as Skellam
    from sottovoce.mechanisms.staircase import Staircase as Staircase
    from sottovoce.mechanisms.stochastic_sign import StochasticSign as StochasticSign

export_lazily(
    __name__,
    {
        "clamped_sign": ["ClampedSign"],
        "cldp": ["Cldp"],
        "discrete_gaussian": ["DiscreteGaussian"],
        "discrete_laplace": ["DiscreteLaplace"],
        "discrete_staircase": ["DiscreteStaircase"],
        "dithering": [
            "dither",
            "dither_within",
            "dithered_norm_bound",
            "gamma_scaling",
            "lemma_10_bound",
        ],
        "encoding": [
            "EncodesOnDevice",
            "EncodesPacked",
            "PackedRows",
            "Prepared",
            "Privatizing",
            "encode_packed",
            "prepare",
        ],
        "gauss_hermite": ["GaussHermite"],
        "gaussian": ["Gaussian"],
        "interpolated_mvu": ["InterpolatedMvu"],
        "laplace": ["Laplace"],
        "mechanism": [
            "FiniteLaw",
            "Float32Codes",
            "LevelCodes",
            "Mechanism",
            "bits_per_coordinate",
        ],
        "metric_mvu": ["MetricMvu"],
        "mvu": ["Mvu"],
        "no_privacy": ["NoPrivacy"],
        "noise.laws": ["nu_for_mean_absolute"],
        "packing": ["pack", "unpack"],
        "poisson_binomial": ["PoissonBinomial"],
        "randomized_response": ["BitwiseRandomizedResponse", "GeneralizedRandomizedResponse"],
        "registry": ["CalibratedParameter", "Registration", "find", "register", "registrations"],
        "release": [
            "EveryMessage",
            "ShuffledMessages",
            "NoisySums",
            "OnlySums",
            "ReleaseTerms",
            "SecretSample",
            "local_event",
            "release_event",
        ],
        "rotation": ["Rotation"],
        "seeded_sign": ["SeededSign"],
        "seeded_step": ["SeededStep"],
        "skellam": ["Skellam"],
        "staircase": ["Staircase"],
        "stochastic_sign": ["StochasticSign"],
    },
)
