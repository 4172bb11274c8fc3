"""`model.ports.Hypervisor` that selects the benchmark VM or a container of a node.

The VM stays on, without its disk, while a container measures: compared configurations run close in
time and in one environment. `drivers.host` has the local equivalent; there all share one volume,
here Proxmox creates a container's volume.
"""

from __future__ import annotations

from dataclasses import dataclass

from pvebench.drivers.proxmox.containers.node_containers import NodeContainers
from pvebench.drivers.proxmox.hypervisor import ProxmoxNode
from pvebench.errors import ServerGone
from pvebench.model.disk import Disk
from pvebench.model.environment import Environment
from pvebench.model.ports import Guest
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume


@dataclass(slots=True)
class NodeRouter:
    """Router to the VM, or to a container for bus `lxc`."""

    vm: ProxmoxNode
    containers: NodeContainers
    _guest: Guest | None = None
    _booted: float = 0.0
    _in_container: bool = False
    """Whether a container measures instead of the VM."""

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        self._in_container = cold is not None and cold.disk.in_container
        guest = self.vm.boot(machine, None if self._in_container else cold)
        # Returning to a running VM is not a boot.
        self._booted = self.vm.boot_seconds if guest is not self._guest else 0.0
        self._guest = guest
        return self.containers.boot(machine, cold) if cold and self._in_container else guest

    @property
    def boot_seconds(self) -> float:
        """Duration of the VM's boot, seconds, if the last call booted it."""
        return 0.0 if self._in_container else self._booted

    def power_off(self) -> None:
        self.containers.stop()
        self.vm.power_off()

    def needs_bytes(self, scenario: Scenario) -> int:
        """Return the bytes that the volume of `scenario` still needs; 0 if unknown."""
        backend = self.containers if scenario.disk.in_container else self.vm
        return backend.needs_bytes(scenario)

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        backend = self.containers if scenario.disk.in_container else self.vm
        return backend.volume(scenario)

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        return (self.containers if disk.in_container else self.vm).attach(volume, disk)

    def detach(self) -> None:
        self.containers.stop()
        self.vm.detach()

    @property
    def vmid(self) -> int:
        """ID of the VM whose threads are counted; 0: none."""
        return 0 if self._in_container else self.vm.vmid

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the node's block devices below the volume in use; empty: unknown."""
        return self.containers.devices if self._in_container else self.vm.devices

    def drop_caches(self, volume: Volume) -> int | None:
        return self.containers.drop_caches() if self._in_container else self.vm.drop_caches(volume)

    def counters(self) -> BlockCounters:
        return self.containers.counters() if self._in_container else self.vm.counters()

    def statistics(self) -> str:
        """Return QEMU statistics from Proxmox. See `model.ports.TellsStatistics`."""
        return "" if self._in_container else self.vm.statistics()

    def environment(self) -> Environment:
        return self.vm.environment()

    def host_environment(self) -> Environment:
        return self.vm.host_environment()

    def content(self, volume: Volume) -> str:
        """Return the content of a filled VM volume; containers do not outlive a start."""
        return "" if self.containers.holds(volume) else self.vm.content(volume)

    def note(self, volume: Volume, content: str) -> None:
        if not self.containers.holds(volume):
            self.vm.note(volume, content)

    def shutdown(self) -> None:
        """Remove the containers, and remove or keep the VM."""
        remaining = [line for line in self.containers.shutdown() if line.startswith("could not")]
        self.vm.shutdown()
        if remaining:
            raise ServerGone(
                "; ".join(remaining),
                next_step="no action needed; the next start of pvebench removes it",
            )
