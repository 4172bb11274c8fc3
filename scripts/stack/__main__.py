"""Run `pvebench serve` in the foreground, together with Prometheus, node_exporter and Grafana.

honcho runs these three; its output goes to STATE/log/stack.log. All programs listen on 127.0.0.1,
keep their files in STATE and stop with pvebench, however it ends. The exit code is that of
pvebench; 3 if a program is missing, 4 if STATE is in use.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from measure import measure
from ports import check_ports
from processes import Stack, claimed, end_marked, interruptible, marks, report_leftovers
from services import (
    HOST,
    Layout,
    Service,
    announce,
    grafana,
    node_exporter,
    prometheus,
    write_prometheus_config,
)

from pvebench.diagnostics.check import memory_warning
from pvebench.errors import MachineError, PvebenchError


def main(arguments: Sequence[str]) -> int:
    """Run all services until pvebench ends; return the exit code."""
    options = parse(arguments)
    layout = Layout(options.state.absolute())
    try:
        with interruptible(), claimed(layout):
            return run(options, layout)
    except PvebenchError as error:
        print(f"pvebench: {error}", file=sys.stderr)
        return error.exit_code


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; arguments after `--` are passed to pvebench."""
    parser = argparse.ArgumentParser(prog="scripts/run")
    parser.add_argument("--pack", action="append", default=[], metavar="FILE")
    parser.add_argument("--state", type=Path, default=Path(".state"))
    parser.add_argument("--cycles", type=int)
    parser.add_argument("--exporter-port", type=port_number, default=10620)
    parser.add_argument("--prometheus-port", type=port_number, default=9690)
    parser.add_argument("--node-exporter-port", type=port_number, default=9691)
    parser.add_argument("--grafana-port", type=port_number, default=9692)
    parser.add_argument("more", nargs="*", metavar="-- OPTION OF pvebench serve")
    return parser.parse_args(arguments)


def port_number(text: str) -> int:
    """Return the port that `text` names; argparse turns a ValueError into its message."""
    number = int(text)
    if not 0 < number < 1 << 16:
        raise argparse.ArgumentTypeError(f"invalid port {text}; use 1 to 65535")
    return number


def run(options: argparse.Namespace, layout: Layout) -> int:
    """Start the services, then pvebench; stop the services when it ends."""
    exporter = Service("pvebench", options.exporter_port, "EXPORTER_PORT")
    services = [prometheus(options, layout), node_exporter(options, layout)]
    grafana_service = grafana(options, layout)
    if grafana_service is not None:
        services.append(grafana_service)
    report_leftovers(end_marked(marks(layout)))
    check_ports([exporter, *services])
    if code := refused(options, layout):
        return code
    write_prometheus_config(layout, exporter, services[1])
    announce(exporter, services, layout)
    with Stack(layout, services) as stack:
        stack.start()
        stack.wait_ready(services[0].port)
        return measure(pvebench_command(options, layout), stack, layout)


def refused(options: argparse.Namespace, layout: Layout) -> int:
    """Return the exit code of `pvebench plan` for a state in memory, which is rarely accepted."""
    if os.environ.get("PVEBENCH_COMMAND") or not memory_warning(layout.state):
        return 0
    command = [str(Path(sys.executable).with_name("pvebench")), "plan"]
    for pack in options.pack:
        command += ["--pack", pack]
    planned = [*command, "--state", str(layout.state), *options.more]
    code = subprocess.run(planned, stdout=subprocess.DEVNULL, check=False).returncode
    return code if code == MachineError.exit_code else 0


def pvebench_command(options: argparse.Namespace, layout: Layout) -> list[str]:
    """Return the foreground command; tests replace it with PVEBENCH_COMMAND."""
    command = shlex.split(os.environ.get("PVEBENCH_COMMAND", ""))
    command = command or [str(Path(sys.executable).with_name("pvebench"))]
    command += ["serve", "--state", str(layout.state)]
    command += ["--listen", f"{HOST}:{options.exporter_port}"]
    for pack in options.pack:
        command += ["--pack", pack]
    if options.cycles is not None:
        command += ["--cycles", str(options.cycles)]
    return [*command, *options.more]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
