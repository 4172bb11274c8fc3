"""Users see the sites of their role and no others, whatever their requests say."""

from __future__ import annotations

import http.client
import itertools
import json
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from urllib.error import HTTPError

import bcrypt
import psycopg
import pytest

from pvebench.cli.main import run_cli
from pvebench.web.request_filter import Access
from pvebench.web.server import WebServer
from pvebench.web.server import listen as open_socket
from pvebench_fleet import HubDatabaseError
from pvebench_fleet.hub.app import FleetPages, Readers, make_pages
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.overview import read_overview
from testing.prometheus import free_port

HEADER = "X-Remote-User"
NO_DATABASE = HubDatabase("postgresql://127.0.0.1:1/none")
_NUMBERS = itertools.count()
Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def role(login: str, hub: HubDatabase) -> Iterator[str]:
    """A role that sees site `graz`, not `linz`; made as docs/fleet.md says."""
    name = f"viewer_{next(_NUMBERS)}"
    for site in ("graz", "linz"):
        hub.add_token(site, site[0] * 64)
    with psycopg.connect(login, autocommit=True) as connection:
        statements = f"""
            CREATE ROLE {name} IN ROLE pvebench_pages;
            GRANT {name} TO pvebench;
            INSERT INTO role_sees SELECT '{name}', site FROM site WHERE name = 'graz';
            INSERT INTO shape (site, digest, numbers, seen) SELECT site, 'd',
                '[["iops", "read", "", "iops"], ["bandwidth", "read", "", "b"],
                ["bandwidth", "write", "", "b"]]', 0 FROM site WHERE name = 'graz';
            INSERT INTO "case" (site, key, node, seen)
                SELECT site, 'n/<b>/w/f', 'n', 0 FROM site;
            INSERT INTO case_state SELECT case_id, site, 1, 5, 'ok', 1, '{{}}', 5, 1,
                '{{9000, 1, 1048576}}' FROM "case";
            INSERT INTO verdict SELECT site, 'n', 1, case_id, 'read', 'throughput', 'slower', '',
                -0.25, -0.3, -0.2, 0, 9, 0, 1, 9, 0 FROM "case";
            INSERT INTO change SELECT site, 'n', 1, 'x', 5, 'open', 'critical', true, -0.25,
                json_build_object('text', name || ' is slower') FROM site;
        """
        for statement in statements.split(";\n"):
            connection.execute(statement.encode())
    yield name
    with psycopg.connect(login, autocommit=True) as connection:  # roles are the cluster's
        connection.execute(f"DROP ROLE {name}".encode())


@contextmanager
def serving(readers: Readers, access: Access | None = None) -> Iterator[Ask]:
    address = f"127.0.0.1:{free_port()}"

    def ask(path: str = "/", **headers: str) -> tuple[int, str]:
        return get(f"http://{address}{path}", {k.replace("_", "-"): v for k, v in headers.items()})

    with WebServer(make_pages(readers), open_socket(address), access):
        yield ask


