"""Lines of code that one's own PyTorch model takes: the example of the README, after it has run.

python benchmarks/own_model_lines.py
"""

import json
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "own_module_and_arrays.py"


def main() -> None:
    source = EXAMPLE.read_text()
    code = source.split('"""', 2)[2]  # the docstring is no code
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    stdout, sys.stdout = sys.stdout, sys.stderr
    runpy.run_path(str(EXAMPLE), run_name="__main__")  # an example that fails counts for nothing
    sys.stdout = stdout
    print(json.dumps({"lines": len(lines)}))


if __name__ == "__main__":
    main()
