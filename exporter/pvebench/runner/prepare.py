"""Preparation of the VM, the disk and its content for a case, with as few steps as possible."""

from __future__ import annotations

import json
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Final

from pvebench.errors import DriverError, SwitchFailed, ToolFailed
from pvebench.guest.recipe import FILESYSTEM_TOOL, MOUNT_POINT
from pvebench.log import log
from pvebench.model.disk import Bus, HostCache
from pvebench.model.environment import Environment
from pvebench.model.guest import Guest, Question
from pvebench.model.ports import Site
from pvebench.model.scenario import Scenario
from pvebench.model.status import Phase
from pvebench.model.volume import Attachment, Plug, Volume
from pvebench.runner.contents import Contents, Top
from pvebench.runner.measure import Invalid, finish_job, mismatch, start_job, wait_for_end
from pvebench.workloads import Target
from pvebench.workloads.fio import check_fill, fill_error, fill_job
from pvebench.workloads.tool import WORK_DIR

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
    """State of the VM and its disk, from case to case. Owned by one runner."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._guest: Guest | None = None
        self._ready: Ready | None = None
        self._mounted = False
        self._contents = Contents(site.fill_notes)
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
        if difference := mismatch(scenario, ready.attachment):
            raise Invalid(f"disk mismatch: {difference}")
        self._prepare(ready, report)
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
            self._contents.lost(volume)
        elif self._contents.holds(volume, scenario.layout):
            return
        plain = replace(scenario, disk=scenario.disk.past_cache)
        self._fill_through(self._switch(plain, report), report)

    def _fill_through(self, ready: Ready, report: ReportPhase) -> None:
        """Prepare the content of a volume through another disk than that of the case."""
        if difference := mismatch(ready.scenario, ready.attachment):
            raise Invalid(f"mismatch of the disk for the fill: {difference}")
        self._prepare(ready, report)
        counted = self._site.hypervisor.counters()
        self._cooling += counted.write_bytes if counted is not None else 0

    def _detach(self, scenario: Scenario, report: ReportPhase) -> Volume:
        """Detach the attached disk; return the scenario's volume, noted if it is new."""
        report(Phase.ATTACH)
        self._unmount()
        self._site.hypervisor.detach()
        volume, new = self._site.hypervisor.volume(scenario)
        if new:
            self._contents.renewed(volume)
        return volume

    def _lacks_snapshots(self, volume: Volume, scenario: Scenario) -> bool:
        """Return whether snapshots must be taken, or what was written since must be removed."""
        top = self._contents.top(volume)
        return bool(scenario.disk.chain) and (top is None or (self._first and top is not Top.EMPTY))

    def _take_snapshots(self, volume: Volume, scenario: Scenario, report: ReportPhase) -> None:
        """Fill the volume, as a disk without snapshots, and take the snapshots of its chain."""
        if not self._contents.holds(volume, scenario.layout):
            plain = replace(scenario, disk=scenario.disk.past_cache.unchained)
            self._fill_through(self._attach(volume, plain, report), report)
            self._ready = None
            self._site.hypervisor.detach()
        report(Phase.ATTACH)
        self._site.require_vms().take_snapshots(volume, scenario.disk)
        self._contents.snapshots_taken(volume)

    def _switch(self, scenario: Scenario, report: ReportPhase) -> Ready:
        volume = self._detach(scenario, report)
        if self._lacks_snapshots(volume, scenario):
            self._take_snapshots(volume, scenario, report)
        return self._attach(volume, scenario, report)

    def _attach(self, volume: Volume, scenario: Scenario, report: ReportPhase) -> Ready:
        hypervisor = self._site.hypervisor
        report(Phase.BOOT)
        guest = hypervisor.boot(
            scenario.machine, Plug(volume, scenario.disk) if scenario.disk.cold else None
        )
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

    def _prepare(self, ready: Ready, report: ReportPhase) -> None:
        """Write the scenario's content to the volume: data everywhere, or a file full of data."""
        layout, volume = ready.scenario.layout, ready.volume
        self._contents.verify(volume, layout, ready.guest, ready.target)
        self._contents.read_back(volume, ready.scenario, ready.guest, ready.target)
        top = self._contents.top(volume)
        filled = self.filled(ready) and (self._first or top in (None, Top.FULL))
        if not filled:
            self._contents.lost(volume)  # from here on it has neither content
        if layout.on_filesystem and not self._mounted:
            device = ready.attachment.device
            if not filled:
                report(Phase.FILL)
                self._filesystem("make", device, str(layout.filesystem))
            self._filesystem("mount", device, str(layout.filesystem), layout.mount_options)
            self._mounted = True
        if filled:
            return
        report(Phase.FILL)
        self._fill(ready)
        self._contents.wrote(volume, layout, cached=not ready.scenario.disk.cache.direct)

    def _fill(self, ready: Ready) -> None:
        """Write random data everywhere: holes and zeros would be read too fast."""
        layout = ready.scenario.layout
        for number in range(layout.fill_passes):
            job = fill_job(ready.target, seed=1 + number, compress=layout.fill_compress)
            self._filling += ready.target.size_bytes
            pid = start_job(ready.guest, job)
            deadline = self._site.clock.monotonic() + job.deadline_seconds
            ended = wait_for_end(self._site, ready.guest, pid, deadline=deadline)
            try:
                output = finish_job(ready.guest, job, ended)
            except ToolFailed as error:
                raise fill_error(error, ready.target) from error
            check_fill(output, ready.target)

    def _filesystem(self, *arguments: str) -> None:
        if self._guest is None:
            return
        done = self._guest.ask(_FILESYSTEM, *arguments, timeout=_FILESYSTEM_SECONDS)
        if done.exit_code:
            output = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            last = output.splitlines()[-1] if output else f"status {done.exit_code}"
            raise ToolFailed(
                f"file system command failed in the guest: {' '.join(arguments)}: {last}",
                evidence=output,
            )

    def _unmount(self) -> None:
        """Unmount, so that the disk can be detached."""
        self._ready = None
        if self._mounted:
            self._mounted = False
            try:
                self._filesystem("unmount")
            except (DriverError, ToolFailed):
                self._site.hypervisor.power_off()  # detaches the disk as well

    def filled(self, ready: Ready) -> bool:
        """Return whether everything that the case may read has been written."""
        return self._contents.holds(ready.volume, ready.scenario.layout)

    def discard_content(self, volume: Volume) -> None:
        """Note that the volume's content is lost, so that the next case prepares it."""
        self._contents.lost(volume)

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
            self._mounted = False
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
        self._mounted = False
        self._contents.clear()
        self._site.hypervisor.shutdown()


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
