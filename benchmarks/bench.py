"""All measurements on one page: `make bench` writes results/benchmarks.md.

    python benchmarks/bench.py [--quick] [--no-scripts] [--peers PYTHON] [--out PAGE]
    python benchmarks/bench.py --only-page [--gpu REPORT]

Each row is the result of a `sottovoce benchmark` command, which it names. A wrong result ends
everything with exit code 1; a slow one does not. Peers are measured by the interpreter that --peers
names, which may belong to another environment, because not all of them work with our dependencies.

The page has a part for each kind of machine (`bench_page`). The part of this machine is replaced;
that of a GPU is replaced by the report that `benchmarks/gpu.py --report` has written there, which
has the kernels and the whole rounds.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench_page import Part, gpu_part, kind_of_machine, read_parts, table, today, write_page

from sottovoce import __version__
from sottovoce_papers.benchmarks import (
    account,
    aggregate,
    design,
    privatize,
    seeded,
    simulate,
    train,
)
from sottovoce_papers.benchmarks.measurement import WrongResult, machine, version

_HERE = Path(__file__).resolve().parent
Found = dict[str, Any]
_MEASURES: dict[str, tuple[Callable[..., Found], str]] = {
    "privatize": (privatize.measure, privatize.UNIT),
    "aggregate": (aggregate.measure, aggregate.UNIT),
    "seeded": (seeded.measure, seeded.UNIT),
    "simulate": (simulate.measure, simulate.UNIT),
    "train": (train.measure, train.UNIT),
    "design": (design.measure, design.UNIT),
    "account": (account.measure, account.UNIT),
}
_SPEEDS: tuple[tuple[str, str, Found], ...] = (
    ("client, 1 bit", "privatize", {"bits": 1}),
    ("client, 1 bit, ten million", "privatize", {"bits": 1, "dimension": 10**7}),
    ("client, 2 bits", "privatize", {"bits": 2}),
    ("client, 4 bits", "privatize", {"bits": 4}),
    ("client, 8 bits", "privatize", {"bits": 8}),
    ("client, MVU table of 3 bits", "privatize", {"mechanism": "mvu"}),
    ("client, Gaussian on a grid, 16 bits", "privatize", {"mechanism": "discrete_gaussian"}),
    ("client, a seed of 16 bytes", "seeded", {}),
    ("server, 1 bit", "aggregate", {"bits": 1}),
    ("server, 2 bits", "aggregate", {"bits": 2}),
    ("server, 4 bits", "aggregate", {"bits": 4}),
    ("server, 8 bits", "aggregate", {"bits": 8, "clients": 200}),
    ("whole rounds, 1 bit, stored", "simulate", {}),
    ("whole rounds, 1 bit, stored, not rotated", "simulate", {"rotation": "off"}),
    ("whole rounds, 1 bit, packed", "simulate", {"messages": "packed"}),
    (
        "whole rounds, 1 bit, packed, not rotated",
        "simulate",
        {"messages": "packed", "rotation": "off"},
    ),
    ("whole rounds of a network on minibatches", "train", {"clients": 10}),
    ("MVU design, 3 bits in and out", "design", {}),
    ("epsilon of 1000 sampled Gaussians", "account", {}),
)
# Scripts with measurements of their own, and what each is about.
_SCRIPTS: tuple[tuple[str, str], ...] = (
    ("exactness.py", "Codes against a reference written apart from the kernels"),
    ("designs.py", "Envelopes over metric designs"),
    ("rotated_mse.py", "What a few bits lose on rotated updates"),
    ("ledger.py", "The ledger"),
    ("plan.py", "Predicted and simulated errors"),
    ("deployment.py", "Rounds between machines"),
)
_QUICK: dict[str, Found] = {
    "privatize": {"dimension": 1000},
    "aggregate": {"dimension": 1000, "clients": 4},
    "seeded": {"dimension": 1000, "updates": 3, "clients": 8},
    "simulate": {"dimension": 100, "clients": 8},
    "train": {"clients": 2, "records": 2, "batch_size": 2},
    "design": {"input_bits": 1, "bits": 1},
    "account": {"rounds": 2},
}
_FIRST_CALL_SECONDS = 0.05  # what one would hope
_SOME_FRACTION = 0.25  # of the limit: below it a row is named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--no-scripts", action="store_true", help="only what commands measure")
    parser.add_argument("--peers", default=sys.executable, help="a Python that has the peers")
    parser.add_argument("--out", type=Path, default=_HERE.parent / "results" / "benchmarks.md")
    parser.add_argument("--gpu", type=Path, help="a report that benchmarks/gpu.py has written")
    parser.add_argument("--only-page", action="store_true", help="measure nothing, write the page")
    given = parser.parse_args()
    parts, kind = read_parts(given.out), kind_of_machine()
    if given.gpu:
        report = json.loads(given.gpu.read_text())
        name = "H200" if "H200" in report["device"] else report["device"]
        parts[name] = gpu_part(report, today())
        rounds = report.get("rounds", [])
        parts[name]["rows"] += [
            _row(name, command, found | {"kernels": "cuda"}, report["device"])
            for name, command, found in rounds
        ]
        parts[name]["details"] += _stages(rounds)
    if not given.only_page:
        if kind is None:
            sys.exit(f"this page has no part for a processor like {machine()['processor']}")
        try:
            parts[kind] = _part(given.quick, given.peers, scripts=not given.no_scripts)
        except WrongResult as wrong:
            sys.exit(f"wrong result, nothing was written: {wrong}")
    note = "Tiny sizes (`--quick`): these numbers say nothing about speed." if given.quick else ""
    write_page(given.out, parts, note=note)
    print(f"wrote {given.out}")


class _Plain(argparse.RawDescriptionHelpFormatter):
    """A help formatter that prints the docstring as it is written."""


def _part(quick: bool, peers: str, *, scripts: bool) -> Part:
    """Measure everything on this machine."""
    here = machine()
    kinds = [f"{name} {found}" for name in ("numpy", "scipy", "torch") if (found := here[name])]
    speeds = [(name, *_measured(kind, given, quick)) for name, kind, given in _SPEEDS]
    details = [*_limits(speeds), *_stages(speeds), *_shortfalls(speeds), *_seeds(quick)]
    details += [*_peers(peers, quick), *_designs(quick), *_accountants(quick)]
    if scripts and not quick:
        details += [line for script, about in _SCRIPTS for line in _output(script, about)]
    return {
        "processor": f"{here['processor']}, {here['cores']} cores",
        "system": here["system"],
        "software": ", ".join([f"sottovoce {__version__}", f"Python {here['python']}", *kinds]),
        "date": today(),
        "rows": [_row(name, command, found, here["processor"]) for name, command, found in speeds],
        "details": details,
    }


def _measured(kind: str, given: Found, quick: bool) -> tuple[str, Found]:
    """Return the command and its result."""
    options = {**given, **_QUICK[kind]} if quick else given
    command = "sottovoce benchmark " + " ".join(
        [kind, *(f"--{name.replace('_', '-')} {value}" for name, value in options.items())]
    )
    print(command, flush=True)
    measure, _ = _MEASURES[kind]
    return command, measure(**options, **({"seconds": 0.05} if quick else {}))


def _row(name: str, command: str, found: Found, processor: str) -> dict[str, str]:
    return {
        "what": name,
        "measured": _speed(command, found),
        "to numpy": _times(found["ratio_to_numpy"]),
        "to torch": _times(found["ratio_to_torch"]),
        "limit": _speed(command, found, "limit_per_second"),
        "reached": _percent(found["fraction_of_limit"]),
        "processor": processor,
        "kernels": found["kernels"],
        "command": f"`{command}`",
    }


def _stages(speeds: Sequence[tuple[str, str, Found]]) -> Iterator[str]:
    """Yield the share of a round that each stage takes."""
    yield "\nThe shares of a round, and its time relative to a round without rotation:\n"
    rows = []
    for name, _, found in speeds:
        if "share_of_stages" in found:
            shares = sorted(found["share_of_stages"].items(), key=lambda one: -one[1])
            shown = ", ".join(f"{stage} {share:.0%}" for stage, share in shares if share >= 0.005)
            rows.append([name, shown, _times(found.get("ratio_to_rotation_off"))])
    yield from table(["what", "share of stages", "to rotation off"], rows)


def _limits(speeds: Sequence[tuple[str, str, Found]]) -> Iterator[str]:
    """Yield what the limits are, and the times of first calls."""
    yield "The limits, measured in the same runs:\n"
    limits: dict[str, list[str]] = {}
    for name, _, found in speeds:
        if found["limit"]:
            limits.setdefault(found["limit"], []).append(name)
    yield from (f"- {'; '.join(names)}: {limit}" for limit, names in limits.items())
    yield "\nThe first call in a fresh process, after its imports:\n"
    yield from table(
        ["what", "first call", "second call"],
        [
            [name, *(f"{1e3 * found[key]:.1f} ms" for key in _CALLS)]
            for name, _, found in speeds
            if _CALLS[0] in found
        ],
    )


_CALLS = ("first_call_seconds", "second_call_seconds")


def _shortfalls(speeds: Sequence[tuple[str, str, Found]]) -> Iterator[str]:
    """Yield in words where a result is below the target."""
    lines = []
    for name, _, found in speeds:
        for what in ("numpy", "torch", "scipy"):
            ratio = found.get(f"ratio_to_{what}")
            if ratio is not None and ratio < 1.0:
                note = found["notes"].get(what, "")
                lines.append(f"{name}: {1.0 / ratio:.2g} times slower than {what} ({note})")
        fraction = found["fraction_of_limit"]
        if fraction is not None and fraction < _SOME_FRACTION:
            lines.append(f"{name}: {_percent(fraction)} of the limit")
        if found.get(_CALLS[0], 0.0) > _FIRST_CALL_SECONDS:
            lines.append(f"{name}: the first call takes {1e3 * found[_CALLS[0]]:.0f} ms")
    if lines:
        yield "\nBelow what one would hope:\n"
        yield from (f"- {line}" for line in lines)


def _seeds(quick: bool) -> Iterator[str]:
    """Yield the table of bytes, errors and times of updates that are sent as seeds."""
    yield "\n### Seeds\n"
    yield (
        "Updates sent as seeds of 16 bytes, compared with one bit per coordinate at equal zCDP "
        "(rho = mu^2/2), on one core. The values of one bit are in brackets.\n"
    )
    cases = [(10**4, 1.0), (10**5, 1.0), (10**6, 0.5), (10**6, 1.0), (10**6, 2.0)]
    rows = []
    for dimension, mu in [(1000, 1.0)] if quick else cases:
        print(f"seeded {dimension} {mu}", flush=True)
        sizes = {**_QUICK["seeded"], "seconds": 0.05} if quick else {}
        found = seeded.measure(**{**sizes, "dimension": dimension, "mu": mu})
        rows.append(
            [
                str(dimension),
                f"{mu:g}",
                f"{found['payload_bytes']} ({found['one_bit_payload_bytes']})",
                f"{found['mse_ratio_to_one_bit']:.5f} +- {found['mse_ratio_half_width']:.0e}",
                f"{found['tries_mean']:.0f} of {found['tries_limit']}",
                f"{_ms(found, 'encode_seconds')} ({_ms(found, 'one_bit_encode_seconds')})",
                _ms(found, "encode_seconds_constant_time"),
                f"{1e6 * found['server_seconds_per_client']:.3g} us "
                f"({1e6 * found['one_bit_server_seconds_per_client']:.3g} us)",
            ]
        )
    yield from table(
        ["d", "mu", "bytes", "error to one bit's", "tries", "encode", "constant time", "server"],
        rows,
    )


def _ms(found: Found, key: str) -> str:
    return f"{1e3 * found[key]:.3g} ms"


def _peers(python: str, quick: bool) -> Iterator[str]:
    dimension, seconds = (1000, 0.05) if quick else (10**6, 1.0)
    print("peers", flush=True)
    printed = _printed([python, str(_HERE / "peers.py"), str(dimension), str(seconds)])
    ours, *others = json.loads(printed.splitlines()[-1])
    yield "\n### Peers\n"
    yield (
        f"Other libraries on a float32 update of {dimension} coordinates, one thread, all in one "
        f"process. They do other things than we do: the table says which. {ours['peer']}, "
        f"{ours['what']}: {_number(ours[privatize.UNIT])} coordinates/s.\n"
    )
    rows = [
        [
            row["peer"],
            row["version"] or "absent",
            row["what"],
            row["absent"] or f"{_number(row[privatize.UNIT])} coordinates/s",
            "" if row["absent"] else _times(ours[privatize.UNIT] / row[privatize.UNIT]),
        ]
        for row in others
    ]
    yield from table(["peer", "version", "what", "measured", "ours is"], rows)


def _designs(quick: bool) -> Iterator[str]:
    yield "\n### Designs\n"
    yield (
        "The sum of variances of MVU designs, compared with the best known before and with a "
        "lower bound for every design.\n"
    )
    known = [(bits, epsilon) for bits, values in design.BEST_KNOWN.items() for epsilon in values]
    rows = []
    for (input_bits, bits), epsilon in known[:2] if quick else known:
        print(f"design {input_bits} {bits} {epsilon}", flush=True)
        found = design.measure(epsilon=epsilon, input_bits=input_bits, bits=bits, seconds=0.01)
        rows.append(
            [
                f"{found['input_bits']}, {bits}",
                f"{epsilon:g}",
                f"{found['sum_of_variances']:.6g}",
                f"{found['variance_over_best_known'] - 1.0:+.1e}",
                f"{found['variance_over_lower_bound'] - 1.0:.2%}",
                f"{1.0 / found[design.UNIT]:.2f}",
                f"{found['max_bias']:.1e}",
            ]
        )
    yield from table(
        ["bits in, out", "epsilon", "variance", "to best", "above the bound", "seconds", "bias"],
        rows,
    )


def _accountants(quick: bool) -> Iterator[str]:
    yield "\n### Accountants\n"
    yield (
        f"Epsilon at delta = {account.DELTA:g}. References: Google's dp-accounting "
        f"({version('dp-accounting') or 'absent'}) for Gaussians, the exact binomial law for "
        "randomized response, the worst that a search over neighboring inputs found for one "
        "release of bits.\n"
    )
    cases: list[Found] = [
        {"mechanism": "gaussian"},
        {"mechanism": "gaussian", "rounds": 100_000},
        {"mechanism": "randomized_response"},
        *({"mechanism": "one_bit", "dimension": d} for d in (1, 10, 1000)),
        *(
            {"mechanism": "one_bit", "dimension": d, "rho": rho, "rate": 1.0, "rounds": 1}
            for rho, by_dimension in account.WORST_FOUND.items()
            for d in by_dimension
        ),
    ]
    rows = []
    for given in itertools.islice(cases, 2, 8) if quick else cases:
        print(f"account {given}", flush=True)
        found = account.measure(**given, seconds=0.01)
        reference, peer = found["reference_epsilon"], found["ratio_to_dp_accounting"]
        rows.append(
            [
                found["mechanism"].replace("_", " "),
                f"{found['rho']:g}",
                str(found["dimension"]) if found["mechanism"] == "one_bit" else "",
                f"{found['rate']:g}",
                str(found["rounds"]),
                f"{found['epsilon']:.6f}",
                found["accountant"],
                "" if reference is None else f"{reference:.6g}",
                f"{1e3 / found[account.UNIT]:.3g}",
                "" if peer is None else _times(peer),
            ]
        )
    yield from table(
        ["release", "rho", "d", "rate", "rounds", "epsilon", "by", "reference", "ms", "to Google"],
        rows,
    )


def _output(script: str, about: str) -> Iterator[str]:
    """Yield what a script prints, unchanged."""
    print(script, flush=True)
    printed = _printed([sys.executable, str(_HERE / script)])
    yield f"\n### {about}\n"
    yield f"`python benchmarks/{script}`\n"
    yield f"```\n{printed.strip()}\n```"


def _printed(command: list[str]) -> str:
    """Return what a new process prints; a failure ends everything."""
    # The interpreter that measures peers may not have Sottovoce installed.
    paths = [str(_HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=_HERE.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode:
        what = f"{done.stdout[-500:]}{done.stderr[-2000:]}"
        raise WrongResult(f"{' '.join(command)} failed: {what}")
    return done.stdout


def _speed(command: str, found: Found, key: str | None = None) -> str:
    """Return the speed (or another value of the same unit) that a command measured."""
    unit = _MEASURES[command.split()[2]][1]
    value = found[key or unit]
    return "" if value is None else f"{_number(value)} {unit.removesuffix('_per_second')}/s"


def _number(value: float) -> str:
    for size, name in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{value / (1e3 if size == 1e4 else size):.3g}{name}"
    return f"{value:.3g}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g} x"


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{fraction:.2g}" if fraction < 0.01 else f"{fraction:.0%}"


if __name__ == "__main__":
    main()
