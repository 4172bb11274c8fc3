"""pvebench: a continuous storage benchmark for Proxmox VE, exported to Prometheus."""

__version__ = "0.1.0"
