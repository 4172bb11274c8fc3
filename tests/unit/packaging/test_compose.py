"""The compose files: what they promise about ports, pins and rights."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pvebench.config import load_settings

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = (["docker", "compose"], ["docker-compose"])


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(ROOT / name)
    return found


SERVICES = compose()["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_published_beyond_loopback(name: str) -> None:
    service = SERVICES[name]
    assert "network_mode" not in service
    loopback = r"127\.0\.0\.1"
    if name == "hub":  # sites come from elsewhere, once .env says so
        loopback = r"\$\{HUB_ADDRESS:-127\.0\.0\.1\}"
    for port in service.get("ports", []):
        assert re.fullmatch(loopback + r":\$\{[A-Z_]+:-\d+\}:\d+", port)


def resolved(directory: Path, **env: str) -> dict[str, Any]:
    """Return what compose itself makes of compose.yaml with an .env."""
    program = next((one for one in PROGRAMS if shutil.which(one[0]) and works(one)), None)
    if program is None:
        pytest.skip("neither docker compose nor docker-compose is installed")
    for file in (*ROOT.glob("compose*.yaml"), ROOT / "seccomp.json"):
        shutil.copy(file, directory)
    text = "".join(f"{name}={value}\n" for name, value in env.items())
    (directory / ".env").write_text(text, "utf-8")
    done = subprocess.run(
        [*program, "config"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = YAML(typ="safe").load(done.stdout)["services"]
    return found


def works(program: list[str]) -> bool:
    done = subprocess.run([*program, "version"], capture_output=True, check=False, timeout=300)
    return done.returncode == 0


def test_looking_without_a_login_is_off_until_env_switches_it_on(tmp_path: Path) -> None:
    for given, expected in (({}, "false"), ({"GRAFANA_ANONYMOUS": "true"}, "true")):
        services = resolved(tmp_path, COMPOSE_PROFILES="demo", **given)
        for name in ("grafana", "demo-grafana"):
            environment = services[name]["environment"]
            assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == expected
            password = environment["GF_SECURITY_ADMIN_PASSWORD__FILE"]
            assert password == "/run/pvebench/grafana_admin_password"
            assert "GF_AUTH_DISABLE_LOGIN_FORM" not in environment


def test_the_demo_is_there_only_when_its_profile_is_chosen(tmp_path: Path) -> None:
    usual = resolved(tmp_path)
    both = resolved(tmp_path, COMPOSE_PROFILES="demo", DEMO_DAYS="7")
    parts = {"demo-fill", "demo-pvebench", "demo-prometheus", "demo-grafana"}
    # docker-compose 1.29 lists every service, with its profiles; Compose v2 only the chosen ones.
    assert all(usual[name]["profiles"] == ["demo"] for name in parts & set(usual))
    assert parts <= set(both)
    assert "--days 7" in str(both["demo-fill"]["command"])
    # Its data must never come near what was measured; the password is one for both.
    kept = {name for part in parts for name in named_volumes(both[part])}
    assert kept - {"grafana-password"} == {"demo-data", "demo-prometheus-data", "demo-grafana-data"}


def named_volumes(service: dict[str, Any]) -> set[str]:
    found = set()
    for volume in service["volumes"]:
        source = volume["source"] if isinstance(volume, dict) else volume.partition(":")[0]
        if not source.startswith("/"):
            found.add(source)
    return found


HUB = {name: one for name, one in SERVICES.items() if "hub" in one.get("profiles", [])}


def test_a_process_of_the_hub_has_the_rights_of_its_role_only() -> None:
    logins = {
        name: (one["environment"]["PVEBENCH_HUB_DATABASE"].split("@")[0].split("//")[1], volume)
        for name, one in HUB.items()
        if "PVEBENCH_HUB_DATABASE" in one.get("environment", {})
        for volume in one["volumes"]
    }
    assert logins == {
        "hub-admin": ("pvebench_hub", "hub-owner:/run/pvebench:ro"),
        "hub-prune": ("pvebench_hub", "hub-owner:/run/pvebench:ro"),
        "hub": ("pvebench_door", "hub-door:/run/pvebench:ro"),
        "hub-judge": ("pvebench_judge", "hub-judge:/run/pvebench:ro"),
        "hub-pages": ("pvebench_overview", "hub-overview:/run/pvebench:ro"),
    }
    exposed = {name for name, one in HUB.items() if one.get("ports")}
    assert exposed == {"hub", "hub-pages"}
    assert {name for name, one in HUB.items() if "default" in one["networks"]} == exposed
    assert compose()["networks"] == {"hub": {"internal": True}}


def test_the_hub_comes_only_with_its_profile(tmp_path: Path) -> None:
    both = resolved(tmp_path, COMPOSE_PROFILES="hub", HUB_ADDRESS="192.0.2.1")
    assert set(HUB) <= set(both)
    assert "192.0.2.1" in str(both["hub"]["ports"])
    assert "192.0.2.1" not in str(both["hub-pages"]["ports"])


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned_and_every_container_is_kept_small(name: str) -> None:
    service = SERVICES[name]
    # PostgreSQL's versions have two numbers.
    assert re.search(r":(v?\d+\.\d+\.\d+|\d+\.\d+-bookworm|local\})$", service["image"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", SERVICES)
def test_memory_and_processes_of_every_container_are_bounded(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"\d+g|\$\{EXPORTER_MEMORY:-8g\}", str(service["mem_limit"]))
    assert 100 <= service["pids_limit"] <= 1000


def test_compose_itself_understands_the_bounds(tmp_path: Path) -> None:
    services = resolved(tmp_path, EXPORTER_MEMORY="3g", COMPOSE_PROFILES="demo,node,alerting")
    assert len(services) >= 5
    # 1.29 keeps the words, v2 counts bytes.
    assert str(services["pvebench"]["mem_limit"]) in {"3g", str(3 << 30)}
    assert {service["pids_limit"] for service in services.values()} == {512}
    assert any("seccomp.json" in one for one in services["pvebench"]["security_opt"])


def test_it_keeps_to_what_docker_compose_1_29_understands() -> None:
    assert set(compose()) <= {"x-common", "services", "volumes", "secrets", "networks"}
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
    assert profiles == {"node", "alerting", "demo", "hub"}
    example = (ROOT / ".env.example").read_text("utf-8")
    assert all(name in example for name in profiles)


def test_every_port_variable_is_in_the_example() -> None:
    text = (ROOT / "compose.yaml").read_text("utf-8")
    example = (ROOT / ".env.example").read_text("utf-8")
    for name in re.findall(r"\$\{([A-Z_]+_PORT):-", text):
        assert f"{name}=" in example


def test_a_cluster_takes_an_env_file_and_a_secret(tmp_path: Path) -> None:
    service = resolved(
        tmp_path,
        COMPOSE_FILE="compose.yaml:compose.proxmox.yaml",
        PROXMOX_HOST="pve1.example.org",
        PROXMOX_NODES="pve1, pve2",
        PROXMOX_VERSION="8",
        PROXMOX_STORAGES="local: {type: dir}, fast: {type: lvmthin, id: nvme-thin}",
    )["pvebench"]
    file = tmp_path / "settings.yaml"
    file.write_text(service["environment"]["PVEBENCH_SETTINGS"], "utf-8")
    settings = load_settings(file)
    assert settings.driver == "proxmox"
    assert settings.measured_nodes() == ("pve1", "pve2")
    assert settings.proxmox is not None
    assert settings.proxmox.version == 8
    assert {name: one.id for name, one in settings.proxmox.storages.items()} == {
        "local": "local",
        "fast": "nvme-thin",
    }
    assert str(settings.proxmox.token_file) == "/run/secrets/proxmox_token"
    assert [pack.parent for pack in settings.packs] == [ROOT / "scenarios"] * 2


def test_the_container_hands_its_settings_and_arguments_to_pvebench(tmp_path: Path) -> None:
    service = compose("compose.proxmox.yaml")["services"]["pvebench"]
    config, program = tmp_path / "s" / "settings.yaml", tmp_path / "p"
    program.write_text('#!/bin/sh\ncat "$PVEBENCH_CONFIG"; echo "$@"\n', "utf-8")
    program.chmod(0o755)
    shell, option, script, name = (part.replace("$$", "$") for part in service["entrypoint"])
    script = script.replace("/tmp/settings", str(config.parent))
    script = script.replace("/opt/pvebench/bin/pvebench", str(program))
    done = subprocess.run(
        [shell, option, script, name, "check", "--format=json"],
        capture_output=True,
        text=True,
        check=True,
        env={"PVEBENCH_CONFIG": str(config), "PVEBENCH_SETTINGS": "driver: proxmox"},
        timeout=300,
    )
    assert done.stdout == "driver: proxmox\ncheck --format=json\n"


@pytest.mark.parametrize(
    ("env", "device", "group"),
    [
        # Every container has /dev/null, and the group is that of the image's user.
        ({}, "/dev/null", "65532"),
        ({"KVM_DEVICE": "/dev/kvm", "KVM_GROUP": "993"}, "/dev/kvm", "993"),
    ],
)
def test_kvm_is_a_switch_in_env(
    tmp_path: Path, env: dict[str, str], device: str, group: str
) -> None:
    service = resolved(tmp_path, **env)["pvebench"]
    (mapped,) = service["devices"]
    if isinstance(mapped, dict):  # Compose v2 says it in full
        mapped = f"{mapped['source']}:{mapped['target']}"
    assert mapped.startswith(f"{device}:{device}")
    assert [str(one) for one in service["group_add"]] == [group]
    dockerfile = (ROOT / "exporter/Dockerfile").read_text("utf-8")
    assert "\nUSER 65532:65532\n" in dockerfile


def test_commands_in_the_container_use_its_settings() -> None:
    dockerfile = (ROOT / "exporter/Dockerfile").read_text("utf-8")
    settings = SERVICES["pvebench"]["environment"]["PVEBENCH_CONFIG"]
    assert f"COPY exporter/container.yaml {settings}\n" in dockerfile
    assert "ENV PATH=$PATH:/opt/pvebench/bin\n" in dockerfile


def test_every_command_in_the_docs_names_a_service_that_is_there() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "".join(page.read_text("utf-8") for page in pages)
    named = re.findall(
        r"docker compose (?:--profile \S+ )?(?:exec|run --rm|logs) (?:-\S+ )*([\w-]+)", text
    )
    assert {"pvebench", "grafana", "hub-admin"} <= set(named) <= set(SERVICES)
    assert "compose.kvm.yaml" not in text


def test_the_demo_asks_its_own_exporter_only() -> None:
    places = ROOT / "prometheus" / "targets" / "demo"
    targets = {path.name: YAML(typ="safe").load(path) for path in places.glob("*.yml")}
    assert set(targets) == {path.name for path in (places.parent / "compose").glob("*.yml")}
    assert [one for some in targets.values() for one in some] == [
        {"targets": ["demo-pvebench:10620"]}
    ]


def test_every_receiver_of_the_alertmanager_example_is_used_and_there() -> None:
    config = YAML(typ="safe").load(ROOT / "prometheus" / "alertmanager" / "alertmanager.yml")
    routes = [config["route"], *config["route"]["routes"]]
    assert {route["receiver"] for route in routes} == {one["name"] for one in config["receivers"]}


def schema_check(*files: Path) -> subprocess.CompletedProcess[str]:
    """Hold files against the compose specification's own schema, which check-jsonschema carries."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    return subprocess.run(
        [*command, *map(str, files)], capture_output=True, text=True, check=False, timeout=300
    )


