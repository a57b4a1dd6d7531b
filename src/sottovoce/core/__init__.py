"""The types that every other package uses: adjacency, domains, randomness, errors, tables, charts.

    ball = L2Ball(dimension=10_000, radius=1.0)  # the sensitivity follows from the clip norm
    keystream = SystemRandomness().stream()  # one keystream for each input

A domain states where inputs lie, the errors are all that Sottovoce raises on purpose, and a
`Register` finds plug-ins. This package imports no other package of Sottovoce.
"""

from sottovoce.core.faces import export_lazily

TYPE_CHECKING = False  # Importing it from `typing` would double the import time of `sottovoce`.
if TYPE_CHECKING:
    from sottovoce.core.adjacency import Adjacency as Adjacency
    from sottovoce.core.adjacency import Unit as Unit
    from sottovoce.core.display import Table as Table
    from sottovoce.core.domains import Box as Box
    from sottovoce.core.domains import Categories as Categories
    from sottovoce.core.domains import Domain as Domain
    from sottovoce.core.domains import L1Ball as L1Ball
    from sottovoce.core.domains import L2Ball as L2Ball
    from sottovoce.core.domains import clipped_domain as clipped_domain
    from sottovoce.core.errors import AdjacencyMismatchError as AdjacencyMismatchError
    from sottovoce.core.errors import BudgetExhaustedError as BudgetExhaustedError
    from sottovoce.core.errors import ConfigError as ConfigError
    from sottovoce.core.errors import DataError as DataError
    from sottovoce.core.errors import DeploymentError as DeploymentError
    from sottovoce.core.errors import DesignError as DesignError
    from sottovoce.core.errors import DomainError as DomainError
    from sottovoce.core.errors import LedgerError as LedgerError
    from sottovoce.core.errors import LedgerLostError as LedgerLostError
    from sottovoce.core.errors import OutputError as OutputError
    from sottovoce.core.errors import ParameterError as ParameterError
    from sottovoce.core.errors import PluginError as PluginError
    from sottovoce.core.errors import PolicyError as PolicyError
    from sottovoce.core.errors import PrivacyError as PrivacyError
    from sottovoce.core.errors import RandomnessError as RandomnessError
    from sottovoce.core.errors import SottovoceError as SottovoceError
    from sottovoce.core.errors import UnknownNameError as UnknownNameError
    from sottovoce.core.errors import UnsupportedEventError as UnsupportedEventError
    from sottovoce.core.errors import WireError as WireError
    from sottovoce.core.randomness import Keystream as Keystream
    from sottovoce.core.randomness import Randomness as Randomness
    from sottovoce.core.randomness import SeededRandomness as SeededRandomness
    from sottovoce.core.randomness import SystemRandomness as SystemRandomness
    from sottovoce.core.randomness import open_uniforms as open_uniforms
    from sottovoce.core.registry import Register as Register
    from sottovoce.core.registry import RegisterListing as RegisterListing

export_lazily(
    __name__,
    {
        "adjacency": ["Adjacency", "Unit"],
        "display": ["Table"],
        "domains": ["Box", "Categories", "Domain", "L1Ball", "L2Ball", "clipped_domain"],
        "errors": [
            "AdjacencyMismatchError",
            "BudgetExhaustedError",
            "ConfigError",
            "DataError",
            "DeploymentError",
            "DesignError",
            "DomainError",
            "LedgerError",
            "LedgerLostError",
            "OutputError",
            "ParameterError",
            "PluginError",
            "PolicyError",
            "PrivacyError",
            "RandomnessError",
            "SottovoceError",
            "UnknownNameError",
            "UnsupportedEventError",
            "WireError",
        ],
        "randomness": [
            "Keystream",
            "Randomness",
            "SeededRandomness",
            "SystemRandomness",
            "open_uniforms",
        ],
        "registry": ["RegisterListing", "Register"],
    },
)
