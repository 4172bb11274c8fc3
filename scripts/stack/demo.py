"""Simulate a year of results, import its metrics into Prometheus, and start the stack with it.

With --check, run every query of every dashboard instead, and print the empty panels.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ports import check_ports
from processes import Stack, claimed, end_marked, interruptible, marks, report_leftovers
from services import (
    HOST,
    REPOSITORY,
    Layout,
    Service,
    announce,
    find_program,
    grafana,
    node_exporter,
    prometheus,
    write_prometheus_config,
)

from pvebench import __version__
from pvebench.errors import PvebenchError, ToolFailed

PVEBENCH: Final = str(Path(sys.executable).with_name("pvebench"))
PACK: Final = str(REPOSITORY / "scenarios" / "demo.yaml")
STEP_SECONDS: Final = 8 * 3600
"""Sample interval of constant values: long, so that filling a year takes only minutes."""
GO_ON_SECONDS: Final = 3600.0
"""Maximum age of an interrupted import to continue: the time since its end becomes a gap."""
LOOK_BACK: Final = "--query.lookback-delta=490m"
"""Look-back of Prometheus, longer than its default five minutes because of STEP_SECONDS."""


def main(arguments: Sequence[str]) -> int:
    """Fill and serve until Ctrl-C, or check; return the exit code."""
    options = parse(arguments)
    layout = Layout(options.state.absolute())
    try:
        with interruptible(), claimed(layout):
            return run(options, layout)
    except PvebenchError as error:
        print(f"pvebench: {error}", file=sys.stderr)
        return error.exit_code


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="scripts/demo")
    parser.add_argument("--state", type=Path, default=Path(".state-demo"))
    parser.add_argument("--check", action="store_true")
    for name, port in (
        ("exporter", 9620),
        ("prometheus", 9690),
        ("node-exporter", 9691),
        ("grafana", 9692),
    ):
        parser.add_argument(f"--{name}-port", type=int, default=port)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, layout: Layout) -> int:
    """Start the services with the filled store, then serve or check."""
    exporter = Service("pvebench", options.exporter_port, "EXPORTER_PORT")
    services = [prometheus(options, layout, LOOK_BACK), node_exporter(options, layout)]
    grafana_service = None if options.check else grafana(options, layout)
    if grafana_service is not None:
        services.append(grafana_service)
    report_leftovers(end_marked(marks(layout)))
    check_ports([exporter, *services])
    begun = time.monotonic()
    fill(layout, f"{HOST}:{exporter.port}")
    # Filling takes minutes, in which another process may have taken a port.
    check_ports([exporter, *services])
    write_prometheus_config(layout, exporter, services[1])
    with showing(layout, exporter) as shown, Stack(layout, services) as stack:
        stack.wait_ready(services[0].port)
        announce(exporter, services, layout)
        print(f"filled in {time.monotonic() - begun:.0f} s; all results are simulated")
        sys.stdout.flush()
        if options.check:
            # In a process of its own: only the check needs the libraries of the tests.
            panels = Path(__file__).with_name("panels.py")
            address = f"http://{HOST}:{options.prometheus_port}"
            return subprocess.run([sys.executable, panels, address], check=False).returncode
        return shown.wait()


class Filling:
    """Progress of an import, in a file, so that an interrupted import can be continued.

    The file exists from the simulation of the year until all of it is in Prometheus.
    """

    def __init__(self, layout: Layout, instance: str) -> None:
        self._store = layout.state / "simulated" / "pvebench.db"
        self._path = layout.state / "filling.json"
        pack = hashlib.sha256(Path(PACK).read_bytes()).hexdigest()
        self._of = {"instance": instance, "pack": pack, "version": __version__}

    def read(self) -> dict[str, float] | None:
        """Return `end` of the year and `begin` of the missing samples; None: start again."""
        try:
            known = json.loads(self._path.read_text("utf-8"))
            end, begin = float(known["end"]), float(known["begin"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        fits = {key: known.get(key) for key in self._of} == self._of
        fresh = 0 <= time.time() - end < GO_ON_SECONDS
        whole = fits and fresh and self._store.is_file()
        return {"end": end, "begin": begin} if whole else None

    def write(self, *, end: float, begin: float) -> None:
        """Write both atomically."""
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._of | {"end": end, "begin": begin}), "utf-8")
        part.replace(self._path)

    def forget(self) -> None:
        """Remove the progress: the import is complete or starts again."""
        self._path.unlink(missing_ok=True)


def fill(layout: Layout, instance: str) -> None:
    """Create the store and the blocks of Prometheus: a year that ends now.

    An import that was interrupted within the last hour is continued.

    Raises:
        ToolFailed: a step failed; the error has its output.
    """
    data, past = layout.prometheus / "data", layout.state / "past"
    filling = Filling(layout, instance)
    known = filling.read()
    # Incomplete files of the export; the blocks in Prometheus stay.
    shutil.rmtree(past, ignore_errors=True)
    if known is None:
        filling.forget()
        simulate(layout, data)
        known = {"end": time.time(), "begin": 0.0}
        filling.write(**known)
    else:
        print("continuing the interrupted import …", flush=True)
    print("importing into Prometheus …", flush=True)
    with exporting(layout, instance, known) as export:
        try:
            # In order, and none after a failure, so that the missing samples stay one period.
            for path in arriving(past, export):
                backfill(path, data)
                # A file is named after its start; the next one starts later.
                filling.write(end=known["end"], begin=float(path.stem) + 1)
                path.unlink()
        except BaseException:
            export.terminate()
            raise
    if export.returncode != 0:
        raise ToolFailed("exporting the simulated year failed")
    shutil.rmtree(past)
    filling.forget()


def simulate(layout: Layout, data: Path) -> None:
    """Create the store and empty Prometheus."""
    # Only files of the demo, never the results of another instance.
    for path in (layout.state / "simulated", data):
        shutil.rmtree(path, ignore_errors=True)
    layout.make()
    data.mkdir(parents=True, exist_ok=True)
    print("simulating a year of runs …", flush=True)
    must(
        [
            PVEBENCH,
            "--log.level",
            "error",
            "demo",
            "fill",
            "--state",
            str(layout.state / "simulated"),
            "--pack",
            PACK,
        ]
    )


def exporting(layout: Layout, instance: str, known: Mapping[str, float]) -> subprocess.Popen[bytes]:
    """Start the export of past samples to files, from `begin` to `end`."""
    command = [
        PVEBENCH,
        "demo",
        "export",
        "--state",
        str(layout.state / "simulated"),
        "--pack",
        PACK,
        "--directory",
        str(layout.state / "past"),
        "--instance",
        instance,
        "--step",
        str(STEP_SECONDS),
        "--until",
        str(known["end"]),
        "--from",
        str(known["begin"]),
    ]
    return subprocess.Popen(command)


def arriving(directory: Path, process: subprocess.Popen[bytes]) -> Iterator[Path]:
    """Yield each finished file until the exporting process has ended."""
    seen: set[Path] = set()
    while True:
        ended = process.poll() is not None
        new = sorted(set(directory.glob("*.om")) - seen)
        seen |= set(new)
        yield from new
        if ended and not new:
            return
        if not new:
            time.sleep(0.2)


def backfill(path: Path, data: Path) -> None:
    """Convert one file into a block."""
    must(
        [
            find_program("promtool"),
            "tsdb",
            "create-blocks-from",
            "--max-block-duration=486h",
            "openmetrics",
            str(path),
            str(data),
        ]
    )


def must(command: Sequence[str]) -> None:
    """Run a command.

    Raises:
        ToolFailed: the command failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolFailed(
            f"{Path(command[0]).name} {command[1]} failed with exit code {done.returncode}",
            cause=(done.stderr or done.stdout).strip()[-2000:],
        )


@contextmanager
def showing(layout: Layout, exporter: Service) -> Iterator[subprocess.Popen[bytes]]:
    """Run the exporter of the simulated store within the `with` block."""
    command = [
        PVEBENCH,
        "demo",
        "show",
        "--state",
        str(layout.state / "simulated"),
        "--pack",
        PACK,
        "--listen",
        f"{HOST}:{exporter.port}",
    ]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
