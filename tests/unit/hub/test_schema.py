"""The logins of the compose stack and of Debian's package, on a real PostgreSQL."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest

from pvebench_fleet import HubDatabaseError
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.schema import migrate
from testing.hub_requests import TOKEN
from testing.packs import ROOT
from testing.postgres import cluster, programs

SCRIPTS = sorted((ROOT / "packaging/postgres").glob("*.sql"))


def test_each_process_logs_in_with_the_rights_of_its_role_and_the_owner_is_no_superuser(
    tmp_path: Path,
) -> None:
    """The package runs the first script at each start."""
    for role in ("owner", "door", "judge", "overview"):
        (tmp_path / role).mkdir()
        (tmp_path / role / "password").write_text(f"{role}-secret")
    roles, passwords = (one.read_text("utf-8") for one in SCRIPTS)
    script = roles + roles + passwords.replace("/run/pvebench", str(tmp_path))
    with cluster() as url:
        psql = [programs() / "psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--dbname={url}"]
        # The superuser of the container is postgres, that of this cluster owner.
        script = script.replace("ROLE postgres", "ROLE owner")
        subprocess.run(psql, input=script, check=True, text=True, timeout=60, capture_output=True)
        with psycopg.connect(url) as connection:
            query = "SELECT rolname, rolpassword FROM pg_authid WHERE rolcanlogin"
            stored = dict(connection.execute(query).fetchall())
            query = "SELECT rolname FROM pg_roles WHERE rolsuper"
            assert connection.execute(query).fetchall() == [("owner",)]
        assert stored.pop("owner") is None
        assert len(stored) == 4
        assert all(password.startswith("SCRAM-SHA-256$") for password in stored.values())

        def login(role: str) -> str:
            return url.replace("//owner@", f"//{role}@").replace("/postgres?", "/pvebench?")

        migrate(login("pvebench_hub"))
        subprocess.run(psql, input=roles, check=True, text=True, timeout=60, capture_output=True)
        for role in ("door", "judge", "overview"):
            database = HubDatabase(login(f"pvebench_{role}"), role=f"pvebench_{role}")
            with database.connection():
                pass  # it logs in, and reads the schema
            with pytest.raises(HubDatabaseError, match="permission denied"):
                database.add_token("lab", TOKEN)
            database.close()
