"""The `ServerApp` that `fedloom flower init` puts into an app: the server and a final report."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..executors.flower.server import serve_app
from ..report.callback import Report

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Where Flower starts the server."""
    serve_app(grid, context, [Report()])
