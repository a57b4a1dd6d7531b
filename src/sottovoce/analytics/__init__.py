"""Private statistics: questions, answers of a few bits per person, and estimates with intervals.

    estimate("mean", ages, lower=0, upper=120, epsilon=1.0)

Each person answers with one code that is private by itself (local differential privacy), and the
estimate is computed from the codes alone. This package does not use torch; it imports
`sottovoce.planning`, `sottovoce.protocol` and the packages below them.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.analytics.estimates import estimate as estimate
    from sottovoce.analytics.estimates import question_for as question_for
    from sottovoce.analytics.places import SquareMap as SquareMap
    from sottovoce.analytics.places import density_map as density_map
    from sottovoce.analytics.places import mechanism_for as mechanism_for
    from sottovoce.analytics.places import privatize_places as privatize_places
    from sottovoce.analytics.question import Question as Question
    from sottovoce.analytics.question import from_json as from_json
    from sottovoce.analytics.question import to_json as to_json
    from sottovoce.analytics.result import Estimate as Estimate

export_lazily(
    __name__,
    {
        "estimates": ["estimate", "question_for"],
        "places": ["SquareMap", "density_map", "mechanism_for", "privatize_places"],
        "question": ["Question", "from_json", "to_json"],
        "result": ["Estimate"],
    },
)
