"""The benchmark VM of a node, and containers of the node beside it: `model.ports.Hypervisor`.

The VM stays on, without its disk, while a container measures: rows that are compared are measured
next to each other in time, and in one environment. `drivers.host.beside` is the same where pvebench
itself runs; there all share one volume, here a container's is Proxmox's to make.
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
    """A VM, and a container for bus `lxc`."""

    vm: ProxmoxNode
    containers: NodeContainers
    _guest: Guest | None = None
    _booted: float = 0.0
    _aside: bool = False
    """Whether a container measures now in place of the VM."""

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        self._aside = cold is not None and cold.disk.in_container
        guest = self.vm.boot(machine, None if self._aside else cold)
        # Coming back to a VM that ran all the time is no boot.
        self._booted = self.vm.boot_seconds if guest is not self._guest else 0.0
        self._guest = guest
        return self.containers.boot(machine, cold) if cold and self._aside else guest

    @property
    def boot_seconds(self) -> float:
        """How long the VM's boot took, if the last call made one."""
        return 0.0 if self._aside else self._booted

    def power_off(self) -> None:
        self.containers.stop()
        self.vm.power_off()

    def needs_bytes(self, scenario: Scenario) -> int:
        """Return how much room the volume of `scenario` still needs; 0 where not known."""
        of = self.containers if scenario.disk.in_container else self.vm
        return of.needs_bytes(scenario)

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        of = self.containers if scenario.disk.in_container else self.vm
        return of.volume(scenario)

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        return (self.containers if disk.in_container else self.vm).attach(volume, disk)

    def detach(self) -> None:
        self.containers.stop()
        self.vm.detach()

    @property
    def vmid(self) -> int:
        """Number of the VM whose threads are counted; 0: none is."""
        return 0 if self._aside else self.vm.vmid

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the node's block devices below the volume in use; empty: not known."""
        return self.containers.devices if self._aside else self.vm.devices

    def drop_caches(self, volume: Volume) -> int | None:
        return self.containers.drop_caches() if self._aside else self.vm.drop_caches(volume)

    def counters(self) -> BlockCounters:
        return self.containers.counters() if self._aside else self.vm.counters()

    def statistics(self) -> str:
        """Return what Proxmox passes on of QEMU. See `model.ports.TellsStatistics`."""
        return "" if self._aside else self.vm.statistics()

    def environment(self) -> Environment:
        return self.vm.environment()

    def host_environment(self) -> Environment:
        return self.vm.host_environment()

    def content(self, volume: Volume) -> str:
        """Return what a volume of the VM was filled with; containers' do not outlive a start."""
        return "" if self.containers.holds(volume) else self.vm.content(volume)

    def note(self, volume: Volume, content: str) -> None:
        if not self.containers.holds(volume):
            self.vm.note(volume, content)

    def shutdown(self) -> None:
        """Remove the containers, and the VM or set it aside."""
        left = [line for line in self.containers.shutdown() if line.startswith("could not")]
        self.vm.shutdown()
        if left:
            raise ServerGone(
                "; ".join(left), next_step="it is removed at the next start of pvebench"
            )
