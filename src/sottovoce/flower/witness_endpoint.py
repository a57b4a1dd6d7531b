"""The newest receipt for a site's ledger, from the link's gate: for a node that starts.

A receipt goes by the SHA-256 of the site's public key, which the site and the operator know and
which nobody guesses. So it is served to whoever asks: who does not know the key learns not even
which sites there are, and what a receipt says (a count, and digests of what was charged) is about
no one's data. A site trusts a receipt for its signatures, not for where it comes from.
"""

import re
import ssl
from pathlib import Path
from typing import Any

import httpx
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sottovoce.core import bounded_json
from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.witness_store import FOLDER_NAME, read_entry
from sottovoce.deployment.site import Site
from sottovoce.deployment.site_witness import check_witnessed, key_name
from sottovoce.deployment.witness import MOST_BYTES

WITNESS_PATH = "/v1/witness/"
_KEY = re.compile(r"[0-9a-f]{64}")
_SECONDS = 5.0
_PLAIN = {"accept-encoding": "identity"}  # a few bytes must not unpack to many


def witness_route(authority: Path) -> Route:
    """Return the route of a gate that serves the receipts of the federation with this ca.crt."""
    folder = authority.parent.parent / "link" / FOLDER_NAME

    async def serve(request: Request) -> Response:
        key = request.path_params["key"]
        if not _KEY.fullmatch(key):
            return PlainTextResponse("a receipt goes by the SHA-256 of a key", status_code=404)
        try:
            entry = await run_in_threadpool(read_entry, folder, key)
        except DeploymentError:  # `deploy status` says it to the operator
            return PlainTextResponse("the receipt cannot be read", status_code=500)
        if entry is None:
            return PlainTextResponse("there is no receipt for this key", status_code=404)
        return JSONResponse(entry.receipt.to_plain())

    return Route(WITNESS_PATH + "{key}", serve, methods=["GET"])


def check_at_start(site: Site, address: Address) -> None:
    """Refuse to start from a ledger that is older than the link has witnessed: LedgerError.

    A link that is away is not waited for: the first order brings the receipt.
    """
    given = fetch_receipt(address, site.keys.authority, key_name(site.keys)) if site.keys else None
    check_witnessed(site, given)


def fetch_receipt(address: Address, authority: Path, key: str) -> dict[str, Any] | None:
    """Return what the link serves as the receipt for a key; None where it has none, or is away."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with (
            httpx.Client(verify=context, timeout=_SECONDS, trust_env=False) as client,
            client.stream("GET", f"https://{address}{WITNESS_PATH}{key}", headers=_PLAIN) as answer,
        ):
            content = b""
            for chunk in answer.iter_raw():
                content += chunk
                if len(content) > MOST_BYTES:
                    return None
            if not answer.is_success:
                return None
        found = bounded_json.loads(content, most_bytes=MOST_BYTES)
    except (httpx.HTTPError, ValueError):
        return None
    return found if isinstance(found, dict) else None
