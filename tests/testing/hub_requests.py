"""Requests of sites to a hub, and a site as the hub's pages show it."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import psycopg

from pvebench_fleet.hub.rules import Door
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.overview import SiteLine
from pvebench_fleet.wire import Head, pack, shape_of
from testing.simulated_fleet import run_data

NOW = 1.7e9
GRAZ = SiteLine(
    name="graz", state="held", contact=NOW - 7200, skew=-400.0, newest_run=NOW - 86400, runs=12,
    refused=1, critical=1, warnings=2, worst="<b>slower</b>",
)  # fmt: skip
SETTINGS = {
    "server_version_num": "150018", "fsync": "on", "full_page_writes": "on",
    "synchronous_commit": "on", "bytes": "1000", "odd_runs": "0",
}  # fmt: skip
"""What `HubDatabase.settings` returns of a sound database."""
TOKENS = {"vienna": "a" * 64, "graz": "b" * 64}
HELLO = {"process": "0" * 16, "seen": 0, "version": "x", "schemas": [1], "now": 0.0}
PROCESS = "0123456789abcdef"
TOKEN = "a" * 64


def rows(url: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode(), values).fetchall()


class Sending:
    """A site that speaks to the door, line by line."""

    def __init__(self, database: HubDatabase, name: str = "lab") -> None:
        self.door = Door(database.begin, lambda: 1)
        self.name, self.place, self.turn = name, (0, ""), 0

    def request(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        status, content = self.door.answer(self.name, method, path, body)
        return status, json.loads(content)

    def hello(self) -> None:
        body = {"process": PROCESS, "seen": 0, "version": "x", "schemas": [1], "now": 0.0}
        status, answer = self.request("POST", "hello", json.dumps(body).encode())
        assert status == 200
        self.turn = answer["turn"]

    def push(self, *lines: dict[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
        to = (self.place[0] + len(lines), f"{self.place[0] + len(lines):032x}")
        head = Head(
            turn=self.turn,
            process=PROCESS,
            after=self.place[0],
            chain=self.place[1],
            to=to,
            count=len(texts),
            now=0.0,
        )
        status, answer = self.request("POST", "push", pack(head, texts))
        self.place = answer["acked"], answer["chain"]
        return status, answer


def line(at: int, *, revision: int = 0, value: float = 1.0, **fields: Any) -> dict[str, Any]:
    data = run_data(f"r{at}", revision, 0, bad=False)
    shape = shape_of(data.pop("samples"))
    return {**data, "kind": "run", "seq": at + 1, "shape": shape.shape, "values": [value], **fields}


SHAPE = shape_of(run_data("r0", 0, 0, bad=False)["samples"]).model_dump_json().encode()


def ask(
    url: str,
    path: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    token: str = TOKENS["vienna"],
    scheme: str = "Bearer",
) -> tuple[int, dict[str, str], bytes]:
    client = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {"authorization": f"{scheme} {token}"} if token else {}
    client.request(method, f"/fleet/1/{path}", body, headers)
    answer = client.getresponse()
    content = answer.read()
    client.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, content
