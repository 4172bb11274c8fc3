"""The hub of a fleet, and a site's connection to it.

It joins `pvebench` by entry points only, see `pvebench.plugins`.
"""
