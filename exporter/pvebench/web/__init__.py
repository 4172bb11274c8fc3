"""HTTP: /metrics, health, web UI, API."""

from pvebench.web.request_filter import Access, is_in, user_of
from pvebench.web.responses import security_headers
from pvebench.web.server import StartupApp, WebServer, listen

__all__ = ["Access", "StartupApp", "WebServer", "is_in", "listen", "security_headers", "user_of"]
