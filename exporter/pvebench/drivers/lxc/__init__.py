"""Containers of LXC, for rows on the host's own kernel: no driver, but a place beside those."""
