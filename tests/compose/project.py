"""One start of compose.yaml: a copy of what it mounts, its own ports, secrets and volumes."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx2
from engine import Docker, compose_program, run
from images import EXPORTER, HUB, Images

from pvebench.errors import ToolFailed
from testing import http_client
from testing.packs import ROOT
from testing.prometheus import free_port

MOUNTED: Final = ("compose.yaml", "seccomp.json", "prometheus", "grafana", "packaging/postgres")
PORTS: Final = (
    "EXPORTER_PORT",
    "PROMETHEUS_PORT",
    "GRAFANA_PORT",
    "ALERTMANAGER_PORT",
    "DEMO_EXPORTER_PORT",
    "DEMO_PROMETHEUS_PORT",
    "DEMO_GRAFANA_PORT",
    "HUB_PORT",
    "HUB_PAGES_PORT",
)
SECRETS: Final = ("smtp_password",)
UP_SECONDS: Final = 600.0


class Project:
    """The stack, as a user has it who has filled in .env and the secrets.

    Args:
        part: of the test; becomes part of the project's name.

    Attributes:
        ports: variable of .env -> port on loopback.
        secrets: name -> text.
        images: what runs in the containers.
    """

    def __init__(self, docker: Docker, images: Images, directory: Path, part: str) -> None:
        self.docker = docker
        self.images = images
        self.ports = {name: free_port() for name in PORTS}
        self.secrets = {name: secrets.token_hex(16) for name in SECRETS}
        self.name = f"pvebench-test-{part}"
        self._directory = directory
        self._compose = compose_program(docker)

    def __enter__(self) -> Self:
        self._directory.mkdir()
        for name in MOUNTED:
            source = ROOT / name
            (self._directory / name).parent.mkdir(exist_ok=True)
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, self._directory / name)
        targets = self._directory / "prometheus" / "targets" / "compose" / "alertmanager.yml"
        targets.write_text("- targets: [alertmanager:9093]\n", "utf-8")
        place = self._directory / "secrets"
        place.mkdir()
        for name, text in self.secrets.items():
            (place / name).write_text(f"{text}\n", "utf-8")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            print(self.logs())
        self.down("--volumes")

    def settle(self, *profiles: str, **more: str) -> None:
        """Write .env: the profiles, the ports, and what else is given."""
        values = {
            "COMPOSE_PROJECT_NAME": self.name,
            "COMPOSE_PROFILES": ",".join(profiles),
            "PVEBENCH_IMAGE": EXPORTER,
            "PVEBENCH_HUB_IMAGE": HUB,
            **{name: str(port) for name, port in self.ports.items()},
            **more,
        }
        text = "".join(f"{name}={value}\n" for name, value in values.items())
        (self._directory / ".env").write_text(text, "utf-8")

    def compose(self, *arguments: str, seconds: float = UP_SECONDS) -> str:
        """Run a compose command and return its output.

        Raises:
            ToolFailed: it did not work.
        """
        environment = {
            name: value
            for name, value in self.docker.environment.items()
            if not name.startswith(("COMPOSE_", "PVEBENCH_", "GRAFANA_"))
        }
        command = [*self._compose, *arguments]
        return run(command, environment, seconds=seconds, directory=self._directory)

    def up(self, *services: str) -> None:
        """Start the services, or all of the profiles."""
        self.compose("up", "--detach", "--no-build", *services)

    def down(self, *options: str) -> None:
        """Take the containers and networks away, as a user does."""
        self.compose("down", "--remove-orphans", *options)

    def containers(self) -> dict[str, dict[str, Any]]:
        """Return service -> what `docker inspect` says of its container, ended ones included."""
        label = f"label=com.docker.compose.project={self.name}"
        ids = self.docker("ps", "--all", "--quiet", "--filter", label).split()
        if not ids:
            return {}
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", *ids))
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}

    def left_behind(self) -> list[str]:
        """Return the containers, volumes and networks that there are of this project."""
        label = f"label=com.docker.compose.project={self.name}"
        found = self.docker("ps", "--all", "--quiet", "--filter", label).split()
        for kind in ("volume", "network"):
            found += self.docker(kind, "ls", "--quiet", "--filter", label).split()
        return found

    def password(self) -> str:
        """Return what Grafana's user admin logs in with, as the README says to find it."""
        asked = ("exec", "-T", "grafana", "cat", "/run/pvebench/grafana_admin_password")
        return self.compose(*asked, seconds=60).strip()

    def logs(self) -> str:
        """Return the last lines of every container."""
        try:
            return self.compose("logs", "--tail=40", seconds=60)
        except ToolFailed as error:
            return str(error)

    def get(
        self, port: str, path: str, *, login: tuple[str, str] | None = None, **asked: str
    ) -> Any:
        """Return the JSON that a service answers with on its published port."""
        address = f"http://127.0.0.1:{self.ports[port]}{path}"
        return http_client.get(address, params=asked, auth=login, timeout=20).json()

    def text(self, port: str, path: str) -> str:
        """Return the text that a service answers with on its published port."""
        return http_client.get(f"http://127.0.0.1:{self.ports[port]}{path}", timeout=20).text

    def query(
        self, expression: str, *, port: str = "PROMETHEUS_PORT", time: float | None = None
    ) -> list[dict[str, Any]]:
        """Return the series of an instant query, now or at a moment."""
        asked = {"query": expression} | ({} if time is None else {"time": str(time)})
        answer = self.get(port, "/api/v1/query", **asked)
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found


def wait_for(what: str, look: Callable[[], Any], *, seconds: float) -> Any:
    """Return what `look` finds as soon as it is something.

    Raises:
        ToolFailed: there is still nothing, and what was said last.
    """
    deadline, said = time.monotonic() + seconds, ""
    while True:
        try:
            if found := look():
                return found
        except (httpx2.HTTPError, ValueError, KeyError) as error:
            said = repr(error)
        if time.monotonic() > deadline:
            raise ToolFailed(f"{what}: not within {seconds:.0f} s", cause=said)
        time.sleep(1.0)


def health(containers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return service -> healthy, starting, unhealthy; its state if it has no check; done."""
    found = {}
    for name, one in containers.items():
        state = one["State"]
        found[name] = state.get("Health", {}).get("Status", state["Status"])
        ends = one["HostConfig"]["RestartPolicy"]["Name"] in {"no", ""}
        if ends and state["Status"] == "exited" and state["ExitCode"] == 0:
            found[name] = "done"
    return found


def labelled(found: Sequence[Mapping[str, Any]], label: str) -> set[str]:
    """Return the values of a label among series."""
    return {one["metric"].get(label, "") for one in found}
