"""Stands in for Grafana: it has no dashboards, but it uses the mounts and settings that one needs.

`/api/health` is good only when everything that compose.yaml gives it can be used.
"""

from __future__ import annotations

import json
import os
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def found() -> dict[str, object]:
    """Look at what a Grafana would use; raises what it would fail of."""
    data = Path("/var/lib/grafana")
    (data / "grafana.db").write_text("written", "utf-8")
    Path("/tmp/probe").write_text("written", "utf-8")  # what compose gives as a tmpfs
    places = Path("/etc/grafana/provisioning")
    dashboards = sorted(Path(os.environ["PVEBENCH_DASHBOARDS"]).glob("*.json"))
    for path in (*places.glob("*/*.yaml"), *dashboards):
        path.read_text("utf-8")
    password = Path(os.environ["GF_SECURITY_ADMIN_PASSWORD__FILE"]).read_text("utf-8")
    source = f"{os.environ['PVEBENCH_PROMETHEUS_URL']}/-/ready"
    with urllib.request.urlopen(source, timeout=3) as answer:  # compose.yaml's own
        ready = answer.status == 200
    return {
        "database": "ok",
        "dashboards": len(dashboards),
        "prometheus": ready,
        "provisioned": sorted(path.parent.name for path in places.glob("*/*.yaml")),
        "anonymous": os.environ.get("GF_AUTH_ANONYMOUS_ENABLED", "false") == "true",
        "password": bool(password.strip()),
    }


class Handler(BaseHTTPRequestHandler):
    """Answers `/api/health`."""

    def do_GET(self) -> None:
        """Answer with what is there, or with 503 and what is missing."""
        if self.path != "/api/health":
            self.send_error(404)
            return
        try:
            status, text = 200, json.dumps(found())
        except (OSError, KeyError) as error:
            status, text = 503, json.dumps({"error": repr(error)})
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    # A container's own network; compose.yaml publishes the port on loopback.
    ThreadingHTTPServer(("0.0.0.0", 3000), Handler).serve_forever()
