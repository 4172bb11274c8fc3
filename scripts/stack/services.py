"""The services of the stack: arguments, ports and files."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pvebench.errors import NotWritable, ToolsMissing

REPOSITORY: Final = Path(__file__).resolve().parents[2]
HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Service:
    """One program of the stack.

    Attributes:
        name: display name, also in the log.
        port: port to listen on.
        variable: make variable of the port.
        command: command to run. Empty: not run by honcho.
        mark: argument of `command` that identifies this process on the machine.
        environment: additional environment variables.
    """

    name: str
    port: int
    variable: str
    command: tuple[str, ...] = ()
    mark: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths in the state directory."""

    state: Path

    @property
    def run(self) -> Path:
        """Directory for runtime files, including the sockets of pvebench."""
        return self.state / "run"

    @property
    def procfile(self) -> Path:
        """Procfile for honcho."""
        return self.run / "Procfile"

    @property
    def log(self) -> Path:
        """Output of all services except pvebench."""
        return self.state / "log" / "stack.log"

    @property
    def prometheus(self) -> Path:
        """Prometheus' configuration and data."""
        return self.state / "prometheus"

    def make(self) -> None:
        """Create the directories.

        Raises:
            NotWritable: creating one of them failed.
        """
        try:
            for path in (self.log.parent, self.prometheus / "data", self.state / "node_exporter"):
                path.mkdir(parents=True, exist_ok=True)
            self.run.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise NotWritable(
                f"state directory {self.state} cannot be written: {error.strerror}",
                next_step="choose another directory: make run STATE=…",
            ) from error


def prometheus(options: argparse.Namespace, layout: Layout, *more: str) -> Service:
    """Return Prometheus, with its data in the state directory and further arguments."""
    mark = f"--storage.tsdb.path={layout.prometheus / 'data'}"
    command = (
        find_program("prometheus"),
        f"--config.file={layout.prometheus / 'config' / 'prometheus.yml'}",
        mark,
        # Long enough to see last year's upgrade; a full matrix takes some GB.
        "--storage.tsdb.retention.time=2y",
        f"--web.listen-address={HOST}:{options.prometheus_port}",
        *more,
    )
    return Service("Prometheus", options.prometheus_port, "PROMETHEUS_PORT", command, mark)


def node_exporter(options: argparse.Namespace, layout: Layout) -> Service:
    """Return node_exporter; its textfile directory only identifies the process."""
    mark = f"--collector.textfile.directory={layout.state / 'node_exporter'}"
    command = (
        find_program("prometheus-node-exporter", "node_exporter"),
        mark,
        # It lists every collector at each start, which would hide relevant lines at the log's end.
        "--log.level=warn",
        f"--web.listen-address={HOST}:{options.node_exporter_port}",
    )
    port = options.node_exporter_port
    return Service("node_exporter", port, "NODE_EXPORTER_PORT", command, mark)


def grafana(options: argparse.Namespace, layout: Layout) -> Service | None:
    """Return Grafana with this repository's dashboards; None if it is not installed."""
    program = which("grafana", "grafana-server")
    if program is None:
        return None
    packaged = Path("/usr/share/grafana")
    home = packaged if packaged.is_dir() else Path(program).resolve().parents[1]
    mark = f"cfg:default.paths.data={layout.state / 'grafana'}"
    server = ("server",) if Path(program).name == "grafana" else ()
    command = (program, *server, f"--homepath={home}", mark)
    environment = {
        "PVEBENCH_PROMETHEUS_URL": f"http://{HOST}:{options.prometheus_port}",
        "PVEBENCH_DASHBOARDS": str(REPOSITORY / "grafana" / "dashboards"),
        "GF_PATHS_LOGS": str(layout.state / "grafana" / "log"),
        "GF_PATHS_PLUGINS": str(layout.state / "grafana" / "plugins"),
        "GF_PATHS_PROVISIONING": str(REPOSITORY / "grafana" / "provisioning"),
        "GF_SERVER_HTTP_ADDR": HOST,
        "GF_SERVER_HTTP_PORT": str(options.grafana_port),
        # Viewing needs no login, and the well-known default password is disabled.
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_AUTH_BASIC_ENABLED": "false",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        # No external requests.
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "GF_NEWS_NEWS_FEED_ENABLED": "false",
        "GF_PLUGINS_PREINSTALL_DISABLED": "true",
        "GF_PLUGINS_PUBLIC_KEY_RETRIEVAL_DISABLED": "true",
        "GF_SECURITY_DISABLE_GRAVATAR": "true",
    }
    return Service("Grafana", options.grafana_port, "GRAFANA_PORT", command, mark, environment)


def which(*names: str) -> str | None:
    """Return the path of the first installed program, also in the usual directories of daemons."""
    path = os.pathsep.join(
        [os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/share/grafana/bin"]
    )
    return next((program for name in names if (program := shutil.which(name, path=path))), None)


def find_program(*names: str) -> str:
    """Return the path of the first installed program.

    Raises:
        ToolsMissing: none is installed.
    """
    program = which(*names)
    if program is None:
        raise ToolsMissing(
            f"{' or '.join(names)} is not installed",
            next_step="run make run, which installs it or prints the command",
        )
    return program


def write_prometheus_config(layout: Layout, exporter: Service, node: Service) -> None:
    """Copy this repository's configuration and write the targets of this run."""
    config = layout.prometheus / "config"
    # A rule file that was removed from the repository must not stay active.
    shutil.rmtree(config, ignore_errors=True)
    (config / "targets").mkdir(parents=True)
    shutil.copyfile(REPOSITORY / "prometheus" / "prometheus.yml", config / "prometheus.yml")
    shutil.copytree(REPOSITORY / "prometheus" / "rules", config / "rules")
    (config / "targets" / "alertmanager.yml").write_text("[]\n", "utf-8")
    for name, service in (("pvebench", exporter), ("node", node)):
        target = f'- targets: ["{HOST}:{service.port}"]\n'
        (config / "targets" / f"{name}.yml").write_text(target, "utf-8")


def announce(exporter: Service, services: Sequence[Service], layout: Layout) -> None:
    """Print the addresses of all services, and the directory of the results."""
    for service in (exporter, *services):
        print(f"{service.name:14} http://{HOST}:{service.port}")
    if not any(service.name == "Grafana" for service in services):
        print("Grafana        not installed; to see the dashboards, install it and start again,")
        print("               or use the compose stack, which includes it")
    print(f"results in     {layout.state}")
    sys.stdout.flush()
