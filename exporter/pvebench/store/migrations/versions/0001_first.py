"""First layout: runs, samples, evidence, environments, cycles, totals, journal.

Revision: 0001
Revises: nothing
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "facts",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "environments",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("slug", sa.String, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("first_seen", sa.Float, nullable=False),
        sa.Column("last_seen", sa.Float, nullable=False),
    )
    op.create_table(
        "cycles",
        sa.Column("uid", sa.String, primary_key=True),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("pack", sa.String, nullable=False),
        sa.Column("tier", sa.String, nullable=False),
        sa.Column("planned", sa.Integer, nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("finished", sa.Float),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("uid", sa.String, nullable=False, unique=True),
        sa.Column("case_key", sa.String, nullable=False),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("scenario", sa.String, nullable=False),
        sa.Column("workload", sa.String, nullable=False),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("cycle", sa.String, sa.ForeignKey("cycles.uid"), nullable=False),
        sa.Column("environment", sa.String, sa.ForeignKey("environments.digest"), nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("finished", sa.Float, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_index("runs_of_case", "runs", ["case_key", "finished"])
    op.create_index("runs_by_time", "runs", ["finished"])
    op.create_table(
        "samples",
        sa.Column(
            "run", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("metric", sa.String, primary_key=True),
        sa.Column("direction", sa.String, primary_key=True),
        sa.Column("part", sa.String, primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("unit", sa.String, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "evidence",
        sa.Column(
            "run", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "totals",
        sa.Column("node", sa.String, primary_key=True),
        sa.Column("storage", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
    )
    op.create_table(
        "journal",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("opened", sa.Float, nullable=False),
        sa.Column("closed", sa.Float),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
    )
