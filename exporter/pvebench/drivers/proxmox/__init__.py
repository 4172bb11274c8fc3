"""Proxmox VE through its REST API: nothing is installed on the node.

Nothing is imported here: a plan needs the table in `storages.py`, but not proxmoxer.
"""
