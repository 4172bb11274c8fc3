"""What a plug-in may use: the documented surface of pvebench. See docs/plugins.md.

It has the public names of the modules below, and those of drivers, storages and tools that a
plug-in implements or calls. Other modules may change with any release.
"""

from __future__ import annotations

from pvebench import errors, fields
from pvebench.drivers import driver as drivers
from pvebench.drivers import vm_lifecycle
from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.storages.contract import (
    MARK,
    Kind,
    Node,
    PooledStorage,
    SnapshotStorage,
    Storage,
    StorageContext,
    StorageSettings,
    Undo,
)
from pvebench.drivers.storages.directory import (
    DirectorySettings,
    DirectoryStorage,
    PathSettings,
    identify_directory,
)
from pvebench.drivers.storages.own_files import drop_page_cache
from pvebench.drivers.storages.qemu_img import create_image
from pvebench.drivers.storages.server_link import LinkSettings, ServerLink, ServerSettings
from pvebench.model import disk as disks
from pvebench.model import environment as environments
from pvebench.model import ports, rules, run_metrics, storage_use, units
from pvebench.model import reference_series as references
from pvebench.model import run as runs
from pvebench.model import scenario as scenarios
from pvebench.model import volume as volumes
from pvebench.model import workload as workloads
from pvebench.workloads import Estimate, Job, Parsed, Target, Tool, ToolOptions

__all__ = ["MARK", "DirectorySettings", "DirectoryStorage", "Estimate", "Job", "Kind"]
__all__ += ["LinkSettings", "Node", "Parsed", "PathSettings", "PooledStorage", "ServerLink"]
__all__ += ["ServerSettings", "SnapshotStorage", "Storage", "StorageContext"]
__all__ += ["StorageSettings", "Target", "Tool", "ToolOptions", "Undo"]
__all__ += ["create_image", "disks", "drivers", "drop_page_cache", "environments"]
__all__ += ["errors", "fields", "identify_directory", "ports", "references", "run_metrics"]
__all__ += ["rules", "run_program", "runs", "scenarios", "storage_use", "units", "vm_lifecycle"]
__all__ += ["volumes", "workloads"]
