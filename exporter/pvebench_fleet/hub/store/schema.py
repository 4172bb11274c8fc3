"""Schema of the hub's database: tables, rights of the roles, policies."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from pvebench_fleet import HubDatabaseError

SCHEMA: Final = 1
"""Version of the schema that this code reads and writes."""

# Every key begins with the site. A run is one row with its numbers as an array; the names of an
# array's places are a row of `shape`. Times are UNIX seconds as floats, as at the sites. `seen`:
# when the site last used a row.
TABLES = """
CREATE TABLE schema_version (version integer NOT NULL);
CREATE TABLE site (
    site smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'held', 'forgotten')),
    turn bigint NOT NULL DEFAULT 0,
    process text NOT NULL DEFAULT '',
    acked bigint NOT NULL DEFAULT 0,
    chain text NOT NULL DEFAULT '',
    contact float8,
    skew_seconds float8,
    newest_run float8,
    bytes bigint NOT NULL DEFAULT 0
);
CREATE TABLE token (
    sha256 bytea PRIMARY KEY, site smallint NOT NULL REFERENCES site, made float8 NOT NULL
);
CREATE TABLE process (
    site smallint NOT NULL REFERENCES site, process text NOT NULL, turn bigint NOT NULL,
    banned boolean NOT NULL, seen float8 NOT NULL, PRIMARY KEY (site, process)
);
CREATE TABLE mark (
    site smallint NOT NULL REFERENCES site, seq bigint NOT NULL, chain text NOT NULL,
    at float8 NOT NULL, PRIMARY KEY (site, seq)
);
CREATE TABLE refused (
    site smallint NOT NULL REFERENCES site, seq bigint NOT NULL, at float8 NOT NULL,
    reason text NOT NULL, line text NOT NULL
);
CREATE INDEX refused_of_site ON refused (site, at);
CREATE TABLE environment (
    env integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    site smallint NOT NULL REFERENCES site, digest text NOT NULL, node text NOT NULL DEFAULT '',
    slug text NOT NULL DEFAULT '', facts jsonb NOT NULL DEFAULT '{}',
    seen float8 NOT NULL, UNIQUE (site, digest)
);
CREATE TABLE cycle (
    cycle_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    site smallint NOT NULL REFERENCES site, uid text NOT NULL, node text NOT NULL DEFAULT '',
    pack text NOT NULL DEFAULT '', tier text NOT NULL DEFAULT '', planned integer,
    started float8, finished float8, seen float8 NOT NULL, UNIQUE (site, uid)
);
CREATE TABLE "case" (
    case_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    site smallint NOT NULL REFERENCES site, key text NOT NULL, node text NOT NULL,
    definition jsonb, first_started float8, seen float8 NOT NULL, UNIQUE (site, key)
);
CREATE TABLE decision (
    site smallint NOT NULL REFERENCES site, number integer NOT NULL, made float8 NOT NULL DEFAULT 0,
    kind text NOT NULL DEFAULT '', cases text NOT NULL DEFAULT '',
    until float8 NOT NULL DEFAULT 0, reason text NOT NULL DEFAULT '', seen float8 NOT NULL,
    PRIMARY KEY (site, number)
);
CREATE TABLE shape (
    shape integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    site smallint NOT NULL REFERENCES site, digest text NOT NULL,
    numbers jsonb NOT NULL DEFAULT '[]', seen float8 NOT NULL, UNIQUE (site, digest)
);
-- In the order of their alignment: with 25 numbers, 25 rows fill a page.
CREATE TABLE run (
    finished float8 NOT NULL, started float8 NOT NULL, number bigint NOT NULL,
    case_id integer NOT NULL, env integer NOT NULL, shape integer NOT NULL,
    cycle_id integer NOT NULL, revision integer NOT NULL, pass integer NOT NULL,
    site smallint NOT NULL, uid uuid NOT NULL, outcome text NOT NULL, reason text NOT NULL,
    vals float8[] NOT NULL,
    PRIMARY KEY (site, case_id, finished, uid)
) PARTITION BY RANGE (finished);
CREATE TABLE run_other PARTITION OF run DEFAULT;
-- What a line has replaced: restored if it came from a clone.
CREATE TABLE replaced (turn bigint NOT NULL, LIKE run, PRIMARY KEY (site, turn, uid));
CREATE TABLE arrived (
    site smallint NOT NULL REFERENCES site, node text NOT NULL, count bigint NOT NULL DEFAULT 0,
    seen float8 NOT NULL, PRIMARY KEY (site, node)
);
-- What a judging concludes, all of a node in one transaction; `judged`: `arrived.count` before it.
CREATE TABLE node_state (
    site smallint NOT NULL REFERENCES site, node text NOT NULL, judged bigint NOT NULL DEFAULT 0,
    due float8 NOT NULL DEFAULT 0, tried float8 NOT NULL DEFAULT 0,
    newest_env integer NOT NULL DEFAULT 0, judged_at float8, seconds float8,
    failed text NOT NULL DEFAULT '', known jsonb NOT NULL DEFAULT '[]',
    summary json, PRIMARY KEY (site, node)
);
CREATE TABLE case_state (
    case_id integer PRIMARY KEY, site smallint NOT NULL REFERENCES site, number bigint NOT NULL,
    finished float8 NOT NULL, outcome text NOT NULL, env integer NOT NULL, counts jsonb NOT NULL,
    good_finished float8, good_shape integer, good_vals float8[]
);
CREATE INDEX case_state_of_site ON case_state (site);
CREATE TABLE verdict (
    site smallint NOT NULL REFERENCES site, node text NOT NULL, place integer NOT NULL,
    case_id integer NOT NULL, direction text NOT NULL, metric text NOT NULL, state text NOT NULL,
    reason text NOT NULL, change_ratio float8, low_ratio float8, high_ratio float8, p_value float8,
    runs integer NOT NULL, more_runs integer, baseline float8, baseline_runs integer NOT NULL,
    accepted_changes integer NOT NULL, PRIMARY KEY (site, node, place)
);
CREATE TABLE change (
    site smallint NOT NULL REFERENCES site, node text NOT NULL, place integer NOT NULL,
    id text NOT NULL, begin float8 NOT NULL, state text NOT NULL, severity text NOT NULL,
    regression boolean NOT NULL, change_ratio float8 NOT NULL, data json NOT NULL,
    PRIMARY KEY (site, node, place)
);
-- Effects of a node's upgrades, and of times without one (`differences` is empty).
CREATE TABLE effect (
    site smallint NOT NULL REFERENCES site, node text NOT NULL, place integer NOT NULL,
    at float8 NOT NULL, differences jsonb NOT NULL, metric text NOT NULL, labels jsonb NOT NULL,
    effect float8 NOT NULL, error float8 NOT NULL, own float8 NOT NULL, cases integer NOT NULL,
    PRIMARY KEY (site, node, place)
);
CREATE TABLE role_sees (role text NOT NULL, site smallint NOT NULL REFERENCES site,
    PRIMARY KEY (role, site));
