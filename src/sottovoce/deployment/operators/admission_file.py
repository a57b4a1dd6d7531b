"""A client's request for admission, which both operators sign, as a file.

The client makes the file with its name and public key. Each operator adds its signature, in either
order, and the client keeps the file with both. The first operator says until when it holds.
"""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sottovoce.core import files
from sottovoce.core.errors import DeploymentError, WireError
from sottovoce.deployment.machines.federation import check_name, read_section
from sottovoce.deployment.operators.cards import hex_field
from sottovoce.deployment.operators.folders import CollectorFolder, RelayFolder
from sottovoce.protocol.secure.operators import Admission, Operators, sign_admission
from sottovoce.protocol.secure.roster import PUBLIC_KEY_BYTES, SIGNATURE_BYTES
from sottovoce.runs.sections import Section

DAYS = 365
_DAY_SECONDS = 86400


class _Table(Section):
    name: str
    key: str
    valid_until: int = 0
    by_relay: str = ""
    by_collector: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionFile:
    """A request for admission with the signatures that it has.

    Attributes:
        name: The client's name.
        key: Its Ed25519 public key.
        valid_until: Time in seconds up to which it is admitted; 0 without a signature.
        by_relay: The relay's signature; empty if it has not signed.
        by_collector: The collector's signature; empty if it has not signed.
    """

    name: str
    key: bytes
    valid_until: int = 0
    by_relay: bytes = b""
    by_collector: bytes = b""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the request in a file; raise ConfigError if it has none."""
        table = read_section(path, _Table)

        def signature(name: str) -> bytes:
            text = getattr(table, name)
            return hex_field(text, SIGNATURE_BYTES, name, path) if text else b""

        return cls(
            name=check_name(table.name, what=f"{path}: 'name'"),
            key=hex_field(table.key, PUBLIC_KEY_BYTES, "key", path),
            valid_until=table.valid_until,
            by_relay=signature("by_relay"),
            by_collector=signature("by_collector"),
        )

    def write(self, path: Path) -> None:
        """Write the request to a file, over an existing one."""
        lines = [f'name = "{self.name}"', f'key = "{self.key.hex()}"']
        if self.valid_until:
            lines.append(f"valid_until = {self.valid_until}")
        for name in ("by_relay", "by_collector"):
            if signature := getattr(self, name):
                lines.append(f'{name} = "{signature.hex()}"')
        files.write_atomic(path, ("\n".join(lines) + "\n").encode())

    @property
    def missing(self) -> list[str]:
        """The operators that have not signed."""
        signed = {"relay": self.by_relay, "collector": self.by_collector}
        return [name for name, signature in signed.items() if not signature]

    def certificate(self, operators: Operators) -> Admission:
        """Return the complete certificate.

        Raises:
            DeploymentError: An operator has not signed it, a signature is wrong, or it has expired.
        """
        if self.missing:
            raise DeploymentError(
                f"the request of '{self.name}' is not signed by the {self.missing[0]} yet; ask its "
                "operator to sign it with 'sottovoce deploy admit'"
            )
        found = Admission(
            name=self.name,
            key=self.key,
            valid_until=self.valid_until,
            by_relay=self.by_relay,
            by_collector=self.by_collector,
        )
        try:
            found.check(operators, int(time.time()))
        except WireError as error:
            raise DeploymentError(
                f"the admission of '{self.name}' does not hold: {error}; ask both operators for "
                "new signatures"
            ) from None
        return found


def admit(
    operator: RelayFolder | CollectorFolder, requests: list[Path], *, days: int = DAYS
) -> list[AdmissionFile]:
    """Add an operator's signature to requests for admission, and the clients to its list.

    Args:
        operator: The operator.
        requests: The files, which are changed. All are read before the first is signed.
        days: How long an admission holds, if this operator is the first to sign.

    Returns:
        The requests with the new signature.

    Raises:
        ConfigError: A file has no request.
        DeploymentError: A client was admitted with another key, an admission would hold longer
            than this operator allows, or the operators are not paired.
    """
    operators, key = operator.operators.keys, operator.admission_key
    longest = int(time.time()) + days * _DAY_SECONDS
    found = [AdmissionFile.read(path) for path in requests]
    for one in found:
        if one.valid_until > longest + _DAY_SECONDS:
            raise DeploymentError(
                f"the other operator admits '{one.name}' for more than {days} days; allow as many "
                "with --days, or ask for a shorter admission"
            )
    operator.add_clients({one.name: one.key for one in found})
    signed = []
    for path, one in zip(requests, found, strict=True):
        until = one.valid_until or longest
        signature = sign_admission(
            key, operators, name=one.name, public_key=one.key, valid_until=until
        )
        one = dataclasses.replace(one, valid_until=until)
        if isinstance(operator, RelayFolder):
            one = dataclasses.replace(one, by_relay=signature)
        else:
            one = dataclasses.replace(one, by_collector=signature)
        one.write(path)
        signed.append(one)
    return signed
