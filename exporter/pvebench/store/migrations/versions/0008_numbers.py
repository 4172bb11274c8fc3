"""The numbers that are judged, packed: of years of runs a row a number takes minutes to read.

The runs of a block are 50,000 numbers that follow each other. A block whose runs are not as they
were any more is removed by the database, whoever changes them.

Revision: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

TOUCHED = (
    ("run_changed", "UPDATE ON runs", "OLD.id"),
    ("run_removed", "DELETE ON runs", "OLD.id"),
    ("sample_added", "INSERT ON samples", "NEW.run"),
    ("sample_changed", "UPDATE ON samples", "OLD.run"),
    ("sample_removed", "DELETE ON samples", "OLD.run"),
)


def upgrade() -> None:
    op.create_table(
        "number_blocks",
        sa.Column("block", sa.Integer, primary_key=True),
        sa.Column("form", sa.Text, nullable=False),
        sa.Column("layout", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("checksum", sa.Integer, nullable=False),
    )
    for name, when, run in TOUCHED:
        op.execute(
            f"CREATE TRIGGER {name} AFTER {when} BEGIN "  # noqa: S608 # the words above
            f"DELETE FROM number_blocks WHERE block = ({run} - 1) / 50000; END"
        )
