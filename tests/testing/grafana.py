"""Grafana's HTTP API, as far as dashboards are pushed: what its documentation says of each call.

Docs: "HTTP API" of Grafana 12.4: dashboard.md (POST /api/dashboards/db with 412 version-mismatch
and name-exists; GET and DELETE /api/dashboards/uid/:uid), folder.md, data_source.md,
folder_dashboard_search.md. The stored dashboard keeps what was sent, `id` and `version` added.
Held against a running Grafana 12.4.0 (built from source, by hand): two pushes, one changed by
somebody else, one no longer shipped beside one without the mark and a saved copy; the answers to
other tokens are in test_grafana_push.py as they came.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "glsa_tokenOfTheTest_12345678"


class StandInGrafana:
    """The state of one; a test may look inside, and change it as somebody else would."""

    def __init__(self) -> None:
        self.url = ""
        self.sources = [
            {"uid": "other", "name": "Logs", "type": "loki"},
            {"uid": "prom1", "name": "Metrics", "type": "prometheus"},
        ]
        self.folders: dict[str, str] = {}
        self.dashboards: dict[str, dict[str, Any]] = {}
        self.meta: dict[str, dict[str, Any]] = {}
        self.changes: list[str] = []
        self.raw: tuple[int, bytes] | None = None
        """An answer to everything, instead."""

    def add(
        self, dashboard: dict[str, Any], folder: str = "", *, provisioned: bool = False
    ) -> None:
        stored = {**dashboard, "id": len(self.dashboards) + 1, "version": 1}
        self.dashboards[dashboard["uid"]] = stored
        self.meta[dashboard["uid"]] = {"folderUid": folder, "provisioned": provisioned}

    def answer(self, method: str, address: str, body: Any) -> tuple[int, Any]:  # noqa: C901, PLR0911 # a line a call
        parts = urlsplit(address)
        match [method, *map(unquote, parts.path.strip("/").split("/"))]:
            case ["GET", "api", "datasources"]:
                return 200, self.sources
            case ["GET", "api", "folders", uid]:
                if uid in self.folders:
                    return 200, {"uid": uid, "title": self.folders[uid]}
            case ["POST", "api", "folders"]:
                self.changes.append(f"folder {body['uid']}")
                self.folders[body["uid"]] = body["title"]
                return 200, body
            case ["GET", "api", "dashboards", "uid", uid]:
                if uid in self.dashboards:
                    return 200, {"dashboard": self.dashboards[uid], "meta": self.meta[uid]}
            case ["POST", "api", "dashboards", "db"]:
                return self._save(body)
            case ["DELETE", "api", "dashboards", "uid", uid]:
                self.changes.append(f"delete {uid}")
                if self.dashboards.pop(uid, None):
                    return 200, {"message": "deleted"}
            case ["GET", "api", "search"]:
                return 200, self._search(parse_qs(parts.query))
        return 404, {"message": "not found"}

    def _save(self, body: dict[str, Any]) -> tuple[int, Any]:
        dashboard, folder = body["dashboard"], body["folderUid"]
        uid = dashboard["uid"]
        there = self.dashboards.get(uid)
        if folder not in self.folders:
            return 400, {"message": "folder not found"}
        if there and not body["overwrite"]:
            if "version" not in dashboard:
                return 412, {"message": "uid exists", "status": "name-exists"}
            if dashboard["version"] != there["version"]:
                return 412, {"message": "somebody else", "status": "version-mismatch"}
        version = there["version"] + 1 if there else 1
        self.changes.append(f"save {uid}")
        self.add(dashboard, folder)
        self.dashboards[uid]["version"] = version
        return 200, {"uid": uid, "version": version, "status": "success"}

    def _search(self, asked: dict[str, list[str]]) -> list[dict[str, Any]]:
        return [
            {"uid": uid, "title": one["title"], "type": "dash-db"}
            for uid, one in self.dashboards.items()
            if asked["tag"][0] in one["tags"]
            and asked["folderUIDs"][0] == self.meta[uid]["folderUid"]
        ]


@contextmanager
def standing_in() -> Iterator[StandInGrafana]:
    grafana = StandInGrafana()

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            if grafana.raw is not None:
                code, text = grafana.raw
            elif self.headers["Authorization"] != f"Bearer {TOKEN}":
                code, text = 401, json.dumps({"message": "Invalid API key"}).encode()
            else:
                code, found = grafana.answer(self.command, self.path, body)
                text = json.dumps(found).encode()
            self.send_response(code)
            if code in {301, 302, 307}:
                self.send_header("Location", text.decode())
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _respond  # noqa: N815 # names that http.server looks for

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # as the base calls it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    grafana.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield grafana
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
