"""Killing a real pvebench and what it measures with at random moments; what is left then?"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pvebench.model.run import Outcome
from testing.containers import left_of, losetup, text
from testing.crash_copies import RealCopies
from testing.real_outcomes import MEASURED
from testing.stores import TemporaryStore

END_SECONDS = 600.0


@dataclass
class Report:
    """What the moments came to."""

    moments: int = 0
    victims: Counter[str] = field(default_factory=Counter)
    there: Counter[str] = field(default_factory=Counter)
    copies: int = 0
    reported: int = 0
    stored: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        victims = ", ".join(f"{name} {count}" for name, count in sorted(self.victims.items()))
        shown = ", ".join(f"{count} {name}" for name, count in self.outcomes.most_common())
        there = ", ".join(f"{name} {count}" for name, count in sorted(self.there.items()))
        return (
            f"{self.moments} moments (killed: {victims}; {self.copies} copies started or "
            f"restored; in operations: {there}); {self.reported} runs were reported, "
            f"{self.stored} are stored ({shown}); {len(self.wrong)} rules broken"
        )


class CrashTest:
    """One state directory, and a pvebench that is killed in it again and again."""

    def __init__(self, directory: Path, config: Path, *, victims: Sequence[str], seed: int) -> None:
        self._directory = directory
        self._config = config
        self._victims = victims
        self._rng = random.Random(f"crash/{seed}")
        self._state = directory / "state"
        self._cycle_seconds = 0.0
        self.report = Report()

    def play(self, moments: int, *, within_seconds: float = 0.0) -> Report:
        """Run one whole cycle, then kill at `moments`, then run a whole one again.

        Args:
            within_seconds: the moments are not later than that in a cycle; 0: all of the first,
                which is not run otherwise.
        """
        begun = time.monotonic()
        if not within_seconds:
            self._whole_cycle("before any crash")
        self._cycle_seconds = within_seconds or time.monotonic() - begun
        for _ in range(moments):
            self._one_moment()
        self._whole_cycle("after all crashes")
        self._look_at_store()
        return self.report

    def _one_moment(self) -> None:
        victim = self._rng.choice(self._victims)
        delay = self._rng.uniform(0.1, self._cycle_seconds)
        self.report.moments += 1
        self.report.victims[victim] += 1
        self._choose()
        with self._running() as process:
            self._wait(process, delay)
            when = f"moment {self.report.moments} ({victim} after {delay:.2f} s)"
            self._beside(process, when)
            self._strike(victim, process)
            code = process.wait(END_SECONDS)
        if code not in (0, 9, -signal.SIGKILL):
            self.report.wrong.append(f"{when}: pvebench ended with status {code}")
        self._after(when)
        self._undo()
        self._look_around(when)

    def _choose(self) -> None:
        """Choose what the next moment is about."""

    def _wait(self, process: subprocess.Popen[bytes], delay: float) -> None:
        """Wait for the moment."""
        deadline = time.monotonic() + delay
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)

    def _beside(self, process: subprocess.Popen[bytes], when: str) -> None:
        """Do something to its state directory, before it is killed."""

    def _after(self, when: str) -> None:
        """Do something to its state directory, after it was killed."""

    def _strike(self, victim: str, process: subprocess.Popen[bytes]) -> None:
        """Kill what is to be killed."""
        raise NotImplementedError

    def _left(self) -> Iterator[str]:
        """Yield what is left of what was measured with, while nothing runs."""
        raise NotImplementedError

    def _whole_cycle(self, when: str) -> None:
        with self._running() as process:
            code = process.wait(END_SECONDS)
        if code not in (0, 9):  # 9: measured, but nothing to publish, as when it is implausible
            self.report.wrong.append(f"{when}: the cycle ended with status {code}")
        self._look_around(when)

    @contextlib.contextmanager
    def _running(self) -> Iterator[subprocess.Popen[bytes]]:
        said = self._directory / "stdout"
        with (
            said.open("wb") as out,
            (self._directory / "stderr").open("ab") as errors,
            subprocess.Popen(self._command("run"), stdout=out, stderr=errors) as process,
        ):
            yield process
        self.report.reported += len(re.findall(r"^\[\d+/\d+\] ", said.read_text(), re.MULTILINE))

    def _command(self, name: str) -> list[str]:
        return [sys.executable, "-m", "pvebench", name, "--config", str(self._config)]

    def _undo(self) -> None:
        done = subprocess.run(self._command("cleanup"), capture_output=True, text=True, check=False)
        if done.returncode:
            self.report.wrong.append(f"undo failed: {done.stderr}")

    def _look_around(self, when: str) -> None:
        self.report.wrong += [f"{thing} is left after {when}" for thing in self._left()]

    def _look_at_store(self) -> None:
        store = TemporaryStore(self._state / "pvebench.db", simulated=False)
        runs = store.runs(limit=100_000)
        report = self.report
        report.stored = len(runs)
        report.outcomes.update(str(run.outcome) for run in runs)
        # Told after it is stored: each death may fall between the two, once.
        if not report.reported <= report.stored <= report.reported + report.moments:
            report.wrong.append(f"{report.reported} runs were reported, {report.stored} are stored")
        if len({run.uid for run in runs}) != len(runs):
            report.wrong.append("a run is stored twice")
        if runs[0].outcome not in MEASURED:
            report.wrong.append(f"the cycle after all crashes was {runs[0].outcome}")
        if store.journal.pending():
            report.wrong.append(f"the journal is not empty: {store.journal.pending()}")
        for run in runs:
            if run.outcome is Outcome.OK:
                self._look_at_label(store.evidence(run.number), run.definition.options)
        store.close()

    def _look_at_label(self, evidence: dict[str, str], options: dict[str, str]) -> None:
        effective = json.loads(evidence["effective"])
        for key in ("bus", "format", "cache"):
            if effective[key] != options[key]:
                self.report.wrong.append(f"{key} {effective[key]} is labelled {options[key]}")
        in_file = "filename=/mnt/test/" in evidence["job.fio"]
        if in_file != (options["filesystem"] != "none"):
            self.report.wrong.append("a run used a file without a filesystem, or the reverse")


def kill(pids: Iterable[int]) -> None:
    """Kill processes that may have ended by now."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


