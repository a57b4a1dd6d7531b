"""Figures about the cost of working on the code."""

from figures.figure import (
    Figure,
    Output,
    Source,
    at_most,
    failed_tests,
    field,
    tests,
)

CLEAN_TESTS = Source(
    name="clean-tests",
    command="bash -c 'git clone -q . {out}/clone && make -s -C {out}/clone install-dev && "
    "start=$(date +%s) && make -C {out}/clone test && "
    'echo "make test took $(( $(date +%s) - start )) s" && rm -rf {out}/clone\'',
    minutes=16.0,
)
STARTS = Source(name="test-starts", command="python benchmarks/starts.py", minutes=8.0)
DOCS = tests("docs-site", "tests/docs/test_site.py", 1.5)
WHEELS = tests("wheels", "tests/test_wheel.py tests/test_release.py", 3.0)


def minutes_of_tests(output: Output) -> float:
    """Return the minutes of `make test`, which ends with an error if a test fails."""
    return output.numbers(r"make test took (\d+) s")[0] / 60.0


FIGURES = (
    Figure(
        name="make-test",
        asked="`make test` on a clean clone, after installation",
        bound=at_most(10.0),
        source=CLEAN_TESTS,
        read=minutes_of_tests,
        unit="minutes",
        timed=True,
    ),
    Figure(
        name="test-file-start",
        asked="one test file, until its first test could run: the slowest of all",
        bound=at_most(10.0),
        source=STARTS,
        read=field("slowest_seconds"),
        unit="s",
        timed=True,
    ),
    Figure(
        name="docs-warnings",
        asked="the documentation builds without a warning: tests that fail",
        bound=at_most(0.0),
        source=DOCS,
        read=failed_tests,
        unit="tests",
    ),
    Figure(
        name="wheels",
        asked="wheels with and without a compiler install into an empty environment: "
        "tests that fail",
        bound=at_most(0.0),
        source=WHEELS,
        read=failed_tests,
        unit="tests",
    ),
)
