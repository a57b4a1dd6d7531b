"""What all parties of one attempt at a round agree on.

Every party computes the digest from what it received, and every key, signature and mask is bound to
it. So parties to whom a server announces different things cannot be made to work together.
"""

from dataclasses import dataclass

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.protocol.secure.encoding import Protocol, digest
from sottovoce.protocol.secure.masks import MAX_BITS, bits_for_sum

_MOST = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The public parameters of one attempt at a round.

    Attributes:
        protocol: The protocol.
        parties: Digest of the parties' keys: of the roster, or of both operators' keys.
        federation: The federation's id, 16 bytes, by which journals are kept.
        run: Name of the run.
        round: Number of the round.
        attempt: Number of the attempt at the round, from 1. A later attempt closes earlier ones.
        dimension: Number of coordinates of a vector.
        uplinks: Number of vectors that each client sends.
        levels: Number of values of a code, from 0 to levels - 1. If it is 2^bits, codes and sums
            are residues that may wrap around, as those of noise with a sign do.
        bits: The k of sums modulo 2^k.
        most_clients: The largest number of clients in a sum.
        threshold: The smallest number of clients in a sum: t of the pairwise protocol, or the
            minimum of two servers.
        mechanism: Kind and parameters of the mechanism, as canonical JSON.
        rotation_seed: Seed of the round's rotation; empty without one.
        adjacency: Adjacency under which the round is charged.
        unit: Unit that is protected.
        model_digest: SHA-256 digest of the vectors that the server sends down.
    """

    protocol: Protocol
    parties: bytes
    federation: bytes
    run: str
    round: int
    attempt: int
    dimension: int
    uplinks: int
    levels: int
    bits: int
    most_clients: int
    threshold: int
    mechanism: str
    rotation_seed: bytes
    adjacency: str
    unit: str
    model_digest: bytes

    def __post_init__(self) -> None:
        for name in ("dimension", "uplinks", "most_clients", "threshold", "attempt"):
            parameter_rules.integer(name, getattr(self, name), low=1, high=_MOST)
        parameter_rules.integer("round", self.round, low=0, high=_MOST)
        parameter_rules.integer("levels", self.levels, low=1, high=2**MAX_BITS)
        parameter_rules.integer("bits", self.bits, low=1, high=MAX_BITS)
        if self.threshold > self.most_clients:
            raise ParameterError(
                f"threshold = {self.threshold} exceeds the {self.most_clients} clients of a sum; "
                "lower it"
            )
        is_sum = self.protocol is not Protocol.SHUFFLER
        wraps = self.levels == 2**self.bits
        if (
            is_sum
            and not wraps
            and self.bits < bits_for_sum(max(1, self.most_clients * (self.levels - 1)))
        ):
            raise ParameterError(
                f"sums of {self.most_clients} codes of {self.levels} levels do not fit into "
                f"{self.bits} bits; use more bits"
            )

    @property
    def place(self) -> tuple[str, int, int]:
        """Run, round and attempt, which a party journals."""
        return self.run, self.round, self.attempt

    def digest(self) -> bytes:
        """Return the digest that all keys, signatures and masks of the attempt are bound to."""
        return digest(
            self.protocol,
            "plan",
            self.parties,
            self.federation,
            self.run,
            self.round,
            self.attempt,
            self.dimension,
            self.uplinks,
            self.levels,
            self.bits,
            self.most_clients,
            self.threshold,
            self.mechanism,
            self.rotation_seed,
            self.adjacency,
            self.unit,
            self.model_digest,
        )