PACK = """\
pack: crash
title: A file and a loop device, snapshots and backups
every: 10m
axes:
  storage: [{storages}]
  bus: [virtio]
fixed: {{format: qcow2, cache: none, filesystem: ext4}}
variants: [{{filesystem: none, chain: 2}}]
volume: {{size: 16M, file: 8M}}
measure: {{ramp: 5s, runtime: 10s, settle: 0s, scale: 0.1}}
workloads:
  - fio: {{rw: randrw, bs: 4k, iodepth: 4}}
  - fio: {{rw: randwrite, bs: 4k, touch: first}}
  - fio: {{rw: randwrite, bs: 4k, during: backup-fleecing, target_rate: 8M}}
"""
MORE_OPERATIONS = """\
  - fio: {rw: randwrite, bs: 4k, during: [restore, snapshot-ram], target_rate: 8M}
  - fio: {rw: randwrite, bs: 4k, during: neighbor}
"""
OPERATIONS = """\
pack: crash
title: One operation on one disk
every: 10m
axes:
  storage: [files]
  bus: [virtio]
fixed: {{format: qcow2, cache: none}}
volume: {{size: 16M}}
measure: {{ramp: 2s, runtime: 30s, settle: 0s, scale: 0.1}}
workloads:
  - fio: {{rw: randwrite, bs: 4k, during: {operation}}}
"""
OPERATION_MARKS = {
    "backup": ".target",
    "backup-fleecing": ".fleece",
    "move": ".target",
    "restore": ".archive",
    "snapshot": ".overlay",
    "snapshot-ram": ".memory",
    "delete-snapshot": ".overlay",
    "neighbor": "-vm2-",
}
"""Operation -> what is in the name of a file that it has on the storage."""
OPERATION_SECONDS = 4.0
"""Latest kill after such a file exists, seconds: later than the end of the run."""
VICTIMS = ("pvebench", "qemu", "both")
CONTAINER = "container"


