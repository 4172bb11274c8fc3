"""What a plug-in may use: the documented surface of pvebench. See docs/plugins.md.

Other modules may change with any release.
"""

from __future__ import annotations

from pvebench.drivers.driver import Driver, DriverContext, DriverSettings, Engine, MeasuredStorage
from pvebench.drivers.storages.contract import Kind, Node, Storage, StorageOptions, Undo
from pvebench.drivers.storages.directory import DirectoryStorage, identify_directory
from pvebench.errors import DriverError, OutputUnreadable, PvebenchError, ToolFailed, VolumeError
from pvebench.model import figures
from pvebench.model.disk import Disk, Format, HostCache
from pvebench.model.figure import Figure
from pvebench.model.ports import Journal, Site
from pvebench.model.rules import StorageKind
from pvebench.model.run import Sample
from pvebench.model.scenario import Scenario
from pvebench.model.volume import Identity, Volume
from pvebench.model.workload import Direction, Place, Workload
from pvebench.workloads import Estimate, Job, Parsed, Target, Tool, ToolOptions

__all__ = [
    "Direction",
    "DirectoryStorage",
    "Disk",
    "Driver",
    "DriverContext",
    "DriverError",
    "DriverSettings",
    "Engine",
    "Estimate",
    "Figure",
    "Format",
    "HostCache",
    "Identity",
    "Job",
    "Journal",
    "Kind",
    "MeasuredStorage",
    "Node",
    "OutputUnreadable",
    "Parsed",
    "Place",
    "PvebenchError",
    "Sample",
    "Scenario",
    "Site",
    "Storage",
    "StorageKind",
    "StorageOptions",
    "Target",
    "Tool",
    "ToolFailed",
    "ToolOptions",
    "Undo",
    "Volume",
    "VolumeError",
    "Workload",
    "figures",
    "identify_directory",
]
