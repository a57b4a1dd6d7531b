"""The server's side as a Flower app."""

import logging
from collections.abc import Callable, Mapping

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sottovoce.flower.pauses import hurry_server

RunConfig = Mapping[str, object]


def server_app(serve: Callable[[Grid, RunConfig], None]) -> ServerApp:
    """An app that serves a grid as its run configuration says."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        logging.getLogger("sottovoce").setLevel(logging.INFO)
        hurry_server()
        serve(grid, context.run_config)

    return app