class LabCrashTest(CrashTest):
    """Of the local lab: VMs of its own and, as root, loop devices and containers."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        containers: bool = False,
        loops: bool = True,
        copied: float = 0.0,
        every_operation: bool = False,
        operations_only: bool = False,
    ) -> None:
        """Create its settings and pack.

        Args:
            copied: share of the moments at which the state directory is copied, too.
            operations_only: each run has an operation, and its disk is a file.
        """
        self._copied = copied
        self._operation = "backup" if operations_only else ""
        loops = loops and os.geteuid() == 0 and Path("/dev/loop-control").exists()
        storages = {"files": "dir"} | ({"loops": "loop"} if loops else {})
        for name in storages:
            (directory / name).mkdir(exist_ok=True)
        lines = [f"  {name}: {{kind: {kind}, path: {name}}}" for name, kind in storages.items()]
        config = directory / "pvebench.yaml"
        config.write_text(
            "state: state\npacks: [crash.yaml]\nnode: lab\nstorages:\n" + "\n".join(lines) + "\n"
        )
        pack = PACK.format(storages=", ".join(storages)) + MORE_OPERATIONS * every_operation
        pack = OPERATIONS.format(operation=self._operation) if operations_only else pack
        (directory / "crash.yaml").write_text(pack + "lxc: true\n" * containers)
        victims = (*VICTIMS, CONTAINER) if containers else VICTIMS
        super().__init__(directory, config, victims=victims, seed=seed)
        self._copies = RealCopies(directory, config, self.report.wrong)

    def _beside(self, process: subprocess.Popen[bytes], when: str) -> None:
        if self._rng.random() < self._copied:
            self._copies.start_beside(process, when)

    def _after(self, when: str) -> None:
        self._copies.restore_older(when)
        self.report.copies = self._copies.acts

    def _choose(self) -> None:
        if self._operation:
            self._operation = self._rng.choice([*OPERATION_MARKS])
            pack = OPERATIONS.format(operation=self._operation)
            (self._directory / "crash.yaml").write_text(pack)

    def _wait(self, process: subprocess.Popen[bytes], delay: float) -> None:
        while self._operation and process.poll() is None and not self._operates():
            time.sleep(0.01)
        super()._wait(process, delay)

    def _operates(self) -> bool:
        """Return whether a file of the chosen operation is on the storage."""
        files = (self._directory / "files").iterdir()
        return any(OPERATION_MARKS[self._operation] in path.name for path in files)

    def _strike(self, victim: str, process: subprocess.Popen[bytes]) -> None:
        if self._operation and self._operates():
            self.report.there[self._operation] += 1
        if victim in ("pvebench", "both"):
            process.kill()
        if victim != "pvebench":
            kill(self._inside() if victim == CONTAINER else self._qemus())

    def _qemus(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                here = str((entry / "cwd").readlink())
                if here.startswith(str(self._state)) and entry.name.isdigit():
                    found.append(int(entry.name))
        return found

    def _owner(self) -> str:
        return (self._state / "instance").read_text("ascii").split()[0]

    def _inside(self) -> list[int]:
        """Return what runs in a container of this instance."""
        expected = f"lxc.payload.pvebench-test-{self._owner()}"
        groups = Path("/proc").glob("[0-9]*/cgroup")
        return [int(path.parent.name) for path in groups if expected in text(path)]

    def _left(self) -> Iterator[str]:
        """Yield every QEMU, volume, socket, mount and lock that is left."""
        yield from (f"process {pid}" for pid in self._qemus())
        for name in ("files", "loops", "state/run"):
            directory = self._directory / name
            if directory.exists():
                yield from map(str, directory.iterdir())
        if str(self._directory) in losetup():
            yield "a loop device"
        if str(self._directory) in Path("/proc/mounts").read_text():
            yield "a mount"
        yield from left_of(self._owner())
