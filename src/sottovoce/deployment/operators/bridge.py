"""The bridge that passes a relay's announcements to the sites of a link, as a program.

The bridge itself is part of `sottovoce.flower`; a relay without a link needs no Flower. It runs
under a keeper of its own, so that a bridge that ends never stops the relay.
"""

import importlib.util
import os
import sys
import time
from pathlib import Path

from sottovoce.core.errors import ConfigError, DeploymentError
from sottovoce.core.printable_text import printable_lines
from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.processes import Child, stop_children_at_exit
from sottovoce.deployment.machines.restarts import restart_pauses
from sottovoce.deployment.operators.folders import RELAY_FILE, RelayFolder

_KEEPER, _BRIDGE = "sottovoce.deployment.operators.bridge", "sottovoce.flower.relay_bridge"
_LATER_SECONDS = 60.0  # after a bridge that ended soon after several starts


def federation_of(relay: RelayFolder) -> Federation:
    """Return the federation whose sites a relay serves through their link.

    Raises:
        ConfigError: relay.toml names no link, or no federation's folder.
        DeploymentError: Flower is not installed.
    """
    path = relay.folder / RELAY_FILE
    if relay.link is None:
        raise ConfigError(f"{path} names no 'link'; add the folder of a federation")
    try:
        found = Federation.read(relay.link)
    except ConfigError as error:
        raise ConfigError(
            f"{path}: 'link' must be a federation's folder, which 'sottovoce deploy init' makes: "
            f"{error}"
        ) from None
    if importlib.util.find_spec("flwr") is None:
        raise DeploymentError(
            f"{path} names a 'link', and that needs Flower; install it with: pip install "
            "'sottovoce[flower]'"
        )
    return found


def start_keeper(relay: RelayFolder) -> Child:
    """Start the program that keeps the bridge of a relay running."""
    return _child(relay, "the keeper of the bridge", "bridge-keeper.log", _KEEPER)


def _bridge(relay: RelayFolder) -> Child:
    return _child(relay, "the bridge to the link", "bridge.log", _BRIDGE)


def _child(relay: RelayFolder, name: str, log: str, module: str) -> Child:
    return Child.start(
        name,
        [sys.executable, "-m", module, str(relay.folder)],
        log=relay.state_folder / log,
        environment={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def main(folder: str) -> None:
    """Keep the bridge of a relay running until a signal ends this process."""
    relay = RelayFolder.read(Path(folder))
    with stop_children_at_exit() as children:
        while True:
            children[:] = [_bridge(relay)]
            try:
                for pause_seconds in restart_pauses(children):
                    time.sleep(pause_seconds)
                    children[:] = [_bridge(relay)]
            except DeploymentError as error:
                print(printable_lines(error), file=sys.stderr, flush=True)
                time.sleep(_LATER_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
