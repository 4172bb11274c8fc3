"""HTTP: /metrics, health, the pages, the API."""

from pvebench.web.doorway import Doorway
from pvebench.web.server import WebServer, listen

__all__ = ["Doorway", "WebServer", "listen"]
