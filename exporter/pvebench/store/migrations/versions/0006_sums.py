"""What is summed over a case's runs: latencies by bucket. None of the runs before counted any.

Revision: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "case_sums",
        sa.Column("case_key", sa.String, primary_key=True),
        sa.Column("metric", sa.String, primary_key=True),
        sa.Column("direction", sa.String, primary_key=True),
        sa.Column("part", sa.String, primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
    )
