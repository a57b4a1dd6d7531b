"""Property tests draw the same cases on every run, so main's colour depends on the code alone.

`make test-full` sets HYPOTHESIS_PROFILE=explore, which draws new cases each time, ten times as many
where a test does not say how many.
"""

import os
import tempfile

from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
profile = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
settings.load_profile(profile)
if profile == "fixed" and hasattr(providers, "_get_local_constants"):
    # Hypothesis also tries constants that it reads in whatever modules are imported by then, which
    # depends on the tests that a worker has run before.
    nothing = Constants()
    providers._get_local_constants = lambda: nothing

# Designs that tests solve stay out of the user's cache; those who share the work share them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["SOTTOVOCE_CACHE"] = tempfile.mkdtemp(prefix="sottovoce-tests-")
