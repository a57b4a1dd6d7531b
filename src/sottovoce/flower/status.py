"""How a federation is doing, as its operator can see."""

from typing import Any

from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.keeper import state_of
from sottovoce.deployment.machines.witness_store import warnings_of
from sottovoce.flower.link import flower_keys, running_link
from sottovoce.flower.runs import run_row

_UNREGISTERED = "its key is not registered; start the link again, which says why"


def status_of(federation: Federation) -> dict[str, Any]:
    """The link, its sites and its runs, as plain data."""
    state = state_of(federation.link_folder)
    link = "down" if state is None else "up" if state["ready"] else "starting"
    keys = flower_keys(federation)
    sites = {site: "unknown" if site in keys else "no key yet" for site in federation.sites}
    runs: list[dict[str, Any]] = []
    if link == "up":
        with running_link(federation) as control:
            seen = {node.public_key: node.state for node in control.nodes()}
            runs = [run_row(federation, run) for run in control.runs()]
        sites |= {site: seen.get(key, _UNREGISTERED) for site, key in keys.items()}
    return {
        "federation": federation.name,
        "address": str(federation.address),
        "link": link,
        "expires": f"{certificates.expires_at(federation.certificate):%Y-%m-%d}",
        "problem": federation.certificate_problem(),
        "sites": sites,
        "ledger_warnings": warnings_of(federation),
        "runs": runs,
    }
