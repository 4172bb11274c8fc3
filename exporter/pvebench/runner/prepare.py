"""Preparation of the VM, the disk and its content for a case, with as few steps as possible."""

from __future__ import annotations

import json
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from pvebench.errors import DriverError, SwitchFailed, ToolFailed
from pvebench.guest.recipe import FILESYSTEM_TOOL, MOUNT_POINT
from pvebench.log import log
from pvebench.model.disk import Bus, HostCache
from pvebench.model.environment import Environment
from pvebench.model.guest import Guest, Question
from pvebench.model.ports import FillNotes, Site
from pvebench.model.scenario import Layout, Scenario
from pvebench.model.status import Phase
from pvebench.model.volume import Attachment, Plug, Volume
from pvebench.runner.measure import Invalid, finish_in_time, mismatch, start_job
from pvebench.workloads import Target
from pvebench.workloads.fio import check_fill, fill_error, fill_job, fill_lost
from pvebench.workloads.tool import WORK_DIR

# --- Content of the volumes, written by this runner or kept from an earlier start.

SAMPLES: Final = 64
"""Blocks that prove the content of a kept volume; `SPOT_SAMPLES`: of one that was just written."""
SPOT_SAMPLES: Final = 16
_PROOF_SECONDS: Final = 60.0
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
        if self._notes.content(volume) != layout.content or not layout.provable:
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
        if self.holds(volume, layout) and layout.provable:
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
        if self._notes is not None and layout.provable:
            self._notes.note(volume, layout.content)

    def lost(self, volume: Volume) -> None:
        """Note, before the change, that the volume's content will be lost, but not snapshots."""
        if volume.volid in self._tops:
            self._tops[volume.volid] = Top.PART
            return
        if self._notes is not None:
            self._notes.note(volume, "")
        self._known.pop(volume.volid, None)


def is_filled(guest: Guest, target: Target, samples: int = SAMPLES) -> bool:
    """Return whether none of the sampled blocks, spread over the whole device, reads as zeros.

    Zeros mean a thin volume that lost its data, or another one of the same name.
    """
    first, blocks = target.offset_bytes // 4096, target.size_bytes // 4096
    arguments = target.device, str(first), str(blocks), str(samples)
    done = guest.ask(_FILLED, *arguments, timeout=_PROOF_SECONDS)
    return done.exit_code == 0 and done.stdout.strip() == str(samples).encode()


# --- VM, disk and content.

_FILESYSTEM_SECONDS: Final = 120.0
_FILESYSTEM: Final = Question("filesystem", (FILESYSTEM_TOOL,))

