"""Property tests draw the same cases on every run, so main's colour depends on the code alone.

`make test-full` sets HYPOTHESIS_PROFILE=explore, which draws new cases each time, ten times as many
where a test does not say how many.
"""

import os
import tempfile

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# Designs that tests solve stay out of the user's cache.
os.environ["SOTTOVOCE_CACHE"] = tempfile.mkdtemp(prefix="sottovoce-tests-")
