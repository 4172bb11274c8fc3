"""HTTP: /metrics, health, web UI, API."""

from pvebench.web.request_filter import Access
from pvebench.web.server import StartupApp, WebServer, listen

__all__ = ["Access", "StartupApp", "WebServer", "listen"]
