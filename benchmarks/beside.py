"""The kernels of this tree beside those of another commit, in turns, as ratios in one run.

python benchmarks/beside.py COMMIT [--seconds 20]

The commit is checked out and built in a temporary folder. Each side runs in a process of its own,
on one core, and takes its turn when this process asks for it, so that other load slows both alike.
The ratio compares the best turns. Payloads and means of one seed must be the same bits on both
sides (exit status 1 if not).
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_DIMENSION, _CLIENTS, _LEAST_TURNS = 10**6, 200, 5
# The places of the same functions, the newest first.
_CLIENT = ("sottovoce_papers.benchmarks.privatize", "sottovoce.benchmarking.privatise")
_SERVER = ("sottovoce_papers.benchmarks.aggregate", "sottovoce.benchmarking.aggregate")
_RANDOMNESS = ("sottovoce.core.randomness", "sottovoce.randomness")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the commit to compare with, or `serve`")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure a case")
    given = parser.parse_args()
    if given.commit == "serve":
        return serve()
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(other), given.commit)
        try:
            _build(other)
            return compare(other, given.commit, given.seconds)
        finally:
            _git("worktree", "remove", "--force", str(other))


def _git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)


def _build(tree: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the extension of {tree} cannot be built: {done.stderr[-2000:]}")


def compare(other: Path, commit: str, seconds: float) -> int:
    """Measure all cases on both sides in turns, print a table, and return the exit status."""
    sides = {"here": Side(_ROOT), commit: Side(other)}
    names = [name for name in sides["here"].cases if name in sides[commit].cases]
    kernels = ", ".join(f"{name}: {side.kernels}" for name, side in sides.items())
    print(f"kernels {kernels}; best turn of each in ms, one core")
    print(f"{'case':36s} {'here':>10s} {commit[:10]:>10s} {'here/other':>11s}")
    wrong = 0
    for name in names:
        best = dict.fromkeys(sides, float("inf"))
        begun, turns = time.perf_counter(), 0
        while turns < _LEAST_TURNS or time.perf_counter() - begun < seconds:
            turns += 1
            for side, process in sides.items():
                best[side] = min(best[side], process.ask(name)["seconds"])
        ours, theirs = best.values()
        same = len({process.ask(f"digest {name}")["digest"] for process in sides.values()}) == 1
        wrong += not same
        print(
            f"{name:36s} {1e3 * ours:10.3f} {1e3 * theirs:10.3f} {ours / theirs:11.2f}"
            f"{'' if same else '  other bits'}",
            flush=True,
        )
    return 1 if wrong else 0


class Side:
    """A process that runs the kernels of one tree whenever it is asked."""

    def __init__(self, tree: Path) -> None:
        paths = [str(tree / "src"), str(tree / "papers" / "src")]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "SOTTOVOCE_THREADS": "1",
                "OMP_NUM_THREADS": "1",
            },
        )
        first = self.ask("cases")
        self.cases, self.kernels = first["cases"], first["kernels"]

    def ask(self, what: str) -> dict[str, Any]:
        """Return the answer to a line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")
        return answer


def serve() -> int:
    """Answer lines on standard input: the cases, a turn of a case, or the digest of its result."""
    cases = _cases()
    for line in sys.stdin:
        word = line.strip()
        if word == "cases":
            native = _import(("sottovoce.core.native", "sottovoce.native")).native()
            answer: dict[str, Any] = {
                "cases": list(cases),
                "kernels": native.name if native else "numpy",
            }
        elif word.startswith("digest "):
            result = cases[word.removeprefix("digest ")]()
            octets = result if isinstance(result, bytes) else result.tobytes()
            answer = {"digest": hashlib.blake2b(octets, digest_size=8).hexdigest()}
        else:
            begun = time.perf_counter()
            cases[word]()
            answer = {"seconds": time.perf_counter() - begun}
        print(json.dumps(answer), flush=True)
    return 0


def _cases() -> dict[str, Callable[[], Any]]:
    """Return the cases by name; each returns its result, as bytes or as an array."""
    import numpy as np

    client, server = _import(_CLIENT), _import(_SERVER)
    seeded = _import(_RANDOMNESS).SeededRandomness(1)

    def encoding(kind: str, bits: int) -> Callable[[], Any]:
        case = client.case_of(kind, _DIMENSION, bits)
        update = client.update_of(case.mechanism.input_domain)
        return lambda: client.payload_of(
            case.mechanism, update, seeded.stream("beside", kind, bits)
        )

    def summing(bits: int) -> Callable[[], Any]:
        mechanism = client.case_of("gauss_hermite", _DIMENSION, bits).mechanism
        payloads = server.payloads_of(_CLIENTS, _DIMENSION, bits)
        return lambda: server.mean_of(mechanism, payloads)

    def plain() -> bytes:
        """Draw one bit per coordinate as one writes it in numpy, with the same code on both."""
        values = update / np.linalg.norm(update)
        ones = generator.random(_DIMENSION, dtype=np.float32) < 1.0 / (1.0 + np.exp(-2.0 * values))
        np.packbits(ones, bitorder="little")
        return b""

    generator = np.random.default_rng(0)
    update = generator.standard_normal(_DIMENSION, dtype=np.float32)
    return {
        "one bit in numpy (yardstick)": plain,
        "client, 1 bit": encoding("gauss_hermite", 1),
        "client, 4 bits": encoding("gauss_hermite", 4),
        "client, MVU table of 3 bits": encoding("mvu", 3),
        "client, Gaussian on a grid, 16 bits": encoding("discrete_gaussian", 16),
        f"server, 1 bit, {_CLIENTS} clients": summing(1),
        f"server, 4 bits, {_CLIENTS} clients": summing(4),
    }


def _import(places: tuple[str, ...]) -> Any:
    """Import a module from the first of its places that exists."""
    for place in places[:-1]:
        try:
            return import_module(place)
        except ModuleNotFoundError:
            continue
        except ImportError:  # An old name that says where the module is now.
            continue
    return import_module(places[-1])


if __name__ == "__main__":
    sys.exit(main())
