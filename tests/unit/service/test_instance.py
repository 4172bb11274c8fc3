"""What a client gets while pvebench starts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from pvebench.cli.main import run_cli
from pvebench.service import instance
from pvebench.service.startup import make_sites
from pvebench.web.server import StartupApp
from testing import http_client
from testing.packs import write_pack
from testing.prometheus import free_port
from testing.simulated_site import app_of, lively, served


def test_everything_but_health_answers_503_and_what_it_is_at_until_the_application_is_there(
    tmp_path: Path,
) -> None:
    doorway = StartupApp()
    doorway.say("building the guest image, once")
    with served(doorway) as address:
        assert http_client.get(f"{address}/-/healthy").status_code == 200
        for path in ("/-/ready", "/metrics", "/", "/api/v1/cases"):
            early = http_client.get(f"{address}{path}")
            assert early.status_code == 503
            assert "building the guest image, once" in early.text
            assert int(early.headers["retry-after"]) > 0
        doorway.forward_to(app_of(lively(tmp_path)))
        assert http_client.get(f"{address}/-/ready").status_code == 200
        assert "text/html" in http_client.get(f"{address}/").headers["content-type"]


def test_a_starting_service_is_not_ready_until_its_nodes_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, go_on, address = threading.Event(), threading.Event(), f"127.0.0.1:{free_port()}"

    def slow(*arguments: Any) -> Any:
        arguments[-1]("building the guest image")
        made.set()
        assert go_on.wait(30)
        return make_sites(*arguments)

    monkeypatch.setattr(instance, "make_sites", slow)
    options = (
        f"--driver simulated --state {tmp_path / 's'} --pack {write_pack(tmp_path)} --cycles 1"
    )
    command = ["serve", *options.split(), "--listen", address]
    thread = threading.Thread(target=run_cli, args=(command,))
    thread.start()
    try:
        assert made.wait(30)
        early = http_client.get(f"http://{address}/-/ready")
    finally:
        go_on.set()
        thread.join(60)
    assert early.status_code == 503
    assert "building the guest image" in early.text
