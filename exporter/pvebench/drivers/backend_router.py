"""Hypervisor that routes each case to its backend: a VM, the host or a container.

All use the same volumes. The VM keeps running without its disk during runs of another backend:
cases that are compared run shortly after each other, and an idle VM costs almost nothing. On
instances without VMs, the host replaces the VM.
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
    """Backend that replaces the VM for a case, on the same volumes."""

    @property
    def volume_path(self) -> Path | None:
        """The file or device of the volume in use."""

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return the guest that runs tools."""

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Open a volume and read back its effective configuration."""

    def detach(self) -> None:
        """Release the volume."""

    def power_off(self) -> None:
        """End its processes."""

    def drop_caches(self, volume: Volume) -> int | None:
        """As `Hypervisor.drop_caches`."""

    def counters(self) -> BlockCounters | None:
        """As `Hypervisor.counters`."""

    def shutdown(self) -> None:
        """Remove everything that it created."""


class HostBackend(Backend, Protocol):
    """Host backend, which can change settings of the device below a volume."""

    def tune(self, volume: Volume, disk: Disk) -> dict[str, str]:
        """Apply the options of the device below a volume; return the read-back."""


class BackendRouter:
    """`model.ports.Hypervisor` with a VM, the host for bus `host`, and a container for `lxc`.

    Args:
        facts: facts of the host for the environment of all cases.
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
        """Current replacement of the VM; None: the VM itself."""

    def _aside(self, disk: Disk) -> Backend | None:
        if disk.in_container and self._container is None:
            raise SwitchFailed("this driver has no containers")
        return self._container if disk.in_container else self._host if disk.on_host else None

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        self.aside = self._aside(cold.disk) if cold is not None else None
        guest = self._vm.boot(machine, None if self.aside else cold)
        # A return from another backend to the running VM is not a boot.
        self._booted = self._vm.boot_seconds if guest is not self._guest else 0.0
        self._guest = guest
        return self.aside.boot(machine, cold) if self.aside else guest

    @property
    def boot_seconds(self) -> float:
        """Duration of the VM's boot, if the last call included one."""
        return 0.0 if self.aside else self._booted

    def power_off(self) -> None:
        self._end_aside()
        self._vm.power_off()

    def _end_aside(self) -> None:
        if self._container is not None:
            self._container.power_off()
        self._host.power_off()

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """Return the volume, which all backends share."""
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
        """Return the VM's statistics, if any. See `model.ports.ReportsStatistics`."""
        vm = self._vm
        return vm.statistics() if isinstance(vm, ReportsStatistics) and not self.aside else ""

    def environment(self) -> Environment:
        """Return the VM's environment with further facts of the host, for all backends."""
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
