"""Fill a store with a simulated year, put its past into Prometheus, and open the stack on it.

With --check every query of every dashboard is asked instead of opening it, and the empty ones
are printed.
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

from panels import print_empty
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
"""Held values are repeated so rarely that a year is filled in some minutes …"""
GO_ON_SECONDS: Final = 3600.0
"""How old the end of a year may be that is gone on with: the last hour would be a gap."""
LOOK_BACK: Final = "--query.lookback-delta=490m"
"""… so Prometheus must look back further than its usual five minutes, here and only here."""


def main(arguments: Sequence[str]) -> int:
    """Fill and show until Ctrl-C, or check; return the exit code."""
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
    """Start the services on the filled store, then show or check."""
    exporter = Service("pvebench", options.exporter_port, "EXPORTER_PORT")
    services = [prometheus(options, layout, LOOK_BACK), node_exporter(options, layout)]
    found_grafana = None if options.check else grafana(options, layout)
    if found_grafana is not None:
        services.append(found_grafana)
    report_leftovers(end_marked(marks(layout)))
    check_ports([exporter, *services])
    begun = time.monotonic()
    fill(layout, f"{HOST}:{exporter.port}")
    # Filling takes minutes, in which somebody else may have come.
    check_ports([exporter, *services])
    write_prometheus_config(layout, exporter, services[1])
    with showing(layout, exporter) as shown, Stack(layout, services) as stack:
        stack.wait_ready(services[0].port)
        announce(exporter, services)
        print(f"filled in {time.monotonic() - begun:.0f} s; every number is simulated")
        sys.stdout.flush()
        if options.check:
            return print_empty(f"http://{HOST}:{options.prometheus_port}")
        return shown.wait()


class Filling:
    """How far an earlier filling came, in a file: a filling that is interrupted is gone on with.

    There is one from when the year is simulated until all of it is in Prometheus.
    """

    def __init__(self, layout: Layout, instance: str) -> None:
        self._store = layout.state / "simulated" / "pvebench.db"
        self._path = layout.state / "filling.json"
        pack = hashlib.sha256(Path(PACK).read_bytes()).hexdigest()
        self._of = {"instance": instance, "pack": pack, "version": __version__}

    def read(self) -> dict[str, float] | None:
        """Return `end` of the year and `begin` of what is not in Prometheus yet, if it fits."""
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
        """Keep both, whole or not at all."""
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._of | {"end": end, "begin": begin}), "utf-8")
        part.replace(self._path)

    def forget(self) -> None:
        """All is filled, or begins anew."""
        self._path.unlink(missing_ok=True)


def fill(layout: Layout, instance: str) -> None:
    """Make the store and Prometheus' blocks anew: a year that ends now.

    What an interrupted filling has made within the last hour is taken over.

    Raises:
        ToolFailed: a step did not work; its output says why.
    """
    data, past = layout.prometheus / "data", layout.state / "past"
    filling = Filling(layout, instance)
    known = filling.read()
    # Half-written files of the export; what was in Prometheus stays.
    shutil.rmtree(past, ignore_errors=True)
    if known is None:
        filling.forget()
        simulate(layout, data)
        known = {"end": time.time(), "begin": 0.0}
        filling.write(**known)
    else:
        print("going on with the year that was being filled …", flush=True)
    print("putting it into Prometheus …", flush=True)
    with exporting(layout, instance, known) as export:
        try:
            # In their order, and none after one that failed: what is left to do stays one stretch.
            for path in arriving(past, export):
                backfill(path, data)
                # It is named after where it begins; the next one begins later.
                filling.write(end=known["end"], begin=float(path.stem) + 1)
                path.unlink()
        except BaseException:
            export.terminate()
            raise
    if export.returncode != 0:
        raise ToolFailed("the simulated year could not be exported")
    shutil.rmtree(past)
    filling.forget()


def simulate(layout: Layout, data: Path) -> None:
    """Make the store anew, and Prometheus empty."""
    # Only what a demo makes: another instance's results must never be in its way.
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
    """Start what writes the past as files, from `begin` to `end`."""
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
    """Yield each finished file as it comes, until the process that writes them has ended."""
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
    """Turn one file into a block."""
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
        ToolFailed: it did not work.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolFailed(
            f"{Path(command[0]).name} {command[1]} failed with exit code {done.returncode}",
            cause=(done.stderr or done.stdout).strip()[-2000:],
        )


@contextmanager
def showing(layout: Layout, exporter: Service) -> Iterator[subprocess.Popen[bytes]]:
    """Run the exporter of the simulated store while inside."""
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
