"""Benchmark VM of a Proxmox VE node: creation, volumes, hot-plug, leftovers."""
