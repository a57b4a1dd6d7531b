"""The gate's endpoint that serves the newest receipt for a site's ledger to a node that starts.

A receipt is looked up by the SHA-256 of the site's public key, which the site and the operator
know and which cannot be guessed. Therefore it needs no login: a caller without the key does not
even learn which sites exist, and a receipt (a count, and digests of what was charged) contains no
data. A site trusts a receipt because of its signatures, not because of its source.
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
_PLAIN = {"accept-encoding": "identity"}  # No decompression of a small body to a huge one.


def witness_route(authority: Path) -> Route:
    """Return the gate's route that serves receipts; `authority` is the link's file ca.crt."""
    folder = authority.parent.parent / "link" / FOLDER_NAME

    async def serve(request: Request) -> Response:
        key = request.path_params["key"]
        if not _KEY.fullmatch(key):
            return PlainTextResponse("expected the SHA-256 of a key in the path", status_code=404)
        try:
            entry = await run_in_threadpool(read_entry, folder, key)
        except DeploymentError:  # `deploy status` shows it to the operator.
            return PlainTextResponse("the receipt cannot be read", status_code=500)
        if entry is None:
            return PlainTextResponse("there is no receipt for this key", status_code=404)
        return JSONResponse(entry.receipt.to_plain())

    return Route(WITNESS_PATH + "{key}", serve, methods=["GET"])


def check_at_start(site: Site, address: Address) -> None:
    """Raise LedgerError if the site's ledger is older than a receipt shows.

    The receipt is the newest that the link has for this site, and the one that the site keeps. If
    the link is away, only the kept one is checked now: the first order brings the newest.
    """
    given = fetch_receipt(address, site.keys.authority, key_name(site.keys)) if site.keys else None
    check_witnessed(site, given)


def fetch_receipt(address: Address, authority: Path, key: str) -> dict[str, Any] | None:
    """Return the link's receipt for a key as JSON data, unchecked.

    None if the link has none, is away, or sends something too long or not a JSON object.
    """
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
