"""pvebench: a continuous storage benchmark for Proxmox VE with Prometheus metrics."""

__version__ = "0.1.0"
