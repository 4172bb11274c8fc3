"""Numbered records that a guest writes to test disks, to see which of them survive.

Each disk has one kind of synchronization, because a flush covers all earlier writes of its disk.
The caller has the record of completed writes, outside the VM.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.model.durability import Barrier, Survival, Touch
from pvebench.model.guest import Completed, Guest
from pvebench.model.scenario import Scenario
from pvebench.model.units import KIB

RECORD: Final = 4 * KIB
RECORDS: Final = 16
"""Records per kind, as many as in the first measurement of the effect."""
DISTANCE: Final = 512 * KIB
"""Between records, so that each has its own cluster and table entry."""
SIZE: Final = 4 * RECORDS * DISTANCE
IN_FLIGHT_SECONDS: Final = 0.5
"""Time for which the guest writes on before its end."""
_PLACES: Final = {Touch.FIRST: range(RECORDS), Touch.REWRITE: range(RECORDS, 2 * RECORDS)}
_BOTH: Final = range(2 * RECORDS)
_LATE: Final = range(2 * RECORDS, 3 * RECORDS)
"""Places of the last writes, which no flush covers."""
PLACES: Final = (*_BOTH, *_LATE)
"""All places of a disk, in units of `DISTANCE`."""
_FOLDER: Final = "/run/pvebench/records"
"""In the guest's memory."""
_RUN_SECONDS: Final = 300.0

Read = Callable[[int], bytes]
"""Place -> the block there."""


def record(place: int, generation: int) -> bytes:
    """Return a numbered record; its first line determines the rest, so that it has a checksum."""
    head = f"pvebench place {place} generation {generation}\n".encode()
    return head + hashlib.shake_256(head).digest(RECORD - len(head))


def _content_path(places: Sequence[int], generation: int) -> str:
    """Return the path of such records in the guest's memory."""
    return f"{_FOLDER}/{places[0]}-{places[-1]}.{generation}"


def run_script(guest: Guest, script: str, stdin: bytes = b"") -> Completed:
    """Run a shell script in the guest. Raises as `Guest.run`."""
    return guest.run(["/bin/busybox", "sh", "-c", script], stdin=stdin, timeout=_RUN_SECONDS)


def unpack_records(guest: Guest) -> None:
    """Put all records into the guest's memory, before any is written. Raises ToolFailed."""
    for places, generation in ((_PLACES[Touch.REWRITE], 0), (_BOTH, 1), (_LATE, 0), (_LATE, 1)):
        path = _content_path(places, generation)
        records = (record(place, generation).ljust(DISTANCE, b"\0") for place in places)
        packed = gzip.compress(b"".join(records))
        script = f"mkdir -p {_FOLDER} && gunzip >{path}"
        _checked(run_script(guest, script, stdin=packed), path)


def _checked(done: Completed, what: str) -> Completed:
    if done.exit_code:
        raise ToolFailed(f"{what} failed in the guest: {done.stderr.decode()[-200:]}")
    return done


@dataclass(frozen=True)
class RecordScenario(Scenario):
    """Scenario with a volume of its own, although others have the same options."""

    number: int = 0

    @cached_property
    def volume(self) -> str:
        """Name of its volume."""
        return f"durability{self.number}.{self.disk.format}"


@dataclass(kw_only=True)
class RecordDisk:
    """A test disk with records.

    Attributes:
        sync: how the guest synchronizes its writes; None: they are flushed, and the last writes,
            which are not, are judged, too.
    """

    sync: Barrier | None

    def write(self, guest: Guest, device: str) -> None:
        """Write all records; return when the guest's kernel has completed them."""
        writes = [
            (_PLACES[Touch.REWRITE], 0, Barrier.FLUSH),
            (_BOTH, 1, self.sync or Barrier.FLUSH),
        ]
        # A place that was never written could have any content on thick volumes.
        writes += [(_LATE, 0, Barrier.NONE)]
        commands = [" ".join(_command(device, *write)) for write in writes]
        _checked(run_script(guest, " && ".join(commands)), "a write to the test disk")

    def keep_writing(self, guest: Guest, device: str) -> None:
        """Start to write two generations in turn, until QEMU is killed."""
        turns = "; ".join(" ".join(_command(device, _LATE, old, Barrier.NONE)) for old in (0, 1))
        guest.start(["/bin/busybox", "sh", "-c", f"while :; do {turns}; done 2>/dev/null"])

    def survived(self, found: Read, sync: Barrier, touch: Touch) -> Survival:
        """Return how many records of one kind have the newest completed content."""
        late = self.sync is None and sync is Barrier.NONE
        places, newest = (_LATE, 0) if late else (_PLACES[touch], 1)
        count = sum(found(place) == record(place, newest) for place in places)
        return Survival(sync=sync, touch=touch, written=len(places), found=count)

    def torn(self, found: Read) -> int:
        """Return how many blocks have neither a complete record nor their first content."""
        return sum(
            found(place) not in (bytes(RECORD), record(place, 0), record(place, 1))
            for place in PLACES
        )


def read_blocks(guest: Guest, device: str) -> Read:
    """Return the blocks of a disk, read by the guest. Raises ToolFailed, OutputUnreadable."""
    path = f"{_FOLDER}/blocks"
    script = (
        f"for i in $(seq 0 {PLACES[-1]}); do /bin/dd if={device} bs={RECORD} "
        f"skip=$((i * {DISTANCE // RECORD})) count=1 iflag=direct status=none; done >{path}"
    )
    _checked(run_script(guest, f"set -e; mkdir -p {_FOLDER}; {script}"), f"reading {device}")
    content = guest.read_file(path)
    if len(content) != RECORD * len(PLACES):
        raise OutputUnreadable(f"the guest read {len(content)} bytes of {device}")
    return lambda place: content[place * RECORD : (place + 1) * RECORD]


def _command(device: str, places: Sequence[int], generation: int, sync: Barrier) -> list[str]:
    """Return dd's command line: with conv=sparse, it skips the zeros between records."""
    direct = "direct,dsync" if sync is Barrier.FUA else "direct"
    flush = ",fsync" if sync is Barrier.FLUSH else ""
    first = places[0] * DISTANCE // RECORD
    words = [f"if={_content_path(places, generation)}", f"of={device}", f"bs={RECORD}"]
    words += [f"seek={first}", f"oflag={direct}", f"conv=sparse,notrunc{flush}"]
    return ["/bin/dd", *words, "status=none"]
