"""How long each test file takes until its first test could run, in a process of its own.

python benchmarks/starts.py [FILES]
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]] or sorted(_ROOT.glob("tests/**/test_*.py"))
    seconds: dict[str, float] = {}
    for file in files:
        start = time.perf_counter()
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(file)]
        done = subprocess.run(command, check=False, cwd=_ROOT, stdout=subprocess.DEVNULL)
        if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            done.check_returncode()  # a file that wants what is not here has been read all the same
        seconds[str(file)] = time.perf_counter() - start
    slowest = max(seconds, key=seconds.__getitem__)
    print(
        json.dumps({"files": len(seconds), "slowest": slowest, "slowest_seconds": seconds[slowest]})
    )


if __name__ == "__main__":
    main()
