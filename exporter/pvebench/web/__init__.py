"""HTTP: /metrics, health, the landing page."""

from pvebench.web.server import WebServer, listen

__all__ = ["WebServer", "listen"]
