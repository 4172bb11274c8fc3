"""A VM and the host beside it: host rows on the very volumes that the VM gets.

The VM stays on, without its disk, while the host measures: rows that are compared are measured
next to each other in time, and its idling costs next to nothing.
"""

from __future__ import annotations

from dataclasses import replace

from pvebench.drivers.host.host_disk import HostDisk
from pvebench.drivers.host.this_machine import tool_version
from pvebench.model.disk import Disk
from pvebench.model.environment import Environment
from pvebench.model.ports import Guest, Hypervisor, TellsStatistics
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume


class Beside:
    """`model.ports.Hypervisor`: a VM's, and the host for scenarios on bus `host`."""

    def __init__(self, vm: Hypervisor, host: HostDisk) -> None:
        self._vm = vm
        self._host = host
        self._guest: Guest | None = None
        self._booted = 0.0
        self._host_fio = tool_version("fio")
        self.on_host = False

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        self.on_host = cold is not None and cold.disk.on_host
        guest = self._vm.boot(machine, None if self.on_host else cold)
        # Coming back from the host to a VM that ran all the time is no boot.
        self._booted = self._vm.boot_seconds if guest is not self._guest else 0.0
        self._guest = guest
        return self._host.boot(machine) if self.on_host else guest

    @property
    def boot_seconds(self) -> float:
        """How long the boot took, if the last call made one."""
        return 0.0 if self.on_host else self._booted

    def power_off(self) -> None:
        self._host.power_off()
        self._vm.power_off()

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """Return the volume, one for both."""
        return self._vm.volume(scenario)

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        if disk.on_host:
            return self._host.attach(volume, disk)
        attachment = self._vm.attach(volume, disk)
        tuned = self._host.tune(volume, disk)
        return replace(attachment, effective={**attachment.effective, **tuned})

    def detach(self) -> None:
        self._host.detach()
        self._vm.detach()

    def drop_caches(self, volume: Volume) -> int | None:
        return self._vm.drop_caches(volume)

    def counters(self) -> BlockCounters:
        return (self._host if self.on_host else self._vm).counters()

    def statistics(self) -> str:
        """Return the VM's statistics, if it tells any. See `model.ports.TellsStatistics`."""
        vm = self._vm
        return vm.statistics() if isinstance(vm, TellsStatistics) and not self.on_host else ""

    def environment(self) -> Environment:
        """Return the VM's environment, with the host's fio: one for both."""
        return self._with_fio(self._vm.environment())

    def host_environment(self) -> Environment:
        return self._with_fio(self._vm.host_environment())

    def _with_fio(self, environment: Environment) -> Environment:
        if not self._host_fio:
            return environment
        return replace(environment, facts={**environment.facts, "host_fio": self._host_fio})

    def shutdown(self) -> None:
        self._host.shutdown()
        self._vm.shutdown()
