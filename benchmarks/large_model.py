"""The memory that a simulated round of a large model takes, each case in a process of its own.

python benchmarks/large_model.py [--dimension 1e8] [--level client] [--messages stored packed]
    [--device cpu]

The run is a default one: updates are rotated, one bit per coordinate; two clients with one sample
each train a network with one hidden layer. Peak memory is that of the whole process, Python and
torch included, from the first import to the written result; on a CUDA device also that of the
tensors there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

_FEATURES, _CLASSES = 1000, 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dimension", type=float, default=1e8)
    parser.add_argument("--level", choices=["client", "sample"], default="client")
    parser.add_argument("--messages", nargs="+", default=["stored", "packed"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        found = measure(int(given.dimension), given.level, given.messages[0], given.device)
        print(json.dumps(found))
        return
    for messages in given.messages:
        command = [sys.executable, __file__, "--here", "--dimension", str(given.dimension)]
        command += ["--level", given.level, "--messages", messages, "--device", given.device]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"the run with messages = '{messages}' failed: {done.stderr[-2000:]}")
        print(done.stdout.strip(), flush=True)


def measure(dimension: int, level: str, messages: str, device: str) -> dict[str, float | str]:
    """Run one round in this process, and return its seconds and the peak of the memory."""
    import resource
    import time

    import torch

    from sottovoce.runs.loading import parse
    from sottovoce.runs.runner import run

    hidden = max(1, dimension // (_FEATURES + _CLASSES + 1))
    spec = parse(
        {
            "name": "large",
            "rounds": 1,
            "seed": 1,
            "randomness": "system" if messages == "stored" else "seeded",
            "data": {
                "dataset": f"blobs:10x{_FEATURES}x{_CLASSES}",
                "partition": {"kind": "one_sample"},
            },
            "model": {"kind": "mlp", "hidden_units": hidden},
            "algorithm": {
                "kind": "fedavg",
                "server_learning_rate": 0.1,
                **({"local_learning_rate": 1.0} if level == "client" else {}),
            },
            "privacy": {"level": level, "clip_norm": 1.0, "delta": 1e-5},
            "mechanism": {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 5.0},
            "sampling": {"kind": "epochs", "size": 2},
            "runtime": {"messages": messages, "device": device},
        }
    )
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = run(spec, Path(folder) / "run")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_bytes = float(peak if sys.platform == "darwin" else 1024 * peak)
    on_device = {}
    if device == "cuda":
        on_device["peak_device_gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    return {
        "messages": messages,
        "device": device,
        "level": level,
        "dimension": result["dimension"],
        "seconds": time.perf_counter() - begun,
        "peak_gigabytes": peak_bytes / 1e9,
        "bytes_per_parameter": peak_bytes / result["dimension"],
        **on_device,
    }


if __name__ == "__main__":
    main()
