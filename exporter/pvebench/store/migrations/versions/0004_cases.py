"""A row a case and a row an episode; definitions are kept once a case, not once a run.

Revision: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_GOOD = "('ok', 'noisy', 'not_steady')"

_CASES = f"""
INSERT INTO cases (
    key, node, scenario, workload, definition, first_started, last_finished, last_run,
    good_finished, good_run, failures_in_row
)
SELECT
    k.case_key, newest.node, newest.scenario, newest.workload, newest.definition,
    k.first_started, newest.finished, newest.id, good.finished, good.id,
    (SELECT count(*) FROM runs WHERE case_key = k.case_key AND id > coalesce(good.id, 0))
FROM (SELECT case_key, min(started) AS first_started FROM runs GROUP BY case_key) AS k
JOIN runs AS newest ON newest.id = (
    SELECT id FROM runs WHERE case_key = k.case_key ORDER BY finished DESC, id DESC LIMIT 1
)
LEFT JOIN runs AS good ON good.id = (
    SELECT id FROM runs WHERE case_key = k.case_key AND outcome IN {_GOOD}
    ORDER BY finished DESC, id DESC LIMIT 1
)
"""  # noqa: S608 # constants of this file

_OUTCOMES = """
INSERT INTO case_outcomes (case_key, outcome, count)
SELECT case_key, outcome, count(*) FROM runs GROUP BY case_key, outcome
"""

# A stretch begins where the good run before it on the node was in another environment; the
# number of stretches begun so far tells one from the next.
_EPISODES = f"""
INSERT INTO episodes (node, environment, started, finished)
SELECT node, environment, min(started), max(finished) FROM (
    SELECT id, node, environment, started, finished,
        sum(begins) OVER (PARTITION BY node ORDER BY id) AS stretch
    FROM (
        SELECT id, node, environment, started, finished,
            environment IS NOT lag(environment) OVER (PARTITION BY node ORDER BY id) AS begins
        FROM runs WHERE outcome IN {_GOOD}
    )
)
GROUP BY node, stretch, environment ORDER BY min(id)
"""  # noqa: S608 # constants of this file


def upgrade() -> None:
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
        "episodes",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("environment", sa.String, sa.ForeignKey("environments.digest"), nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("finished", sa.Float, nullable=False),
    )
    op.create_index("episodes_of_node", "episodes", ["node"])
    for statement in (_CASES, _OUTCOMES, _EPISODES):
        op.execute(statement)
    op.drop_column("runs", "definition")
