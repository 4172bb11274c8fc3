"""The tables of the first release; `store.tables` creates them.

Revision: 0001
Revises: nothing
"""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    pass