"""

# The only statement for which the door needs more than rows: the next month. A month whose rows are
# in the default partition already, because a clock was ahead, gets no partition of its own.
ADD_MONTH = """
CREATE FUNCTION add_month(at float8) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
    first timestamptz := date_trunc('month', to_timestamp(at), 'UTC');
    name text := 'run_' || to_char(first AT TIME ZONE 'UTC', 'YYYY_MM');
BEGIN
    IF to_regclass(name) IS NULL THEN
        EXECUTE format('CREATE TABLE %I PARTITION OF run FOR VALUES FROM (%s) TO (%s)', name,
            extract(epoch FROM first),
            extract(epoch FROM date_trunc('month', first + interval '32 days', 'UTC')));
    END IF;
EXCEPTION WHEN check_violation OR duplicate_table THEN NULL;
END $$;
REVOKE ALL ON FUNCTION add_month(float8) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION add_month(float8) TO pvebench_door;
"""

# Processes log in as the role that migrates, which is no superuser, and change to their own role.
ROLES = (
    "".join(
        f"DO $$ BEGIN CREATE ROLE pvebench_{role} NOLOGIN; "
        "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;\n"
        for role in ("door", "judge", "pages", "overview")
    )
    + "GRANT pvebench_door, pvebench_judge, pvebench_overview TO CURRENT_USER;\n"
)
JUDGED = ("node_state", "case_state", "verdict", "change", "effect")
RIGHTS = f"""
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO pvebench_door;
REVOKE ALL ON token, role_sees, schema_version, {", ".join(JUDGED)} FROM pvebench_door;
GRANT SELECT ON token, schema_version TO pvebench_door;
GRANT SELECT ON site, shape, run, "case", environment, cycle, decision, arrived, refused, role_sees,
    schema_version, {", ".join(JUDGED)} TO pvebench_pages, pvebench_overview;
