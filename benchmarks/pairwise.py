"""A secure sum of one bit a parameter behind pairwise masks, and the pieces of Flower's SecAgg+.

    python benchmarks/pairwise.py [--clients 100] [--threshold 67] [--dropped 30]
                                  [--dimension 1000000] [--without-flower]

All parties run in this process, on one core; times are of the processor, so that other load does
not count. Of ours every message is made, read and checked, and
the status is 1 if the sum is not the plain one. Of SecAgg+ one client runs as in Flower, from its
keys to its shares; its server would take minutes, so each of its functions is timed a few times and
multiplied by the number of its calls. Neither side sends anything over a network.
"""

import argparse
import contextlib
import math
import os
import platform
import sqlite3
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sottovoce.ledger.journal import Journal
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.masks import bits_for_sum
from sottovoce.protocol.secure.pairwise_server import PairwiseServer
from sottovoce.protocol.secure.pairwise_site import PairwiseSite
from sottovoce.protocol.secure.roster import Roster, TrustKey

T = TypeVar("T")
SAMPLES = 5
LOGIT_NORM, LOGIT_BOUND = 5.0, 0.05


class Journals:
    """A file in memory: the time of disks is not measured."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        yield
        self.execute("COMMIT")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.execute(statement, values).fetchall()


class Clock:
    """Seconds by who spends them, and bytes by who sends them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.sent: dict[str, int] = defaultdict(int)

    def run(self, who: str, function: Callable[..., T], *arguments: Any) -> T:
        start = time.process_time()
        result = function(*arguments)
        self.seconds[who] += time.process_time() - start
        if isinstance(result, bytes):
            self.sent[who] += len(result)
        return result


def an_attempt(given: argparse.Namespace, roster: Roster) -> Attempt:
    return Attempt(
        protocol=Protocol.PAIRWISE,
        parties=roster.digest,
        federation=roster.federation,
        run="benchmark",
        round=1,
        attempt=1,
        dimension=given.dimension,
        uplinks=1,
        levels=2,
        bits=bits_for_sum(given.clients),
        most_clients=given.clients,
        threshold=given.threshold,
        mechanism="{}",
        rotation_seed=b"",
        adjacency="zero-out",
        unit="client",
        model_digest=bytes(32),
    )


def run_ours(given: argparse.Namespace) -> tuple[Clock, list[str]]:
    """Run one round; return the times and the names of those that stay to the end."""
    keys = {f"client-{number:03d}": TrustKey.generate() for number in range(given.clients)}
    public = {name: key.public for name, key in keys.items()}
    roster = Roster(federation=bytes(16), version=1, keys=public)
    attempt = an_attempt(given, roster)
    files = {name: Journals() for name in keys}
    sites = {
        name: PairwiseSite(
            name=name,
            roster=roster,
            key=key,
            journal=Journal(files[name]),
            attempt=attempt,
            honest=2,
            colluders=1,
        )
        for name, key in keys.items()
    }
    server, clock = PairwiseServer(roster=roster, attempt=attempt, colluders=1), Clock()
    generator = np.random.default_rng(1)
    there = list(sites)[given.dropped :]
    codes = {name: generator.integers(0, 2, given.dimension, dtype=np.uint8) for name in there}

    def collect(names: Sequence[str], step: str, make: Callable[[str], bytes]) -> None:
        receive = getattr(server, f"receive_{step}")
        for name in names:
            clock.run("server", receive, name, clock.run(name, make, name))

    def contribute(name: str) -> bytes:
        box = clock.run("server", server.box, name)
        return clock.run(
            name,
            sites[name].contribute,
            box,
            lambda: None,
            lambda: [codes[name]],
            files[name].transaction,
        )

    collect(list(sites), "keys", lambda name: sites[name].begin())
    listed = clock.run("server", server.list_message)
    collect(list(sites), "shares", lambda name: sites[name].share(listed))
    for name in there:
        clock.run("server", server.receive_input, name, contribute(name))
    survivors = clock.run("server", server.survivors)
    collect(there, "signature", lambda name: sites[name].sign(survivors))
    quorum = clock.run("server", server.quorum)
    collect(there, "answer", lambda name: sites[name].answer(quorum))

    def result() -> Any:
        return server.result(logit_norm=LOGIT_NORM, logit_bound=100.0)

    found = clock.run("server", result)
    expected = np.sum([codes[name] for name in there], axis=0, dtype=np.int64)
    if not np.array_equal(found.vectors[0], expected):
        sys.exit("the sum behind masks is not the plain sum")
    return clock, there


def timed(function: Callable[..., Any], *arguments: Any, samples: int = SAMPLES) -> float:
    """Return the median seconds of a call."""
    found = []
    for _ in range(samples):
        start = time.process_time()
        function(*arguments)
        found.append(time.process_time() - start)
    return statistics.median(found)


