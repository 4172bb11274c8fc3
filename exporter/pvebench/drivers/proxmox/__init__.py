"""Proxmox VE through its REST API, without installation on the node."""

from __future__ import annotations

from typing import Final

from pvebench.drivers.driver import Driver
from pvebench.drivers.proxmox.settings import ClusterSettings, cluster_storages, nodes_of
from pvebench.model.rules import Rows

DRIVER: Final = Driver(
    settings=ClusterSettings,
    engine="pvebench.drivers.proxmox.cluster",
    storages=cluster_storages,
    nodes=nodes_of,
    # pvebench does not run on the node itself.
    rows=Rows.VM,
)
