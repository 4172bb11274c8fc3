"""One cluster for all tests of the hub; each test gets a database of its own, by its template.

Role and database are made as docs/fleet.md says: the role that migrates is no superuser.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest

from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.schema import migrate
from testing.hub_requests import TOKEN, Sending
from testing.postgres import cluster

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with cluster() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE ROLE pvebench LOGIN CREATEROLE")
            connection.execute("CREATE DATABASE pattern OWNER pvebench")
        migrate(as_documented(url.replace("/postgres?", "/pattern?")))
        yield url


def as_documented(url: str) -> str:
    """Return the URL with the login of docs/fleet.md."""
    return url.replace("//owner@", "//pvebench@")


@pytest.fixture
def url(server: str) -> str:
    """A migrated database, for a superuser."""
    name = f"hub{next(_NUMBERS)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE pattern OWNER pvebench")
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def login(url: str) -> str:
    """A migrated database, for the role that has migrated it."""
    return as_documented(url)


@pytest.fixture
def hub(login: str) -> Iterator[HubDatabase]:
    """The database as its owner reaches it."""
    database = HubDatabase(login)
    yield database
    database.close()


@pytest.fixture
def door(login: str) -> Iterator[HubDatabase]:
    """The database with the rights of the door."""
    database = HubDatabase(login, role="pvebench_door")
    yield database
    database.close()


@pytest.fixture
def site(hub: HubDatabase, door: HubDatabase) -> Sending:
    """Site `lab`, which has begun to send."""
    hub.add_token("lab", TOKEN)
    sending = Sending(door)
    sending.hello()
    return sending


@pytest.fixture
def judge(login: str) -> Iterator[HubDatabase]:
    database = HubDatabase(login, role="pvebench_judge")
    yield database
    database.close()
