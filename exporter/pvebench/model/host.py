"""The host's counters at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSnapshot:
    """Host counters at one moment; two of them make a window.

    Attributes:
        monotonic: when, in seconds of the host probe's clock.
        cpu_seconds: component -> CPU seconds so far: `total` (the whole host, all modes but
            idle, iowait and steal), its modes `user`, `system` …, `qemu`, and of it `vcpu`,
            `iothread`, `other`; `container`; and `vcpu_wait`, how long the vcpu threads were
            ready to run but had no CPU.
        bytes: name -> bytes so far: `process_read`, `process_write` (QEMU's storage traffic),
            `device_read`, `device_write` (the backing device, or the server of a mounted NFS or
            CIFS, if it can be known).
        cpus: how many the host has.
        context_switches: of the whole host so far.
        vm_exits: how often the VM left its CPU for KVM so far, all reasons together.
        pressure_seconds: resource -> time so far in which tasks waited (Linux PSI): `cpu_some`,
            `io_some`, `io_full`, `memory_some`, `memory_full`.
        averages: over the last seconds, where there are no counters: `total_coarse`, busy cores
            of the host; `vm_io_some` …, pressure of the VM alone.
        conditions: what is so now: `disk_margin`, by how many degrees Celsius the hottest drive is
            below the most that its maker allows; `zfs_cache`, bytes that ZFS' cache (ARC) has;
            `md_sync`, 1 while a software RAID is checked or rebuilt, 0 while none of them is.
    """

    monotonic: float
    cpu_seconds: Mapping[str, float]
    bytes: Mapping[str, int] = field(default_factory=dict)
    cpus: int = 0
    context_switches: int = 0
    vm_exits: int = 0
    pressure_seconds: Mapping[str, float] = field(default_factory=dict)
    averages: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, float] = field(default_factory=dict)
