"""Figures about kernels: speed as a fraction of the machine's limit, and equal bits everywhere."""

from figures.figure import (
    Bound,
    Figure,
    Kept,
    Output,
    Reader,
    Source,
    at_least,
    at_most,
    field,
    percent,
)

GPU = Kept(path="results/gpu.md")
EXACTNESS = Source(
    name="exactness",
    command="python benchmarks/exactness.py 1e9",
    minutes=1.5,
    exits=(0, 1),
)


def _benchmark(name: str, options: str) -> Source:
    return Source(name=name, command=f"sottovoce benchmark {options} --json", minutes=0.4)


ONE_BIT = _benchmark("privatise-1-bit", "privatise --bits 1")
ONE_BIT_LARGE = _benchmark("privatise-1-bit-1e7", "privatise --bits 1 --dimension 10000000")
FOUR_BITS = _benchmark("privatise-4-bits", "privatise --bits 4")
TABLE = _benchmark("privatise-mvu", "privatise --mechanism mvu")
SERVER = _benchmark("aggregate-1-bit", "aggregate --bits 1 --clients 1000")


def better_ratio(output: Output) -> float:
    """Return the larger of the ratios to numpy and to torch."""
    return max(field("ratio_to_numpy")(output), field("ratio_to_torch")(output))


def share_of_floor(pattern: str) -> Reader:
    """Return the best share among the rows of the GPU's page that begin with a pattern."""

    def reader(output: Output) -> float:
        found = [
            percent(line.split("|")[5])
            for line in output.text.splitlines()
            if line.startswith(f"| {pattern}")
        ]
        return max(found)

    return reader


def gpu_ratio(number: int) -> Reader:
    def reader(output: Output) -> float:
        pattern = (
            r"is ([\d.]+) times as fast as plain Gaussian",
            r"and ([\d.]+) times as fast as eager torch",
        )[number]
        return output.numbers(pattern)[0]

    return reader


def _timed(
    name: str, asked: str, bound: Bound, source: Source, read: Reader, unit: str, why: str = ""
) -> Figure:
    return Figure(
        name=name,
        asked=asked,
        bound=bound,
        source=source,
        read=read,
        unit=unit,
        timed=True,
        known_reason=why,
    )


_NUMPY_IS_FASTER = (
    "numpy's own vectorised exp and float32 draws are faster here than when the figure was set; "
    "six times today's numpy would be 85 to 95% of the limit."
)
_ABOVE_THE_LIMIT = (
    "60 times a well-written numpy (a loop over columns in float32) is above the machine's own "
    "limit; a numpy with a row of probabilities for each coordinate is beaten 30 to 40 times."
)
_WHOLE_CALL = (
    "The whole call is measured, with its check of what is left open; the kernels alone, for which "
    "the figure was set, reached 0.566 on 2026-11-16."
)
FIGURES = (
    _timed(
        "one-bit-limit",
        "one bit, clip included, a million coordinates: share of the limit",
        at_least(0.5),
        ONE_BIT,
        field("fraction_of_limit"),
        "of the limit",
    ),
    _timed(
        "one-bit-limit-1e7",
        "one bit, clip included, ten million coordinates: share of the limit",
        at_least(0.35),
        ONE_BIT_LARGE,
        field("fraction_of_limit"),
        "of the limit",
    ),
    _timed(
        "one-bit-numpy",
        "one bit, a million coordinates, beside numpy float32",
        at_least(6.0),
        ONE_BIT,
        field("ratio_to_numpy"),
        "times",
        _NUMPY_IS_FASTER,
    ),
    _timed(
        "one-bit-torch",
        "one bit, a million coordinates, beside torch eager",
        at_least(15.0),
        ONE_BIT,
        field("ratio_to_torch"),
        "times",
    ),
    _timed(
        "four-bits",
        "four bits, exact, beside the slower of numpy and torch multinomial",
        at_least(100.0),
        FOUR_BITS,
        better_ratio,
        "times",
    ),
    _timed(
        "mvu-numpy",
        "MVU table of three bits beside numpy",
        at_least(60.0),
        TABLE,
        field("ratio_to_numpy"),
        "times",
        _ABOVE_THE_LIMIT,
    ),
    _timed(
        "server-limit",
        "server, 1000 clients, a million coordinates, one bit: share of read bandwidth",
        at_least(0.5),
        SERVER,
        field("fraction_of_limit"),
        "of the limit",
        "It moves between 0.46 and 0.58, with the machine's own rate of reading.",
    ),
    _timed(
        "server-numpy",
        "server, 1000 clients, beside numpy's unpack and add",
        at_least(20.0),
        SERVER,
        field("ratio_to_numpy"),
        "times",
    ),
    Figure(
        name="mismatches",
        asked="codes that differ from a reference written apart, 1e9 draws a level of kernels",
        bound=at_most(0.0),
        source=EXACTNESS,
        read=lambda output: output.numbers(r"^(\d+) mismatches, \d+ s$")[0],
        unit="codes",
    ),
    *(
        _timed(
            f"first-call-{source.name}",
            f"the first call in a fresh process: {source.command.split(' ', 2)[2]}",
            at_most(0.05),
            source,
            field("first_call_seconds"),
            "s",
        )
        for source in (ONE_BIT, ONE_BIT_LARGE, FOUR_BITS, TABLE)
    ),
    Figure(
        name="gpu-floor",
        asked="H200, one bit, fused: share of the bandwidth floor",
        bound=at_least(0.55),
        source=GPU,
        read=share_of_floor("one bit, the whole call"),
        unit="of the floor",
        known_reason=_WHOLE_CALL,
    ),
    Figure(
        name="gpu-noise",
        asked="H200, one bit beside torch's plain Gaussian noise",
        bound=at_least(3.0),
        source=GPU,
        read=gpu_ratio(0),
        unit="times",
    ),
    Figure(
        name="gpu-packing",
        asked="H200, one bit beside torch's eager packing",
        bound=at_least(10.0),
        source=GPU,
        read=gpu_ratio(1),
        unit="times",
    ),
    Figure(
        name="gpu-server",
        asked="H200, sum of 1000 clients, ten million coordinates, the better of two block sizes: "
        "share of the floor",
        bound=at_least(0.6),
        source=GPU,
        read=share_of_floor("counts, 1000 of 10000000"),
        unit="of the floor",
    ),
    Figure(
        name="gpu-wrong",
        asked="H200, payloads, sums and counts that differ from the processor's",
        bound=at_most(0.0),
        source=GPU,
        read=lambda output: output.numbers(r"bit for bit: (\d+) wrong")[0],
    ),
)