def test_the_files_keep_to_the_compose_specification() -> None:
    files = sorted(ROOT.glob("compose*.yaml"))
    assert len(files) == 2
    done = schema_check(*files)
    assert done.returncode == 0, done


@pytest.mark.parametrize(
    ("right", "wrong"), [("healthcheck:", "helthcheck:"), ("read_only: true", "read_only: [1]")]
)
def test_the_specification_refuses_what_is_misspelt(tmp_path: Path, right: str, wrong: str) -> None:
    text = (ROOT / "compose.yaml").read_text("utf-8")
    assert right in text
    (tmp_path / "compose.yaml").write_text(text.replace(right, wrong, 1), "utf-8")
    assert schema_check(tmp_path / "compose.yaml").returncode == 1


def test_the_image_runs_without_privileges_and_its_health_is_checked() -> None:
    text = (ROOT / "exporter/Dockerfile").read_text("utf-8")
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"(?m)^USER (?!0\b)\d+:(?!0\b)\d+$", last)
    # An OCI image has no health check: compose.yaml has it.
    check = SERVICES["pvebench"]["healthcheck"]["test"]
    assert f"COPY exporter/{Path(check[-1]).name} {check[-1]}" in last
    stages = set(re.findall(r"(?m)^FROM .* AS (\S+)$", text))
    bases = set(re.findall(r"(?m)^FROM (?:--platform=\S+ )?(\S+)", text)) - stages
    assert bases
    assert all(re.fullmatch(r"\S+:[\w.-]*\d[\w.-]*", base) for base in bases)


def test_the_guest_is_made_on_a_pc_by_the_standard_library_alone() -> None:
    # So that the image can be built for arm64 too: the guest's own programs run while it is made.
    text = (ROOT / "exporter/Dockerfile").read_text("utf-8")
    (code,) = re.findall(r"python3 -c \\\n +'(.+)' ", text)
    assert "FROM --platform=linux/amd64 debian:12-slim AS guest" in text
    imports = code.partition("; build_image(")[0]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append('exporter'); {imports}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
