"""Measures any Linux machine, and shows pvebench without one.

Host and container cases, machines over ssh, more storages and tools, durability, published tables,
and the simulation. It joins `pvebench` by entry points only, see `pvebench.plugins`.
"""
