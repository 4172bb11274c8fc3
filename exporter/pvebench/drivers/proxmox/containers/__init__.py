"""Benchmark containers of a Proxmox VE node, over SSH and pct."""