ReportPhase = Callable[[Phase], None]
Evidence = MutableMapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Prepared VM and disk for a case.

    Attributes:
        target: the device or file that workloads use.
        boot_seconds: duration of the boot for this case; 0: no boot.
    """

    scenario: Scenario
    guest: Guest
    volume: Volume
    attachment: Attachment
    target: Target
    boot_seconds: float = 0.0


class Setup:
    """State of the VM, its disk and the volumes, from case to case. Owned by one runner."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._guest: Guest | None = None
        self._ready: Ready | None = None
        self._mounted: Guest | None = None
        self.contents = Contents(site.fill_notes)
        self._suspect = self._first = False
        self._cooling = self._filling = 0
        self.environment: Environment | None = None

    def take_written(self) -> tuple[int, int]:
        """Return the bytes written since the last call: to empty caches, and by fills.

        Those of fills are the planned ones, which are needed only without I/O counters.
        """
        written = self._cooling, self._filling
        self._cooling = self._filling = 0
        return written

    @property
    def attachment(self) -> Attachment | None:
        """The disk that is attached for the current case; None: none."""
        return self._ready.attachment if self._ready else None

    def ready(
        self,
        scenario: Scenario,
        report: ReportPhase,
        evidence: Evidence,
        *,
        fresh: bool,
        first: bool = False,
    ) -> Ready:
        """Prepare VM, disk and content for `scenario`.

        Args:
            fresh: whether to power the VM on for this case.
            first: whether nothing may have been written since the newest snapshot.

        Raises:
            Invalid: the disk differs from the requested one.
            DriverError, WorkloadError: as the driver and the fill.
        """
        self._recover()
        if scenario.cooled:
            self._drop_host_cache(scenario, report)
        if fresh:
            self._unmount()
            self._site.hypervisor.power_off()
        self._first = first
        ready = None if scenario.cooled else self._reuse(scenario)
        if ready is None:
            ready = self._switch(scenario, report)
        evidence["host_cache"] = "passed by" if scenario.bypasses else str(scenario.host_cache)
        effective = dict(ready.attachment.effective)
        evidence["effective"] = json.dumps(effective, indent=1, sort_keys=True)
        evidence["hypervisor"] = ready.attachment.raw
        evidence["unverified"] = "\n".join(ready.attachment.unverified)
        self._prepare(ready, report, "disk mismatch")
        return ready

    def _reuse(self, scenario: Scenario) -> Ready | None:
        """Return the prepared state if it fits: same scenario, VM alive, no used clone."""
        ready = self._ready
        if ready is None or ready.scenario != scenario or ready.volume.complete:
            return None
        if self._lacks_snapshots(ready.volume, scenario):
            return None
        cold = Plug(ready.volume, scenario.disk) if scenario.disk.cold else None
        guest = self._site.hypervisor.boot(scenario.machine, cold)
        if guest is not ready.guest:
            return None
        # The boot belongs to the case that needed it.
        self._ready = replace(ready, boot_seconds=0.0)
        return self._ready

    def _drop_host_cache(self, scenario: Scenario, report: ReportPhase) -> None:
        """Remove the volume from the host's page cache, with the content of the case on it.

        Writes bypass the cache, through a default disk. The disk of the case is attached after
        that, so it opens a volume of which nothing has been read.

        Raises:
            Invalid: the default disk differs from the requested one. Others as `ready`.
        """
        volume = self._detach(scenario, report)
        if scenario.cooled is HostCache.REWRITTEN:
            self.contents.lost(volume)
        elif self.contents.holds(volume, scenario.layout):
            return
        plain = replace(scenario, disk=scenario.disk.past_cache)
        self._fill_through(self._switch(plain, report), report)

    def _fill_through(self, ready: Ready, report: ReportPhase) -> None:
        """Prepare the content of a volume through another disk than that of the case."""
        self._prepare(ready, report, "mismatch of the disk for the fill")
        counted = self._site.hypervisor.counters()
        self._cooling += counted.write_bytes if counted is not None else 0

    def _detach(self, scenario: Scenario, report: ReportPhase) -> Volume:
        """Detach the attached disk; return the scenario's volume, noted if it is new."""
        report(Phase.ATTACH)
        self._unmount()
        self._site.hypervisor.detach()
        volume, new = self._site.hypervisor.volume(scenario)
        if new:
            self.contents.renewed(volume)
        return volume

    def _lacks_snapshots(self, volume: Volume, scenario: Scenario) -> bool:
        """Return whether snapshots must be taken, or what was written since must be removed."""
        top = self.contents.top(volume)
        return bool(scenario.disk.chain) and (top is None or (self._first and top is not Top.EMPTY))

    def _take_snapshots(self, volume: Volume, scenario: Scenario, report: ReportPhase) -> None:
        """Fill the volume, as a disk without snapshots, and take the snapshots of its chain."""
        if not self.contents.holds(volume, scenario.layout):
            plain = replace(scenario, disk=scenario.disk.past_cache.unchained)
            self._fill_through(self._attach(volume, plain, report), report)
            self._ready = None
            self._site.hypervisor.detach()
        report(Phase.ATTACH)
        self._site.require_vms().take_snapshots(volume, scenario.disk)
        self.contents.snapshots_taken(volume)

    def _switch(self, scenario: Scenario, report: ReportPhase) -> Ready:
        volume = self._detach(scenario, report)
        if self._lacks_snapshots(volume, scenario):
            self._take_snapshots(volume, scenario, report)
        return self._attach(volume, scenario, report)

    def _attach(self, volume: Volume, scenario: Scenario, report: ReportPhase) -> Ready:
        hypervisor = self._site.hypervisor
        report(Phase.BOOT)
        cold = Plug(volume, scenario.disk) if scenario.disk.cold else None
        guest = hypervisor.boot(scenario.machine, cold)
        booted = guest is not self._guest
        if booted:
            self.environment = self._guest = None
            environment = hypervisor.environment()
            facts = {**environment.facts, **guest.facts()}
            self.environment = replace(environment, facts=facts)
            self._guest = guest
        report(Phase.ATTACH)
        attachment = hypervisor.attach(volume, scenario.disk)
        self._ready = Ready(
            scenario=scenario,
            guest=guest,
            volume=volume,
            attachment=attachment,
            target=_target(scenario, attachment, guest),
            boot_seconds=hypervisor.boot_seconds if booted else 0.0,
        )
        return self._ready

    def _prepare(self, ready: Ready, report: ReportPhase, invalid: str) -> None:
        """Fill device or file with data; `invalid`: name of the fault if the disk differs."""
        if difference := mismatch(ready.scenario, ready.attachment):
            raise Invalid(f"{invalid}: {difference}")
        layout, volume = ready.scenario.layout, ready.volume
        self.contents.verify(volume, layout, ready.guest, ready.target)
        self.contents.read_back(volume, ready.scenario, ready.guest, ready.target)
        top = self.contents.top(volume)
        filled = self.contents.holds(volume, layout) and (self._first or top in (None, Top.FULL))
        if not filled:
            self.contents.lost(volume)  # from here on it has neither content
            report(Phase.FILL)
        if layout.on_filesystem and not self._mounted:
            device, kind = ready.attachment.device, str(layout.filesystem)
            if not filled:
                _filesystem(ready.guest, "make", device, kind)
            _filesystem(ready.guest, "mount", device, kind, layout.mount_options)
            self._mounted = ready.guest
        if filled:
            return
        self._fill(ready)
        self.contents.wrote(volume, layout, cached=not ready.scenario.disk.cache.direct)

    def _fill(self, ready: Ready) -> None:
        """Write random data everywhere: holes and zeros would be read too fast."""
        layout = ready.scenario.layout
        for number in range(layout.fill_passes):
            job = fill_job(ready.target, seed=1 + number, compress=layout.fill_compress)
            self._filling += ready.target.size_bytes
            pid = start_job(ready.guest, job)
            try:
                output = finish_in_time(self._site, ready.guest, job, pid)
            except ToolFailed as error:
                raise fill_error(error, ready.target) from error
            check_fill(output, ready.target)

    def _unmount(self) -> None:
        """Unmount, so that the disk can be detached."""
        guest, self._ready, self._mounted = self._mounted, None, None
        if guest is not None:
            try:
                _filesystem(guest, "unmount")
            except (DriverError, ToolFailed):
                self._site.hypervisor.power_off()  # detaches the disk as well

    def mark_unverified(self) -> None:
        """Note that the attached disk may be in a wrong state."""
        self._ready = None
        self._suspect = True

    def _recover(self) -> None:
        """Detach the disk after a failed run, or else end the VM.

        A guest whose I/O hangs may still answer. If it does not release the disk, the VM is ended,
        so that the next case takes longer but does not fail.
        """
        if not self._suspect:
            return
        self._suspect = False
        try:
            if self._mounted:
                raise SwitchFailed("cannot unmount a file system whose disk may hang")
            self._site.hypervisor.detach()
        except DriverError:
            self._mounted = None
            self._site.hypervisor.power_off()

    def release(self) -> None:
        """Detach a disk in a wrong state; if that fails, the next case tries again."""
        try:
            self._recover()
        except DriverError as error:
            log.warning("detaching the disk after an operation failed", reason=error.reason)
            self.mark_unverified()

    def renew(self) -> None:
        """End the VM, so that the next case starts it with the software installed by then."""
        self._unmount()
        self._site.hypervisor.power_off()

    def close(self) -> None:
        """End the VM and remove the volumes, or set them aside."""
        self._guest = self._ready = None
        self._mounted = None
        self.contents = Contents(self._site.fill_notes)
        self._site.hypervisor.shutdown()


def _filesystem(guest: Guest, *arguments: str) -> None:
    done = guest.ask(_FILESYSTEM, *arguments, timeout=_FILESYSTEM_SECONDS)
    if done.exit_code:
        output = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        last = output.splitlines()[-1] if output else f"status {done.exit_code}"
        raise ToolFailed(
            f"file system command failed in the guest: {' '.join(arguments)}: {last}",
            evidence=output,
        )


def _target(scenario: Scenario, attachment: Attachment, guest: Guest) -> Target:
    layout = scenario.layout
    if layout.on_filesystem:
        mount = guest.mount or MOUNT_POINT
        return Target(
            device=f"{mount}/{layout.file_name}",
            size_bytes=layout.file_bytes,
            file=True,
            scratch=mount,
            work=guest.work or WORK_DIR,
            engine=guest.engine,
        )
    return Target(
        device=attachment.device,
        size_bytes=scenario.volume_bytes,
        offset_bytes=attachment.offset_bytes,
        scratch=attachment.scratch,
        work=attachment.work or guest.work or WORK_DIR,
        engine=guest.engine,
        trims_counted=scenario.disk.bus is not Bus.VIRTIO,
    )
