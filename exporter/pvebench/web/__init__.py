"""HTTP: /metrics, health, the pages, the API."""

from pvebench.web.board import Board, PlannedCase
from pvebench.web.doorway import Doorway
from pvebench.web.server import WebServer, listen

__all__ = ["Board", "Doorway", "PlannedCase", "WebServer", "listen"]
