"""Proxmox VE through its REST API: nothing is installed on the node."""

from pvebench.drivers.proxmox.connection import Connection, Password, Server, Token, read_token
from pvebench.drivers.proxmox.node import ProxmoxNode, VmOptions
from pvebench.drivers.proxmox.storages import STORAGE_TYPES, storage_kind
from pvebench.drivers.proxmox.undo import undo_pending
from pvebench.drivers.proxmox.vm import Place

__all__ = [
    "STORAGE_TYPES",
    "Connection",
    "Password",
    "Place",
    "ProxmoxNode",
    "Server",
    "Token",
    "VmOptions",
    "read_token",
    "storage_kind",
    "undo_pending",
]