def get(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as it:
            return it.status, it.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def by_proxy(hub: HubDatabase, role: str, proxy: str = "127.0.0.1/32") -> Readers:
    pages = {"anna": FleetPages(hub, [], "fleet", role)}
    return Readers(by_user=pages, header=HEADER, proxies=[ip_network(proxy)])


def test_a_user_of_a_proxy_sees_the_sites_of_the_role_alone(login: str, role: str) -> None:
    reader = HubDatabase(login, role="pvebench_overview")
    with serving(by_proxy(reader, role)) as ask:
        status, text = ask(X_Remote_User="anna")
        assert (status, "graz" in text, "linz" in text) == (200, True, False)
        status, text = ask("/metrics", X_Remote_User="anna")
        assert (status, 'site="graz"' in text, "linz" in text) == (200, True, False)
        status, text = ask("/sites/graz", X_Remote_User="anna")
        assert (status, "graz is slower" in text, "linz" in text) == (200, True, False)
        assert ask("/sites/linz", X_Remote_User="anna")[0] == 404
        assert ask("/-/healthy")[0] == 200
    # A role holds for its transaction alone.
    assert [one.name for one in reader.read(read_overview).sites] == ["graz", "linz"]
    reader.close()


def test_every_other_user_sees_nothing() -> None:
    login = f"Basic {b64encode(b'anna:x').decode()}"
    with serving(by_proxy(NO_DATABASE, "unused")) as ask:
        for headers in (
            {}, {"X_Remote_User": ""}, {"X_Remote_User": "eve"}, {"X_Remote_User": "anna, anna"},
            {"X_Forwarded_User": "anna"}, {"Authorization": login},
        ):  # fmt: skip
            for path in ("/", "/metrics", "/sites/graz"):
                assert ask(path, **headers)[0] == 403, headers


def test_a_repeated_header_names_no_user() -> None:
    address = f"127.0.0.1:{free_port()}"
    with WebServer(make_pages(by_proxy(NO_DATABASE, "unused")), open_socket(address)):
        client = http.client.HTTPConnection(address, timeout=60)
        client.putrequest("GET", "/")
        for name in ("anna", "eve"):
            client.putheader(HEADER, name)
        client.endheaders()
        assert client.getresponse().status == 403
        client.close()


@pytest.mark.parametrize("forwarded", [{}, {"X_Forwarded_For": "192.0.2.7"}])
def test_the_header_of_any_other_address_counts_nothing(forwarded: dict[str, str]) -> None:
    with serving(by_proxy(NO_DATABASE, "unused", "192.0.2.7/32")) as ask:
        assert ask(X_Remote_User="anna", **forwarded)[0] == 403


def test_a_login_of_the_web_configuration_has_a_role(login: str, role: str, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    users = {name: bcrypt.hashpw(b"pw", bcrypt.gensalt(4)).decode() for name in ("anna", "ben")}
    file.write_text(json.dumps({"basic_auth_users": users}))
    file.chmod(0o600)
    reader = HubDatabase(login, role="pvebench_overview")
    readers = Readers(by_user={"anna": FleetPages(reader, [], "fleet", role)})
    with serving(readers, Access(file=file)) as ask:
        for user, password, expected in (
            ("anna", "pw", 200), ("ben", "pw", 403), ("anna", "no", 401), ("eve", "pw", 401),
        ):  # fmt: skip
            header = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
            status, text = ask(Authorization=header, X_Remote_User="anna")
            assert (status, "linz" in text) == (expected, False)
    reader.close()


def test_the_page_of_a_site_has_its_changes_and_newest_results(
    login: str, role: str, hub: HubDatabase
) -> None:
    text = FleetPages(hub, [], "fleet", role).site("graz")
    for part in (
        "<h1>graz</h1>",
        "<td>graz is slower</td>",
        "<td>n/&lt;b&gt;/w/f</td>",
        "<td>ok</td><td>read 9,000 IOPS, write 1.0 MiB/s</td><td>slower</td><td>-25.0%</td>",
    ):
        assert part in text
    assert "<a href='/sites/graz'>graz</a>" in FleetPages(hub, [], "fleet", role).page()


@pytest.mark.parametrize("role_name", ["unknown", 'a"; RESET ROLE; --', "pg_monitor"])
def test_a_role_that_the_login_cannot_have_is_an_error_and_never_all(
    role_name: str, hub: HubDatabase
) -> None:
    with pytest.raises(HubDatabaseError, match="refused"):
        FleetPages(hub, [], "fleet", role_name).page()


@pytest.mark.parametrize(
    "options",
    [
        ["--user-role", "anna"],
        ["--user-role", "=viewer"],
        ["--user-role", "anna=viewer"],
        ["--trusted-header", HEADER, "--user-role", "anna=viewer"],
        ["--trusted-header", HEADER, "--trusted-proxy", "127.0.0.1"],
        ["--trusted-header", HEADER, "--trusted-proxy", "lan", "--user-role", "anna=viewer"],
        [
            *["--trusted-header", HEADER, "--trusted-proxy", "127.0.0.1"],
            *["--user-role", "a=b"] * 2,
        ],
    ],
)
def test_options_that_identify_nobody_are_refused(options: list[str]) -> None:
    assert run_cli(["hub", "pages", "--database", "postgresql://127.0.0.1:1/no", *options]) == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            [
                "--trusted-proxy",
                "/run/proxy.sock",
                "--trusted-header",
                HEADER,
                "--user-role",
                "a=b",
            ],
            "a proxy connects by TCP, not by a Unix socket",
        ),
        (["--listen", "unix:/run/hub.sock"], "write it as 127.0.0.1:10620"),
    ],
)
def test_a_unix_socket_of_a_proxy_is_refused_with_a_hint(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["hub", "pages", "--database", "postgresql://127.0.0.1:1/no", *options]) == 2
    assert expected in capsys.readouterr().err
