"""Content of the volumes, written by this runner or kept from an earlier start."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from pvebench.model.guest import Guest, Question
from pvebench.model.ports import FillNotes
from pvebench.model.scenario import Layout, Scenario
from pvebench.model.volume import Volume
from pvebench.workloads import Target
from pvebench.workloads.fio import fill_lost

SAMPLES: Final = 64
"""Blocks that prove the content of a kept volume; `SPOT_SAMPLES`: of one that was just written."""
SPOT_SAMPLES: Final = 16
_SECONDS: Final = 60.0
_SCRIPT: Final = """\
i=0
while [ $i -lt $3 ]; do
    dd if="$0" bs=4096 count=1 skip=$(($1 + ($2 - 1) * i / ($3 - 1))) iflag=direct \
        2>/dev/null | tr -d '\\000' | head -c 1
    i=$((i + 1))
done | wc -c
"""
"""For /bin/sh: device, first block, blocks, samples -> number of read blocks with non-zero data."""
_FILLED: Final = Question("filled", ("/bin/sh", "-c", _SCRIPT))


class Top(Enum):
    """Data above the newest snapshot of a volume."""

    EMPTY = auto()
    PART = auto()
    FULL = auto()


class Contents:
    """Content of the volumes, as `Layout.content`. Owned by one runner.

    Args:
        fill_notes: stores it from one start to the next; None: not stored.
    """

    def __init__(self, fill_notes: FillNotes | None) -> None:
        self._notes = fill_notes
        self._known: dict[str, str] = {}
        self._verified: set[str] = set()
        self._tops: dict[str, Top] = {}
        self._cached: set[str] = set()
        """volids of which a fill was read back from the host's page cache only."""

    def top(self, volume: Volume) -> Top | None:
        """Return the data above the newest snapshot; None: the volume has no snapshots."""
        return self._tops.get(volume.volid)

    def snapshots_taken(self, volume: Volume) -> None:
        """Note that the volume has its snapshots and nothing was written since the newest."""
        self._tops[volume.volid] = Top.EMPTY

    def holds(self, volume: Volume, layout: Layout) -> bool:
        """Return whether everything that a scenario may read has been written."""
        return volume.complete or self._known.get(volume.volid) == layout.content

    def renewed(self, volume: Volume) -> None:
        """Note that the volume is new."""
        self._known.pop(volume.volid, None)
        self._tops.pop(volume.volid, None)
        self._verified.add(volume.volid)

    def verify(self, volume: Volume, layout: Layout, guest: Guest, target: Target) -> None:
        """Accept the stored content of a kept volume if it can be proved; once per volume.

        Raises:
            DriverError, WorkloadError: as the guest and the notes.
        """
        if self._notes is None or volume.volid in self._verified:
            return
        self._verified.add(volume.volid)
        if self._notes.content(volume) != layout.content or not _can_be_proved(layout):
            return
        if is_filled(guest, target):
            self._known[volume.volid] = layout.content

    def read_back(self, volume: Volume, scenario: Scenario, guest: Guest, target: Target) -> None:
        """Read a fill back from the storage if the host's page cache hid the storage so far.

        Raises:
            ToolFailed: the storage does not return it. Others as the guest.
        """
        layout = scenario.layout
        if volume.volid not in self._cached or not scenario.disk.cache.direct:
            return
        if self.holds(volume, layout) and _can_be_proved(layout):
            if not is_filled(guest, target, SPOT_SAMPLES):
                self.lost(volume)
                raise fill_lost(target)
            self._cached.discard(volume.volid)

    def wrote(self, volume: Volume, layout: Layout, *, cached: bool = False) -> None:
        """Note that the volume was filled for the layout, through the host's page cache or not."""
        self._known[volume.volid] = layout.content
        self._cached.discard(volume.volid)
        if cached:
            self._cached.add(volume.volid)
        if volume.volid in self._tops:
            self._tops[volume.volid] = Top.FULL
        if self._notes is not None and _can_be_proved(layout):
            self._notes.note(volume, layout.content)

    def lost(self, volume: Volume) -> None:
        """Note, before the change, that the volume's content will be lost, but not snapshots."""
        if volume.volid in self._tops:
            self._tops[volume.volid] = Top.PART
            return
        if self._notes is not None:
            self._notes.note(volume, "")
        self._known.pop(volume.volid, None)

    def clear(self) -> None:
        """Forget everything: the volumes are removed or set aside."""
        self._known.clear()
        self._tops.clear()
        self._verified.clear()
        self._cached.clear()


def _can_be_proved(layout: Layout) -> bool:
    """Return whether the content has no zeros: free space and compressible data have some."""
    return not layout.on_filesystem and not layout.fill_compress


def is_filled(guest: Guest, target: Target, samples: int = SAMPLES) -> bool:
    """Return whether none of the sampled blocks, spread over the whole device, reads as zeros.

    Zeros mean a thin volume that lost its data, or another one of the same name.
    """
    first, blocks = target.offset_bytes // 4096, target.size_bytes // 4096
    arguments = target.device, str(first), str(blocks), str(samples)
    done = guest.ask(_FILLED, *arguments, timeout=_SECONDS)
    return done.exit_code == 0 and done.stdout.strip() == str(samples).encode()
