"""Which site a node is: its own configuration says so, never the run's.

`site` in the node's config names the site's file, or else the environment variable SOTTOVOCE_SITE.
Simulated nodes share both: there '{partition-id}' stands for the node's own.
"""

import os
from pathlib import Path

from flwr.app import Context

from sottovoce.core.errors import DeploymentError, SottovoceError
from sottovoce.deployment.site import Site
from sottovoce.deployment.site_file import read_site

SITE_KEY = "site"
SITE_VARIABLE = "SOTTOVOCE_SITE"
_PARTITION = "partition-id"
# What a server hears: what is wrong with the site's files is for its owner.
NO_SITE = "this node has no site whose policy can be read; its log says more"

NO_LEDGER = "this site's ledger is not in order; its log says more"


class NoSiteError(DeploymentError):
    """The site's file is for its owner: what is wrong with it is said here only."""


def site_of(context: Context) -> Site:
    """The site that a node is; without one nothing is answered."""
    path = context.node_config.get(SITE_KEY) or os.environ.get(SITE_VARIABLE)
    if not path:
        raise NoSiteError(
            "this node has no site, and without a policy nothing is answered: start it with "
            f"'sottovoce deploy node', or name the site's file in the node's config ('{SITE_KEY}') "
            f"or in {SITE_VARIABLE}"
        )
    partition = str(context.node_config.get(_PARTITION, ""))
    try:
        return read_site(Path(str(path).replace(f"{{{_PARTITION}}}", partition)))
    except SottovoceError as error:
        raise NoSiteError(str(error)) from None
