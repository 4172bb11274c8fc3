"""Which pass of its case within the cycle a run was.

Revision: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("pass_number", sa.Integer, nullable=False, server_default="0"))
