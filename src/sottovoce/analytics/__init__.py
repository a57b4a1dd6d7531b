"""Private statistics: questions, answers of a few bits, estimates with intervals.

    estimate("mean", ages, lower=0, upper=120, epsilon=1.0)

Each person answers with one code that is private by itself; the estimate is made of the codes
alone. No torch: it imports planning, protocol and below.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import show

if TYPE_CHECKING:
    from sottovoce.analytics.estimates import estimate as estimate
    from sottovoce.analytics.estimates import question_for as question_for
    from sottovoce.analytics.places import SquareMap as SquareMap
    from sottovoce.analytics.places import density_map as density_map
    from sottovoce.analytics.places import mechanism_for as mechanism_for
    from sottovoce.analytics.places import privatise as privatise
    from sottovoce.analytics.question import Question as Question
    from sottovoce.analytics.question import from_json as from_json
    from sottovoce.analytics.question import to_json as to_json
    from sottovoce.analytics.result import Estimate as Estimate

show(
    __name__,
    {
        "estimates": ["estimate", "question_for"],
        "places": ["SquareMap", "density_map", "mechanism_for", "privatise"],
        "question": ["Question", "from_json", "to_json"],
        "result": ["Estimate"],
    },
)
