"""One cluster for all tests of the hub; each test gets a database of its own, by its template."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest

from pvebench.hub.schema import migrate
from pvebench.hub.store import HubDatabase
from testing.postgres import cluster

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with cluster() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE pattern")
        migrate(url.replace("/postgres?", "/pattern?"))
        yield url


@pytest.fixture
def url(server: str) -> str:
    """A migrated database."""
    name = f"hub{next(_NUMBERS)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE pattern")
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def hub(url: str) -> Iterator[HubDatabase]:
    """The database as its owner reaches it."""
    database = HubDatabase(url)
    yield database
    database.close()


@pytest.fixture
def door(url: str) -> Iterator[HubDatabase]:
    """The database with the rights of the door."""
    database = HubDatabase(url, role="pvebench_door")
    yield database
    database.close()