GRANT SELECT ON site, shape, run, "case", environment, decision, arrived, schema_version
    TO pvebench_judge;
GRANT SELECT, INSERT, UPDATE, DELETE ON {", ".join(JUDGED)} TO pvebench_judge;
"""
# The hub's own page sees all sites; readers see those that `role_sees` lists for their role. A
# setting of the connection would be no protection: every sender of SQL can change it.
OF_SITE: Final = (
    *("run", "shape", "case", "environment", "cycle", "decision", "arrived", "refused"),
    *JUDGED,
)
"""Tables whose rows readers see, and that are removed with the site."""
POLICY = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
CREATE POLICY door ON {table} TO pvebench_door, pvebench_judge USING (true) WITH CHECK (true);
CREATE POLICY overview ON {table} FOR SELECT TO pvebench_overview USING (true);
CREATE POLICY readers ON {table} FOR SELECT TO pvebench_pages
    USING (site IN (SELECT seen.site FROM role_sees seen WHERE seen.role = current_user));
"""
POLICIES = "".join(POLICY.format(table=f'"{table}"') for table in ("site", *OF_SITE))


def migrate(url: str) -> None:
    """Create the schema of its owner's database at a URL, completely or not at all.

    Raises:
        HubDatabaseError: it is unreachable, or the role may not change it.
    """
    try:
        with connect(url) as connection:
            # Another process may migrate at the same time; the lock ends with the transaction.
            connection.execute("SELECT pg_advisory_xact_lock(7052101)")
            if version_of(connection) == "none":
                for part in (TABLES, ROLES, ADD_MONTH, RIGHTS, POLICIES):
                    connection.execute(part.encode())
                connection.execute("INSERT INTO schema_version VALUES (%s)", (SCHEMA,))
            check_version(connection)
    except psycopg.Error as error:
        raise HubDatabaseError(
            f"the migration of the hub's database failed: {str(error).strip()}",
            cause="PostgreSQL is down, or this role does not own the database",
            next_step="check the database; the role needs CREATEROLE for the first migration",
        ) from error


def connect(url: str, **options: Any) -> psycopg.Connection[dict[str, Any]]:
    """Connect to a database. Raises HubDatabaseError: the URL is invalid; psycopg.Error: others."""
    try:
        return psycopg.connect(url, row_factory=dict_row, **options)
    except psycopg.ProgrammingError:  # its text has the URL, which may have a password
        raise HubDatabaseError(
            "invalid URL of the hub's database",
            next_step="write a URL of libpq, such as postgresql://USER@HOST/DATABASE",
        ) from None


def check_version(connection: psycopg.Connection[dict[str, Any]]) -> None:
    """Raise HubDatabaseError if the schema is not the one of this pvebench."""
    if (version := version_of(connection)) != str(SCHEMA):
        raise HubDatabaseError(
            f"the hub's database has schema {version}, this pvebench has {SCHEMA}",
            cause="it was never migrated, or by another version",
            next_step="run `pvebench hub migrate` of the newest pvebench in use",
        )


def version_of(connection: psycopg.Connection[dict[str, Any]]) -> str:
    """Return the version of the schema; `none`: there is none."""
    found = connection.execute("SELECT to_regclass('schema_version') AS name").fetchone()
    if found is None or found["name"] is None:
        return "none"
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    return str(row["version"]) if row else "none"
