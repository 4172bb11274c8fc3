"""LXC containers of this machine, as an alternative to a VM for cases with bus `lxc`."""
