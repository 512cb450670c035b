"""Serves the page while runs are training: on this machine only, and read-only.

The server listens on 127.0.0.1, answers GET for two paths, and only under a name of this machine: a
web page that makes its own name resolve to 127.0.0.1 (DNS rebinding) is refused.
"""

import json
import sys
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dograph.compare.findings import REPORT
from dograph.errors import ConfigError
from dograph.report.collect import PageData, collect, open_subjects
from dograph.report.render import policy, render
from dograph.report.sections import page_json
from dograph.train.run_dir import EVAL

HOST = "127.0.0.1"
LEAST_WAIT, SHARE = 3.0, 20.0  # seconds between reads, and at least 20 times what one takes
# The page's data at one time, its version, and the seconds until the page should ask again.
Look = tuple[PageData, str, float]


class Server(ThreadingHTTPServer):
    """Serves one page; its data are read again only if files have changed."""

    daemon_threads = True

    def __init__(self, paths: Sequence[Path], port: int) -> None:
        self._paths, self._lock = paths, Lock()
        self._subjects = open_subjects(paths)
        self._files: list[tuple[Path, int, int]] | None = None
        self._last: Look | None = None
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"--port {port}: {error.strerror or error}; give another port, or 0 for a free one"
            ) from error

    def look(self) -> Look:
        with self._lock:
            # A comparison that is running starts further runs.
            self._subjects = open_subjects(self._paths, self._subjects.runs)
            paths = [folder / REPORT for folder in self._subjects.comparisons]
            for run in (run.files for run in self._subjects.runs):
                paths += [run.metrics_file, run.graph_file, run.validation_file, run.probes]
                paths.append(run.path / EVAL)
            status = {path: path.stat() for path in paths if path.exists()}
            files = [(path, now.st_mtime_ns, now.st_size) for path, now in status.items()]
            if self._last is None or files != self._files:
                start = time.monotonic()
                data = collect(self._subjects, keep=True)
                wait = max(LEAST_WAIT, SHARE * (time.monotonic() - start))
                self._last = (data, f"{time.time_ns():x}", round(wait, 1))
                self._files = files
            return self._last

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A closed browser tab, or a file that is being replaced, ends only this request."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"warning: {type(error).__name__}: {error}", file=sys.stderr)


class Handler(BaseHTTPRequestHandler):
    """GET of the page and of its data; everything else is refused."""

    server: Server
    server_version, sys_version = "dograph", ""
    timeout = 30.0  # seconds; then a connection that sends or takes nothing is closed

    def do_GET(self) -> None:
        own_names = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        url = urlsplit(self.path)
        if self.headers.get("Host") not in own_names:
            self._answer(403, "text/plain", "this server answers only to 127.0.0.1 and localhost")
        elif url.path == "/":
            page = render(self.server.look()[0], live=True)
            self._answer(200, "text/html; charset=utf-8", page)
        elif url.path == "/data.json":
            data, version, wait = self.server.look()
            if parse_qs(url.query).get("since", [""])[0] == version:
                self._answer(204)
                return
            head = json.dumps({"version": version, "wait": wait})
            self._answer(200, "application/json", f'{head[:-1]}, "page": {page_json(data)}}}')
        else:
            self._answer(404, "text/plain", "not found; paths are / and /data.json")

    def _answer(self, status: int, kind: str | None = None, text: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        if kind is not None:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the page asks every few seconds."""
