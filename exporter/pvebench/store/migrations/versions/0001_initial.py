"""All tables and indexes of the first release.

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
        sa.Column("cycle", sa.String, sa.ForeignKey("cycles.uid"), nullable=False),
        sa.Column("environment", sa.String, sa.ForeignKey("environments.digest"), nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("finished", sa.Float, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("pass_number", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False, server_default="0"),
    )
    op.create_index("runs_of_case", "runs", ["case_key", "finished"])
    op.create_index("runs_by_time", "runs", ["finished"])
    op.create_index("runs_not_ok", "runs", ["finished"], sqlite_where=sa.text("outcome != 'ok'"))
    op.create_table(
        "cases",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("scenario", sa.String, nullable=False),
        sa.Column("workload", sa.String, nullable=False),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("first_started", sa.Float, nullable=False),
        sa.Column("last_finished", sa.Float, nullable=False),
        sa.Column("last_run", sa.Integer, nullable=False),
        sa.Column("good_finished", sa.Float),
        sa.Column("good_run", sa.Integer),
        sa.Column("failures_in_row", sa.Integer, nullable=False),
    )
    op.create_table(
        "case_outcomes",
        sa.Column("case_key", sa.String, primary_key=True),
        sa.Column("outcome", sa.String, primary_key=True),
        sa.Column("count", sa.Integer, nullable=False),
    )
    op.create_table(
        "case_sums",
        sa.Column("case_key", sa.String, primary_key=True),
        sa.Column("metric", sa.String, primary_key=True),
        sa.Column("direction", sa.String, primary_key=True),
        sa.Column("part", sa.String, primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
    )
    op.create_table(
        "environment_periods",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("environment", sa.String, sa.ForeignKey("environments.digest"), nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("finished", sa.Float, nullable=False),
    )
    op.create_index("environment_periods_of_node", "environment_periods", ["node"])
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
        "number_blocks",
        sa.Column("block", sa.Integer, primary_key=True),
        sa.Column("form", sa.Text, nullable=False),
        sa.Column("layout", sa.LargeBinary, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("checksum", sa.Integer, nullable=False),
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
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("made", sa.Float, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("cases", sa.String, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_table(
        "storage_identities",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("storage", sa.String, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
    )
    op.create_table(
        "changes",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("worse", sa.Integer, nullable=False),
        sa.Column("gradual", sa.Integer, nullable=False),
        sa.Column("severity", sa.String, nullable=False),
        sa.Column("cases", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("missing", sa.Float),
        sa.Column("ended", sa.Float),
        sa.Column("ending", sa.String, nullable=False),
        sa.Column("notified", sa.String, nullable=False),
    )
    op.create_table(
        "messages",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("about", sa.String, nullable=False),
        sa.Column("receiver", sa.String, nullable=False),
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
        sa.UniqueConstraint("about", "receiver", name="notified_once"),
    )
    op.create_table(
        "fleet_log",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column(
            "nonce", sa.LargeBinary, nullable=False, server_default=sa.text("(randomblob(8))")
        ),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "fleet_position",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("chain", sa.String, nullable=False),
        sa.Column("contact", sa.Float),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("process", sa.String, nullable=False),
    )
    op.create_table(
        "fleet_marks",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("chain", sa.String, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
