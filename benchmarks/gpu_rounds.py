"""The speed of whole simulated rounds on a CUDA device, for the report of `benchmarks/gpu.py`."""

from typing import Any

from sottovoce_papers.benchmarks import simulate, train

_CASES: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("whole rounds, 1 bit, packed", simulate, {"messages": "packed"}),
    ("whole rounds, 2 bits, packed", simulate, {"messages": "packed", "bits": 2}),
    ("whole rounds, 4 bits, packed", simulate, {"messages": "packed", "bits": 4}),
    ("whole rounds, 1 bit, stored", simulate, {}),
    ("whole rounds of a network on minibatches", train, {}),
    ("whole rounds of a network on minibatches, 500 clients", train, {"clients": 500}),
)


def measure_rounds(seconds: float) -> list[tuple[str, str, dict[str, Any]]]:
    """Return for each case its name, the command that measures it, and what that returns."""
    measured = []
    for name, benchmark, given in _CASES:
        options = {**given, "device": "cuda"}
        words = [f"--{key} {value}" for key, value in options.items()]
        command = " ".join(["sottovoce benchmark", benchmark.__name__.split(".")[-1], *words])
        found = benchmark.measure(**options, seconds=seconds)
        print(f"{command}: {found[benchmark.UNIT]:.0f} clients/s", flush=True)
        measured.append((name, command, found))
    return measured
