"""The read model: the present of every case, told once of each run, read by everybody."""

from pvebench.results.definitions import DefinitionChange, current_keys, definition_changes
from pvebench.results.results import PlannedCase, Results, View
from pvebench.results.trends import MAIN_METRICS, Trend, main_metric, read_trends, remembered

__all__ = [
    "MAIN_METRICS",
    "DefinitionChange",
    "PlannedCase",
    "Results",
    "Trend",
    "View",
    "current_keys",
    "definition_changes",
    "main_metric",
    "read_trends",
    "remembered",
]
