"""HTTP: /metrics, health, the pages, the API."""

from pvebench.web.board import Board, PlannedCase
from pvebench.web.server import WebServer, listen

__all__ = ["Board", "PlannedCase", "WebServer", "listen"]
