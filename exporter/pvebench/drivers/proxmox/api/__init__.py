"""Requests to the Proxmox VE API: connection, permitted endpoints, errors, tasks."""
