"""A page that follows runs while they go on, for browsers on this machine only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..core.errors import FedloomError
from ..engine.folder import Run
from .document import html, main
from .entries import RunData
from .folders import load, run_folders, title
from .interactive import plotly_library
from .page import Page

HOST = "127.0.0.1"
WATCHED = ("config.toml", "metrics.jsonl", "timing.jsonl", "summary.json")


def stamp(folder: Path) -> str:
    """A text that changes whenever a run below the folder has written something."""
    files = [folder / "leaderboard.json"]
    if not folder.is_dir():  # the runs have not begun
        return "0"
    for run in run_folders([folder]):
        files += map(run.joinpath, WATCHED)
    states = []
    for path in files:
        if path.exists():
            state = path.stat()
            states.append((str(path), state.st_mtime_ns, state.st_size))
    return f"{hash(tuple(states)):x}"


def live_page(folder: Path) -> Page:
    """The page about the runs as they are now."""
    runs: list[Run] = []
    board: dict[str, Any] = {}
    if folder.is_dir():
        runs, board = load([folder])
    data = list(map(RunData.of, runs))
    return Page(data, title(runs, board), board, interactive=True, live=True)


PATHS: dict[str, Callable[[Page], str]] = {"/": html, "/main": main}


class Dash(ThreadingHTTPServer):
    """Serves the page of one folder; port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        if folder.exists() and not folder.is_dir():
            raise FedloomError(f"{folder} is a file, not a folder of runs.")
        self.folder = folder
        # One page at a time: Matplotlib's settings belong to the process, and drawing takes a core.
        self.drawing = threading.Lock()
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise FedloomError(
                f"cannot listen on port {port}: {error.strerror}; choose another with --port."
            ) from None

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    """Answers four addresses: the page, its inside, Plotly's script and the stamp of its runs."""

    server: Dash

    def do_GET(self) -> None:
        """Answer a request from this machine."""
        port = self.server.server_address[1]
        # Another site could make a browser ask us under its own name (DNS rebinding).
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self._answer(403, "this page is for this machine only", "text/plain")
        folder = self.server.folder
        try:
            if self.path == "/stamp":
                return self._answer(200, stamp(folder), "text/plain")
            if self.path == "/plotly.js":
                library = plotly_library() or ""
                return self._answer(200, library, "text/javascript", "max-age=86400")
            if self.path not in PATHS:
                return self._answer(404, "there is nothing here", "text/plain")
            with self.server.drawing:
                draw = PATHS[self.path]
                body = draw(live_page(folder))
            return self._answer(200, body, "text/html")
        except (FedloomError, OSError) as error:  # a run may be written, or removed, right now
            return self._answer(503, f"{error} Load the page again.", "text/plain")

    def _answer(self, code: int, body: str, kind: str, keep: str = "no-store") -> None:
        data = body.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", keep)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Keep requests out of the terminal."""
