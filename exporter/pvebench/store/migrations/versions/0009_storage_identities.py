"""Which storage each name stood for: another one is another history.

Revision: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "storage_identities",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("storage", sa.String, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
    )
