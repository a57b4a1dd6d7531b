"""The report of a run of 500 rounds: its size, and how long Chromium takes to open it.

    python benchmarks/report_page.py [rounds]

Needs Debian's chromium and chromium-driver. The time is the browser's own, until its load event
has ended, in three fresh windows; the slowest counts.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from browser import browser

_ROOT = Path(__file__).resolve().parents[1]
_OPENED = "const it = performance.getEntriesByType('navigation')[0]; return it.loadEventEnd / 1000;"


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory(prefix="sottovoce-report-") as name:
        run, page = Path(name) / "run", Path(name) / "report.html"
        spec = _ROOT / "examples" / "one_bit.toml"
        _sottovoce("run", spec, "--set", f"rounds={rounds}", "--out", run)
        _sottovoce("report", run, "--out", page)
        seconds = [_opened(page) for _ in range(3)]
        megabytes = page.stat().st_size / 1e6
    print(json.dumps({"rounds": rounds, "megabytes": megabytes, "opens_seconds": max(seconds)}))


def _sottovoce(*words: object) -> None:
    command = [sys.executable, "-m", "sottovoce", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=_ROOT)


def _opened(page: Path) -> float:
    with browser() as window:
        window.open(page)
        seconds = float(window.run(_OPENED))
    assert seconds > 0.0, "the page has not ended loading"
    return seconds


if __name__ == "__main__":
    main()
