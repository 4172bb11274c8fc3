"""The hub's database: the only package with psycopg."""

from __future__ import annotations

from pvebench_fleet.hub.store.database import CONNECTIONS, HubDatabase
from pvebench_fleet.hub.store.node_transaction import NodeTransaction
from pvebench_fleet.hub.store.site_transaction import SiteTransaction, SiteUnknown

__all__ = ["CONNECTIONS", "HubDatabase", "NodeTransaction", "SiteTransaction", "SiteUnknown"]
