"""State of a Proxmox VE node: versions, load, activity, claims."""
