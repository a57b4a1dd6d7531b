"""The speed of other libraries on the same update, in the same run, where they are installed.

    python benchmarks/peers.py [coordinates] [seconds for each]       prints JSON

None is a dependency of Sottovoce. One that is absent, or that does not work with the other
installed packages, has a row that says so. All run on one thread. They do different things, which
each row describes.
"""

import importlib
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import __version__
from sottovoce.core.randomness import SystemRandomness
from sottovoce_papers.benchmarks import privatize
from sottovoce_papers.benchmarks.measurement import TimedAction, limited_to, rates, version

Floats = NDArray[np.float32]
SIGMA = 5.0
# Exact noise is slow, and one call for each number slower: timed on so many coordinates.
_EXACT, _SCALAR = 20_000, 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A library, what it is asked to do, and how: `build` returns a call and its coordinates."""

    name: str
    package: str
    what: str
    build: Callable[[Floats], TimedAction]


def _torch(update: Floats) -> TimedAction:
    import torch

    tensor = torch.from_numpy(update)
    return TimedAction(lambda: tensor + SIGMA * torch.randn_like(tensor), len(update))


def _opacus(update: Floats, *, secure: bool) -> TimedAction:
    import torch

    noise = importlib.import_module("opacus.optimizers.optimizer")._generate_noise
    tensor = torch.from_numpy(update)
    return TimedAction(
        lambda: tensor + noise(std=SIGMA, reference=tensor, secure_mode=secure), len(update)
    )


def _opendp(update: Floats) -> TimedAction:
    dp: Any = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    gaussian = dp.m.make_gaussian(*space, scale=SIGMA)
    values = update[:_EXACT].astype(np.float64)
    return TimedAction(lambda: gaussian(values), len(values))


def _diffprivlib(update: Floats, *, kind: str) -> TimedAction:
    mechanisms: Any = importlib.import_module("diffprivlib.mechanisms")
    given = {"epsilon": 0.5, "sensitivity": 1.0}
    if kind == "Gaussian":
        given["delta"] = 1e-5
    mechanism = getattr(mechanisms, kind)(**given)
    values = update[:_SCALAR].tolist()
    return TimedAction(lambda: [mechanism.randomise(value) for value in values], len(values))


def _flower(update: Floats) -> TimedAction:
    from flwr.app import Context, Message, RecordDict
    from flwr.client.mod import LocalDpMod
    from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common import recorddict_compat as compat
    from flwr.supercore.task_identity import TaskIdentity

    # As its own processes say who they are; without it no message can be made.
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    logging.getLogger("flwr").setLevel(logging.ERROR)  # it tells of every call
    fit = FitIns(parameters=ndarrays_to_parameters([np.zeros_like(update)]), config={})
    content = compat.fitins_to_recorddict(fit, keep_input=True)
    message = Message(content, dst_node_id=1, message_type="train")
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=0.5, delta=1e-5)

    def trained(asked: Message, _: Context) -> Message:
        done = FitRes(
            status=Status(code=Code.OK, message=""),
            parameters=ndarrays_to_parameters([update]),
            num_examples=1,
            metrics={},
        )
        return Message(compat.fitres_to_recorddict(done, keep_input=False), reply_to=asked)

    return TimedAction(lambda: mod(message, context, trained), len(update))


def _ours(update: Floats) -> TimedAction:
    case = privatize.case_of("gauss_hermite", len(update), 1)
    randomness = SystemRandomness()

    return TimedAction(
        lambda: privatize.payload_of(case.mechanism, update, randomness.stream()), len(update)
    )


PEERS = (
    Peer(
        name="Sottovoce",
        package="sottovoce",
        what="one bit a coordinate: clip, exact draws, packing",
        build=_ours,
    ),
    Peer(
        name="torch",
        package="torch",
        what="x + sigma randn, float32: noise alone, no clip, nothing packed",
        build=_torch,
    ),
    Peer(
        name="opacus",
        package="opacus",
        what="the noise its optimizer adds, float32",
        build=lambda update: _opacus(update, secure=False),
    ),
    Peer(
        name="opacus, secure mode",
        package="opacus",
        what="the same with its guard against floating-point attacks",
        build=lambda update: _opacus(update, secure=True),
    ),
    Peer(
        name="OpenDP",
        package="opendp",
        what=f"make_gaussian on a vector, exact noise; timed on {_EXACT} coordinates",
        build=_opendp,
    ),
    Peer(
        name="diffprivlib Gaussian",
        package="diffprivlib",
        what=f"randomise, a call for each number; timed on {_SCALAR} coordinates",
        build=lambda update: _diffprivlib(update, kind="Gaussian"),
    ),
    Peer(
        name="diffprivlib Laplace",
        package="diffprivlib",
        what=f"randomise, a call for each number; timed on {_SCALAR} coordinates",
        build=lambda update: _diffprivlib(update, kind="Laplace"),
    ),
    Peer(
        name="Flower LocalDpMod",
        package="flwr",
        what="the mod on a training reply: clip, Gaussian noise, its own serialization",
        build=_flower,
    ),
)


def measure(dimension: int, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each peer: its speed, or why there is none."""
    update = np.random.default_rng(0).standard_normal(dimension, dtype=np.float32)
    with limited_to(1):
        return [_row(peer, update, seconds) for peer in PEERS]


def _row(peer: Peer, update: Floats, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "peer": peer.name,
        "version": __version__ if peer.package == "sottovoce" else version(peer.package),
        "what": peer.what,
        "coordinates_per_second": None,
    }
    if found["version"] is None:
        return {**found, "absent": f"not installed (pip install {peer.package})"}
    try:
        speed = rates({"peer": peer.build(update)}, seconds)["peer"]
    except Exception as error:  # a peer's troubles are its own, and a row
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return {**found, "absent": f"did not run: {type(error).__name__}: {first}"}
    return {**found, "coordinates_per_second": speed, "absent": None}


def main() -> None:
    dimension = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10**6
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    print(json.dumps(measure(dimension, seconds)))


if __name__ == "__main__":
    main()
