"""Proxmox VE through its REST API, without installation on the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pvebench.drivers.driver import Driver
from pvebench.drivers.proxmox.proxmox_settings import ClusterSettings, cluster_storages, nodes_of
from pvebench.model.rules import Rows
from pvebench.model.storage_use import Space


def _spaces(settings: ClusterSettings) -> Mapping[tuple[str, str], Space]:
    from pvebench.drivers.proxmox.cluster import spaces  # noqa: PLC0415 # a slow import

    return spaces(settings)


DRIVER: Final = Driver(
    settings=ClusterSettings,
    engine="pvebench.drivers.proxmox.cluster",
    storages=cluster_storages,
    nodes=nodes_of,
    spaces=_spaces,
    # pvebench does not run on the node itself.
    rows=Rows.VM,
    wear=lambda settings: dict.fromkeys(
        ((node, name) for node in nodes_of(settings) for name in cluster_storages(settings, node)),
        "no run has read it from the node's API",
    ),
)
