"""The command `sottovoce explore`, which serves a page about mechanisms and their parameters."""

import contextlib
import os
import sys
from typing import Annotated

import typer

from sottovoce.cli.output import say


def explore(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port on this machine; 0 takes any free one.")
    ] = 8765,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, open no browser.")
    ] = False,
) -> None:
    """Serve a page, on this machine only, that shows what mechanisms do; Ctrl-C ends it."""
    from sottovoce.reporting.explorer.server import open_server

    with open_server(port) as server:
        say(f"the explorer is at {server.address}; Ctrl-C ends it")
        sys.stdout.flush()  # a program that reads the pipe waits for the address
        if not no_browser:
            _open_browser(server.address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def _open_browser(address: str) -> None:
    """Open the address where there is a desktop; a browser in the terminal would take it over."""
    import webbrowser

    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform in ("win32", "darwin") or any(os.environ.get(name) for name in screens):
        webbrowser.open(address)
