"""Preparation and checks of a Proxmox VE cluster: permissions, survey."""
