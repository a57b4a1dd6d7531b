"""Figures about federations of real processes on this machine."""

from figures.figure import Figure, Source, at_most, failed_tests, tests

ROUNDS = Source(name="deployment", command="python benchmarks/deployment.py", minutes=4.0)
PARITY = tests("parity", "tests/flower/test_parity.py", 2.5)
FAULTS = tests(
    "faults",
    "tests/flower/test_faults.py tests/flower/test_interruptions.py "
    "tests/flower/test_processes.py tests/deployment/test_certificates.py "
    "tests/flower/test_runs.py tests/flower/test_rollback.py",
    14.0,
)
SOAK = tests("soak", "-s tests/flower/test_soak.py", 70.0)

FIGURES = (
    Figure(
        name="parity",
        asked="four nodes with TLS and keys train the simulator's model, bit for bit: "
        "tests that fail",
        bound=at_most(0.0),
        source=PARITY,
        read=failed_tests,
        unit="tests",
    ),
    Figure(
        name="wire-up",
        asked="bytes on the wire over payload bytes, a million parameters, one bit",
        bound=at_most(1.25),
        source=ROUNDS,
        read=lambda output: max(output.numbers(r"^  up .* ratio ([\d.]+)$")),
        unit="times",
    ),
    Figure(
        name="round-overhead",
        asked="a round of a tiny model beside Flower's stock loop",
        bound=at_most(0.65),
        source=ROUNDS,
        read=lambda output: output.numbers(r"^ratio +([\d.]+)$")[0],
        unit="times",
        timed=True,
    ),
    Figure(
        name="faults",
        asked="killed, silent, lying and late nodes, servers and links: tests that fail",
        bound=at_most(0.0),
        source=FAULTS,
        read=failed_tests,
        unit="tests",
    ),
    Figure(
        name="soak",
        asked="200 random kills and faults: every message is charged once, memory is flat, no "
        "process, port or lock is left: tests that fail",
        bound=at_most(0.0),
        source=SOAK,
        read=failed_tests,
        unit="tests",
    ),
)
