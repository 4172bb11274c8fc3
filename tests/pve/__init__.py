"""A Proxmox VE API that tests talk to over HTTPS: it computes its answers."""
