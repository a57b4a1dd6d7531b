"""A collector that trains in a process of its own, and writes down what it sends and is told.

Arguments: its folder, the file of the spec, the run folder, and 'resume' or 'begin'.
"""

import sys
from pathlib import Path

from party_process import write_down_what_leaves

from sottovoce.deployment.operators.folders import CollectorFolder
from sottovoce.deployment.operators.relay_runs import run_through_relay
from sottovoce.runs.loading import parse, parse_text


def main(folder: Path, spec: Path, out: Path, how: str) -> None:
    write_down_what_leaves(folder)
    table = parse_text(spec.read_text(), str(spec))
    run_through_relay(parse(table), out, CollectorFolder.read(folder), resume=how == "resume")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), sys.argv[4])  # type: ignore[call-arg, arg-type]
