"""A VM, and what measures without one beside it: the bare host, and a container.

All on the very volumes that the VM gets. The VM stays on, without its disk, while another
measures: rows that are compared are measured next to each other in time, and its idling costs
next to nothing. Where there are no VMs, the host takes their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pvebench.errors import SwitchFailed
from pvebench.model.disk import Disk
from pvebench.model.environment import Environment
from pvebench.model.ports import Guest, Hypervisor, ReportsStatistics
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume


class Backend(Protocol):
    """What measures in place of the VM, on the VM's volumes."""

    @property
    def volume_path(self) -> Path | None:
        """The file or device of the volume in use."""

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return what runs tools there."""

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Take a volume into use and read back how."""

    def detach(self) -> None:
        """Release the volume."""

    def power_off(self) -> None:
        """End what runs there."""

    def drop_caches(self, volume: Volume) -> int | None:
        """As `Hypervisor.drop_caches`."""

    def counters(self) -> BlockCounters | None:
        """As `Hypervisor.counters`."""

    def shutdown(self) -> None:
        """Remove what was made."""


class HostBackend(Backend, Protocol):
    """The bare host, which can change settings of the device below a volume."""

    def tune(self, volume: Volume, disk: Disk) -> dict[str, str]:
        """Apply the options of the device below a volume; return what was read back."""


class BackendRouter:
    """`model.ports.Hypervisor`: a VM's, the host for bus `host`, a container for bus `lxc`.

    Args:
        facts: what is known of the host and belongs to the environment of all rows.
    """

    def __init__(
        self,
        vm: Hypervisor,
        host: HostBackend,
        container: Backend | None = None,
        *,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        self._vm = vm
        self._host = host
        self._container = container
        self._facts = {name: fact for name, fact in (facts or {}).items() if fact}
        self._guest: Guest | None = None
        self._booted = 0.0
        self.aside: Backend | None = None
        """What measures now in place of the VM."""

    def _aside(self, disk: Disk) -> Backend | None:
        if disk.in_container and self._container is None:
            raise SwitchFailed("there are no containers here")
        return self._container if disk.in_container else self._host if disk.on_host else None

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        self.aside = self._aside(cold.disk) if cold is not None else None
        guest = self._vm.boot(machine, None if self.aside else cold)
        # Coming back from the others to a VM that ran all the time is no boot.
        self._booted = self._vm.boot_seconds if guest is not self._guest else 0.0
        self._guest = guest
        return self.aside.boot(machine, cold) if self.aside else guest

    @property
    def boot_seconds(self) -> float:
        """How long the VM's boot took, if the last call made one."""
        return 0.0 if self.aside else self._booted

    def power_off(self) -> None:
        self._end_aside()
        self._vm.power_off()

    def _end_aside(self) -> None:
        if self._container is not None:
            self._container.power_off()
        self._host.power_off()

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """Return the volume, one for all."""
        return self._vm.volume(scenario)

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        aside = self._aside(disk)
        if aside is self._host:
            return self._host.attach(volume, disk)
        attachment = (aside or self._vm).attach(volume, disk)
        tuned = self._host.tune(volume, disk)
        return replace(attachment, effective={**attachment.effective, **tuned})

    def detach(self) -> None:
        if self._container is not None:
            self._container.detach()
        self._host.detach()
        self._vm.detach()

    def drop_caches(self, volume: Volume) -> int | None:
        return (self.aside or self._vm).drop_caches(volume)

    def counters(self) -> BlockCounters | None:
        return (self.aside or self._vm).counters()

    def statistics(self) -> str:
        """Return the VM's statistics, if it tells any. See `model.ports.TellsStatistics`."""
        vm = self._vm
        return vm.statistics() if isinstance(vm, ReportsStatistics) and not self.aside else ""

    def environment(self) -> Environment:
        """Return the VM's environment, with what else is known of the host: one for all."""
        return self._with_facts(self._vm.environment())

    def host_environment(self) -> Environment:
        return self._with_facts(self._vm.host_environment())

    def _with_facts(self, environment: Environment) -> Environment:
        return replace(environment, facts={**environment.facts, **self._facts})

    def shutdown(self) -> None:
        if self._container is not None:
            self._container.shutdown()
        self._host.shutdown()
        self._vm.shutdown()
