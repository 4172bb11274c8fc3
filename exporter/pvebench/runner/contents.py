"""What is on each volume: as this runner wrote it, or as it was kept from an earlier start."""

from __future__ import annotations

from typing import Final

from pvebench.model.layout import Layout
from pvebench.model.ports import FillNotes, Guest
from pvebench.model.volume import Volume
from pvebench.workloads import Target

SAMPLES: Final = 64
_SECONDS: Final = 60.0
_SCRIPT: Final = f"""\
i=0
while [ $i -lt {SAMPLES} ]; do
    dd if="$0" bs=4096 count=1 skip=$(($1 + ($2 - 1) * i / {SAMPLES - 1})) iflag=direct \
        2>/dev/null | tr -d '\\000' | head -c 1
    i=$((i + 1))
done | wc -c
"""
"""For /bin/sh: device, first block, blocks -> how many of the blocks read are not all zeros."""


class Contents:
    """What the volumes hold, in the words of `Layout.content`. Owned by one runner.

    Args:
        fill_notes: remembers it from one start to the next; None: nothing does.
    """

    def __init__(self, fill_notes: FillNotes | None) -> None:
        self._notes = fill_notes
        self._known: dict[str, str] = {}
        self._met: set[str] = set()

    def holds(self, volume: Volume, layout: Layout) -> bool:
        """Return whether everything that a scenario may read was written before."""
        return volume.complete or self._known.get(volume.volid) == layout.content

    def renewed(self, volume: Volume) -> None:
        """Note that the volume was just made."""
        self._known.pop(volume.volid, None)
        self._met.add(volume.volid)

    def meet(self, volume: Volume, layout: Layout, guest: Guest, target: Target) -> None:
        """Believe what a kept volume is said to hold, if it can be proved; asked once a volume.

        Raises:
            DriverError, WorkloadError: as the guest and the notes.
        """
        if self._notes is None or volume.volid in self._met:
            return
        self._met.add(volume.volid)
        if self._notes.content(volume) != layout.content or not _can_be_proved(layout):
            return
        if is_filled(guest, target):
            self._known[volume.volid] = layout.content

    def wrote(self, volume: Volume, layout: Layout) -> None:
        """Note that the volume was filled for such a layout."""
        self._known[volume.volid] = layout.content
        if self._notes is not None and _can_be_proved(layout):
            self._notes.note(volume, layout.content)

    def lost(self, volume: Volume) -> None:
        """Note, before it happens, that the volume will no longer hold what it did."""
        if self._notes is not None:
            self._notes.note(volume, "")
        self._known.pop(volume.volid, None)

    def clear(self) -> None:
        """Forget everything: the volumes are gone, or set aside."""
        self._known.clear()
        self._met.clear()


def _can_be_proved(layout: Layout) -> bool:
    """A file system has free space, and compressible data has zeros: neither proves anything."""
    return not layout.on_filesystem and not layout.fill_compress


def is_filled(guest: Guest, target: Target) -> bool:
    """Return whether none of 64 blocks, spread over the whole device, reads as zeros.

    A thin volume that lost its data, or another one of the same name, does.
    """
    first, blocks = target.offset_bytes // 4096, target.size_bytes // 4096
    argv = ["/bin/sh", "-c", _SCRIPT, target.device, str(first), str(blocks)]
    done = guest.run(argv, timeout=_SECONDS)
    return done.exit_code == 0 and done.stdout.strip() == str(SAMPLES).encode()
