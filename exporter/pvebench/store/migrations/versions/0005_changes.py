"""The changes that were said, and the messages about them.

Revision: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "changes",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("worse", sa.Integer, nullable=False),
        sa.Column("slow", sa.Integer, nullable=False),
        sa.Column("severity", sa.String, nullable=False),
        sa.Column("cases", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("missing", sa.Float),
        sa.Column("ended", sa.Float),
        sa.Column("ending", sa.String, nullable=False),
        sa.Column("told", sa.String, nullable=False),
    )
    op.create_table(
        "messages",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("about", sa.String, nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("made", sa.Float, nullable=False),
        sa.Column("due", sa.Float, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("begun", sa.Float),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("done", sa.Float),
        sa.UniqueConstraint("about", "target", name="told_once"),
    )