def secaggplus_client(given: argparse.Namespace) -> tuple[float, int, list[Any]]:
    """Run one client of SecAgg+; return its seconds, its bytes and the states of all clients."""
    from flwr.app import ConfigRecord
    from flwr.common import ndarrays_to_parameters
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt
    from flwr.common.secure_aggregation.secaggplus_constants import Key
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat

    # The package's name for the module is taken by a function of it.
    mod = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    config: Any = {
        Key.SAMPLE_NUMBER: given.clients, Key.SHARE_NUMBER: given.clients,
        Key.THRESHOLD: given.threshold, Key.CLIPPING_RANGE: 1.0, Key.TARGET_RANGE: 1,
        Key.MOD_RANGE: 2 ** math.ceil(math.log2(given.clients + 1)), Key.MAX_WEIGHT: 1.0,
    }  # fmt: skip
    public: Any = {}
    states, seconds, sent = [], 0.0, 0
    for number in range(1, given.clients + 1):
        states.append(mod.SecAggPlusState(nid=number))
        start = time.process_time()
        keys = mod._setup(states[-1], ConfigRecord(config))
        seconds += (time.process_time() - start) / given.clients
        public[str(number)] = list(keys.values())
    one = states[0]
    sent += sum(map(len, public["1"]))
    start = time.process_time()
    shares = mod._share_keys(one, ConfigRecord(public))
    seconds += time.process_time() - start
    sent += sum(map(len, shares[Key.CIPHERTEXT_LIST]))
    share = one.rd_seed_share_dict[1]
    incoming = [
        encrypt(one.ss2_dict[peer], share_keys_plaintext_concat(peer, 1, share, share))
        for peer in one.ss2_dict
    ]
    update = np.random.default_rng(1).uniform(-1.0, 1.0, given.dimension)
    box: Any = {Key.CIPHERTEXT_LIST: incoming, Key.SOURCE_LIST: list(one.ss2_dict)}
    parameters = ndarrays_to_parameters([update])
    start = time.process_time()
    masked = mod._collect_masked_vectors(one, ConfigRecord(box), 1, parameters)
    seconds += time.process_time() - start
    sent += sum(map(len, masked[Key.MASKED_PARAMETERS]))
    everyone = list(range(1, given.clients + 1))
    ids: Any = {
        Key.ACTIVE_NODE_ID_LIST: everyone[given.dropped :],
        Key.DEAD_NODE_ID_LIST: everyone[: given.dropped],
    }
    start = time.process_time()
    answer = mod._unmask(one, ConfigRecord(ids))
    seconds += time.process_time() - start
    sent += sum(map(len, answer[Key.SHARE_LIST]))
    return seconds, sent, states


def secaggplus_server(given: argparse.Namespace, states: list[Any]) -> dict[str, float]:
    """Return the seconds of each part of SecAgg+'s server: one call, times the number of calls."""
    from flwr.common.secure_aggregation import ndarrays_arithmetic as arithmetic
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
    from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

    first, second = states[0], states[1]
    seed = create_shares(os.urandom(32), given.threshold, given.clients)[: given.threshold]
    key = create_shares(first.sk1, given.threshold, given.clients)[: given.threshold]
    vector = [np.zeros(given.dimension, np.int64)]
    shapes = [(given.dimension,)]

    def agree() -> bytes:
        private, public = bytes_to_private_key(first.sk1), bytes_to_public_key(second.pk1)
        return generate_shared_key(private, public)

    alive, pairs = given.clients - given.dropped, given.dropped * (given.clients - 1)
    mask = timed(pseudo_rand_gen, agree(), first.mod_range, shapes)
    add = timed(arithmetic.parameters_subtraction, vector, vector)
    return {
        "sums of vectors": alive * add,
        "seeds and keys from shares": alive * timed(combine_shares, seed, samples=1)
        + given.dropped * timed(combine_shares, key, samples=1),
        "key agreements": pairs * timed(agree),
        "masks": (alive + pairs) * (mask + add),
    }


def processor() -> str:
    """Return the name of this machine's processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--threshold", type=int, default=67, help="the smallest sum")
    parser.add_argument("--dropped", type=int, default=30, help="clients without a vector")
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--without-flower", action="store_true", help="measure ours only")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    clock, there = run_ours(given)
    clients = sorted(clock.seconds[name] for name in there)
    uplink = statistics.median(clock.sent[name] for name in there)
    print(
        f"{processor()}, one core; {given.clients} clients of which {given.dropped} drop out, "
        f"threshold {given.threshold}, {given.dimension:,} parameters of one bit"
    )
    print("| | client, s | server, s | bytes a parameter |")
    print("|---|---|---|---|")
    print(
        f"| pairwise masks | {statistics.median(clients):.3f} | {clock.seconds['server']:.2f} | "
        f"{uplink / given.dimension:.3f} |"
    )
    if given.without_flower:
        return
    seconds, sent, states = secaggplus_client(given)
    parts = secaggplus_server(given, states)
    print(
        f"| Flower's SecAgg+ | {seconds:.3f} | {sum(parts.values()):.1f} | "
        f"{sent / given.dimension:.3f} |"
    )
    told = ", ".join(f"{name} {value:.1f}" for name, value in parts.items())
    print(f"SecAgg+'s server, s, one call times the number of calls: {told}")


if __name__ == "__main__":
    main()
