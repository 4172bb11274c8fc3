"""Continuous storage benchmark for Proxmox VE with a Prometheus exporter."""

__version__ = "0.1.0"
