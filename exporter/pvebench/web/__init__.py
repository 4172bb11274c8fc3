"""HTTP: /metrics, health, the pages, the API."""

from pvebench.web.access import Access
from pvebench.web.doorway import Doorway
from pvebench.web.server import WebServer, listen

__all__ = ["Access", "Doorway", "WebServer", "listen"]
