"""The compose files: what they promise about ports, pins and rights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(ROOT / name)
    return found


SERVICES = compose()["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_published_beyond_loopback(name: str) -> None:
    service = SERVICES[name]
    assert "network_mode" not in service
    for port in service.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+:-\d+\}:\d+", port)


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned_and_every_container_is_kept_small(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r":(v?\d+\.\d+\.\d+|local\})$", service["image"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


def test_it_keeps_to_what_docker_compose_1_29_understands() -> None:
    assert set(compose()) <= {"x-common", "services", "volumes", "secrets"}
    newer = {"develop", "gpus", "annotations", "attach", "start_interval"}
    for service in SERVICES.values():
        assert not newer & set(service)
        assert "start_interval" not in service.get("healthcheck", {})


def test_secrets_are_files_that_are_not_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text("utf-8").split()
    assert {"/secrets/", "/.env"} <= set(ignored)
    for secret in compose()["secrets"].values():
        assert secret["file"].startswith("./secrets/")


def test_the_optional_parts_are_profiles_that_the_example_names() -> None:
    profiles = {name for service in SERVICES.values() for name in service.get("profiles", [])}
    assert profiles == {"node", "alerting"}
    example = (ROOT / ".env.example").read_text("utf-8")
    assert all(name in example for name in profiles)


def test_every_port_variable_is_in_the_example() -> None:
    text = (ROOT / "compose.yaml").read_text("utf-8")
    example = (ROOT / ".env.example").read_text("utf-8")
    for name in re.findall(r"\$\{([A-Z_]+_PORT):-", text):
        assert f"{name}=" in example


def test_kvm_is_added_by_a_file_of_its_own() -> None:
    assert "devices" not in SERVICES["exporter"]
    assert compose("compose.kvm.yaml")["services"]["exporter"]["devices"] == ["/dev/kvm:/dev/kvm"]


def test_every_receiver_of_the_alertmanager_example_is_used_and_there() -> None:
    config = YAML(typ="safe").load(ROOT / "prometheus" / "alertmanager" / "alertmanager.yml")
    routes = [config["route"], *config["route"]["routes"]]
    assert {route["receiver"] for route in routes} == {one["name"] for one in config["receivers"]}
