"""A stand-in of the models' hub: directories as repositories of one commit."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "5" * 40
TOKEN = "hf_standin" + "0" * 24


@contextmanager
def hub_server(models: Mapping[str, Path], *, gated: str = "") -> Iterator[str]:
    """Serve directories by name; yields the address. gated: the model that takes TOKEN"""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api, _, rest = self.path.partition("/api/models/")
            name = "/".join((rest or api.lstrip("/")).split("?")[0].split("/")[:2])
            if name not in models:
                return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
            if rest:
                return self._send(200, json.dumps(self._listing(name, rest)).encode())
            if name == gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._send(401, b"", {"X-Error-Code": "GatedRepo"})
            file = models[name] / self.path.rpartition("/")[2]
            if not file.is_file():
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            body = file.read_bytes()
            etag = hashlib.sha256(body).hexdigest()
            return self._send(200, body, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})

        do_HEAD = do_GET

        def _listing(self, name: str, rest: str) -> object:
            if "/tree/" not in rest:
                return {"id": name, "sha": COMMIT, "siblings": []}
            return [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": path.name}
                for path in models[name].iterdir()
            ]

        def _send(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
