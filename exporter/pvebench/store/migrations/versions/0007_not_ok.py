"""The runs that are not `ok`, by time: of years of good ones hardly any is another.

Revision: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_index("runs_not_ok", "runs", ["finished"], sqlite_where=sa.text("outcome != 'ok'"))
