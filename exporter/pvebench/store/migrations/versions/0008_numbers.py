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

# SQLite tells no trigger of a row that another one replaces, by its number or by its uid.
OF_UID = "(SELECT id FROM runs WHERE uid = NEW.uid)"
TOUCHED = (
    ("run_added", "AFTER INSERT ON runs", "NEW.id"),
    ("run_changed", "AFTER UPDATE ON runs", "OLD.id"),
    ("run_renumbered", "AFTER UPDATE OF id ON runs", "NEW.id"),
    ("run_removed", "AFTER DELETE ON runs", "OLD.id"),
    ("run_replaced", "BEFORE INSERT ON runs", OF_UID),
    ("run_renamed", "BEFORE UPDATE OF uid ON runs", OF_UID),
    ("sample_added", "AFTER INSERT ON samples", "NEW.run"),
    ("sample_changed", "AFTER UPDATE ON samples", "OLD.run"),
    ("sample_moved", "AFTER UPDATE OF run ON samples", "NEW.run"),
    ("sample_removed", "AFTER DELETE ON samples", "OLD.run"),
)


def upgrade() -> None:
    op.create_table(
        "number_blocks",
        sa.Column("block", sa.Integer, primary_key=True),
        sa.Column("form", sa.Text, nullable=False),
        sa.Column("layout", sa.LargeBinary, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("checksum", sa.Integer, nullable=False),
    )
    for name, when, run in TOUCHED:
        op.execute(
            f"CREATE TRIGGER {name} {when} BEGIN "  # noqa: S608 # the words above
            f"DELETE FROM number_blocks WHERE block = ({run} - 1) / 50000; END"
        )
