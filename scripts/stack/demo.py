"""Simulate a year of results, import its metrics into Prometheus, and start the stack with it.

With --check, run every query of every dashboard instead, and print the empty panels.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ports import check_ports
from processes import Stack, answers, claimed, end_marked, interruptible, marks, report_leftovers
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
"""Sample interval of constant values: long, so that filling a year takes only a minute."""
GO_ON_SECONDS: Final = 3600.0
"""Maximum age of an interrupted import to continue: the time since its end becomes a gap."""
NEWEST_DAYS: Final = 92.0
"""Days before the end whose results are in Prometheus before it starts; the others follow."""
DAY_SECONDS: Final = 86400.0
YEAR_SECONDS: Final = 365 * DAY_SECONDS
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
        ("exporter", 10620),
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
    with filled(layout, f"{HOST}:{exporter.port}") as filling, showing(layout, exporter) as shown:
        filling.import_files(until_days=365.0 if options.check else NEWEST_DAYS)
        # Filling takes a minute, in which another process may have taken a port.
        check_ports(services)
        write_prometheus_config(layout, exporter, services[1])
        with Stack(layout, services) as stack:
            stack.start()
            stack.wait_ready(services[0].port)
            wait_for_page(shown, exporter.port)
            announce(exporter, services, layout)
            print(f"database in    {layout.state}/simulated, which commands need as --state")
            print("               to remove it and the data of Prometheus: make clean ALL=1")
            print(f"ready after {time.monotonic() - begun:.0f} s; all results are simulated")
            sys.stdout.flush()
            if options.check:
                # In a process of its own: only the check needs the libraries of the tests.
                panels = Path(__file__).with_name("panels.py")
                address = f"http://{HOST}:{options.prometheus_port}"
                return subprocess.run([sys.executable, panels, address], check=False).returncode
            filling.import_rest()
            return shown.wait()


def wait_for_page(shown: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the exporter has judged the year and answers.

    Raises:
        ToolFailed: it ended.
    """
    while not answers(port):
        if shown.poll() is not None:
            raise ToolFailed(f"the demo's exporter ended with exit code {shown.returncode}")
        time.sleep(0.2)


def note_of(layout: Layout) -> Path:
    """Return the file of the progress as a sentence, which the page shows."""
    return layout.state / "note.txt"


class Progress:
    """Progress of an import, in a file, so that an interrupted import can be continued.

    The file exists from the simulation of the year until all of it is in Prometheus.
    """

    def __init__(self, layout: Layout, instance: str) -> None:
        self._store = layout.state / "simulated" / "pvebench.db"
        self._path = layout.state / "filling.json"
        self.note = note_of(layout)
        pack = hashlib.sha256(Path(PACK).read_bytes()).hexdigest()
        self._of = {"instance": instance, "pack": pack, "version": __version__}

    def read(self) -> dict[str, float] | None:
        """Return `end` of the year and of the missing samples (`before`); None: start again."""
        try:
            known = json.loads(self._path.read_text("utf-8"))
            end, before = float(known["end"]), float(known["before"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        fits = {key: known.get(key) for key in self._of} == self._of
        fresh = 0 <= time.time() - end < GO_ON_SECONDS
        whole = fits and fresh and self._store.is_file()
        return {"end": end, "before": before} if whole else None

    def write(self, *, end: float, before: float) -> None:
        """Write both atomically."""
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._of | {"end": end, "before": before}), "utf-8")
        part.replace(self._path)

    def show(self, text: str) -> None:
        """Print the progress, and show it on the page until the import is complete."""
        print(text, flush=True)
        part = self.note.with_suffix(".part")
        part.write_text(text, "utf-8")
        part.replace(self.note)

    def forget(self) -> None:
        """Remove the progress: the import is complete or starts again."""
        self._path.unlink(missing_ok=True)


class Filling:
    """Import of the exported files into Prometheus, newest first."""

    def __init__(
        self,
        layout: Layout,
        progress: Progress,
        known: Mapping[str, float],
        export: subprocess.Popen[bytes],
    ) -> None:
        self._data, self._past = layout.prometheus / "data", layout.state / "past"
        self._progress, self._end = progress, known["end"]
        self._begun = self._before = known["before"]
        self._started = time.monotonic()
        self._seen: set[Path] = set()
        self._export = export

    def import_files(self, *, until_days: float) -> None:
        """Import the files of the newest days, or all that the export writes.

        In order, and none after a failure, so that the missing samples stay one period.

        Raises:
            ToolFailed: a step failed; the error has its output.
        """
        if self._has_newest(until_days):  # an interrupted start has imported them
            return
        for path in arriving(self._past, self._export, self._seen):
            backfill(path, self._data)
            self._before = float(path.stem)
            self._progress.write(end=self._end, before=self._before)
            path.unlink()
            self._progress.show(self._line())
            if self._has_newest(until_days):
                return
        if self._export.wait() != 0:
            raise ToolFailed("exporting the simulated year failed")
        shutil.rmtree(self._past, ignore_errors=True)  # no directory after a complete import
        self._progress.forget()

    def _has_newest(self, days: float) -> bool:
        return 0 < self._before <= self._end - days * DAY_SECONDS

    def import_rest(self) -> None:
        """Import the other files in the background; Prometheus finds the blocks."""

        def work() -> None:
            try:
                self.import_files(until_days=math.inf)
            except (PvebenchError, OSError) as error:
                print(f"pvebench: importing older results failed: {error}", file=sys.stderr)

        threading.Thread(target=work, daemon=True).start()

    def _line(self) -> str:
        """Return the progress, with an estimate once there is one."""
        if not self._before:
            return "Prometheus has the whole year, with its verdicts and alerts."
        oldest = self._end - YEAR_SECONDS
        done = max(1.0, self._begun - self._before)
        left = max(0.0, self._before - oldest) / done * (time.monotonic() - self._started)
        days = min(365.0, (self._end - self._before) / DAY_SECONDS)
        when = f"Prometheus has the newest {days:.0f} of 365 days."
        return f"{when} The others take about {left:.0f} s more, then the verdicts of the past."


@contextmanager
def filled(layout: Layout, instance: str) -> Iterator[Filling]:
    """Create the store, and export it to files within the `with` block: a year that ends now.

    An import that was interrupted within the last hour is continued.

    Raises:
        ToolFailed: a step failed; the error has its output.
    """
    progress = Progress(layout, instance)
    known = progress.read()
    # Incomplete files of the export; the blocks in Prometheus stay.
    shutil.rmtree(layout.state / "past", ignore_errors=True)
    if known is None:
        progress.forget()
        progress.note.unlink(missing_ok=True)
        print("The first page opens after about 90 s on two idle cores.", flush=True)
        simulate(layout, layout.prometheus / "data")
        end = time.time()
        known = {"end": end, "before": end}
        progress.write(**known)
    else:
        print("continuing the interrupted import …", flush=True)
    with exporting(layout, instance, known) as export:
        try:
            yield Filling(layout, progress, known, export)
        finally:
            export.terminate()


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
    """Start the export of past samples to files: those of before `before`, newest first."""
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
        "--before",
        str(known["before"]),
    ]
    return subprocess.Popen(command)


def arriving(directory: Path, process: subprocess.Popen[bytes], seen: set[Path]) -> Iterator[Path]:
    """Yield each finished file, the newest first, until the exporting process has ended."""
    while True:
        ended = process.poll() is not None
        new = sorted(set(directory.glob("*.om")) - seen, key=lambda path: -float(path.stem))[:1]
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
        "--note",
        str(note_of(layout)),
    ]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
