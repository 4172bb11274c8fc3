"""Hypervisor that routes each case to its backend: a VM, the host or a container.

The VM keeps running without its disk during runs of another backend: cases that are compared run
shortly after each other, and an idle VM costs almost nothing. On instances without VMs, the host
replaces the VM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from pvebench.drivers.driver import DriverContext, Finding
from pvebench.drivers.storages.contract import Storage
from pvebench.drivers.storages.storage_settings import LocalSettings
from pvebench.errors import SwitchFailed
from pvebench.model.disk import Bus, Disk
from pvebench.model.environment import Environment
from pvebench.model.guest import Guest
from pvebench.model.ports import Backend, Hypervisor, VolumeSource
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume
from pvebench.model.workload import Case
from pvebench.plugins import Registry

B = TypeVar("B", bound=Backend)


class LocalBackend(Backend, Protocol):
    """Backend on this machine."""

    @property
    def volume_path(self) -> Path | None:
        """The file or device of the volume in use."""

    @property
    def pid(self) -> int | None:
        """First process of the container that runs the tools; None: no container."""
        return None

    def tune(self, volume: Volume, disk: Disk) -> dict[str, str]:
        """Apply the options of the device below a volume; return their read-back."""
        del volume, disk
        return {}


class BackendRouter(Generic[B]):
    """`model.ports.Hypervisor` with a VM, and another backend for some buses.

    Args:
        backends: bus -> backend that replaces the VM.
        volumes: bus -> source of its volumes; the other backends share those of the VM.
        tune: applies the options of the device below a volume and returns their read-back; the
            backend of bus `host` does so itself.
        facts: returns facts of the host for the environment of all cases.
    """

    def __init__(
        self,
        vm: Hypervisor,
        backends: Mapping[Bus, B],
        *,
        volumes: Mapping[Bus, VolumeSource] | None = None,
        tune: Callable[[Volume, Disk], dict[str, str]] = lambda *_: {},
        facts: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._vm = vm
        self._backends = backends
        self._volumes = volumes or {}
        self._tune = tune
        self._facts = facts
        self._guest: Guest | None = None
        self._booted = 0.0
        self.replacement: B | None = None
        """Current backend instead of the VM; None: the VM itself."""

    def _replacement(self, disk: Disk) -> B | None:
        backend = self._backends.get(disk.bus)
        if backend is None and not disk.in_vm:
            raise SwitchFailed(f"this driver has no backend for bus {disk.bus}")
        return backend

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        self.replacement = self._replacement(cold.disk) if cold is not None else None
        guest = self._vm.boot(machine, None if self.replacement else cold)
        # A return from another backend to the running VM is not a boot.
        self._booted = self._vm.boot_seconds if guest is not self._guest else 0.0
        self._guest = guest
        return self.replacement.boot(machine, cold) if self.replacement else guest

    @property
    def boot_seconds(self) -> float:
        """Duration of the VM's boot, seconds, if the last call included one."""
        return 0.0 if self.replacement else self._booted

    def power_off(self) -> None:
        for backend in self._backends.values():
            backend.power_off()
        self._vm.power_off()

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        return self._volumes.get(scenario.disk.bus, self._vm).volume(scenario)

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        attachment = (self._replacement(disk) or self._vm).attach(volume, disk)
        tuned = {} if disk.on_host else self._tune(volume, disk)
        return replace(attachment, effective={**attachment.effective, **tuned})

    def detach(self) -> None:
        for backend in self._backends.values():
            backend.detach()
        self._vm.detach()

    def drop_caches(self, volume: Volume) -> int | None:
        return (self.replacement or self._vm).drop_caches(volume)

    def counters(self) -> BlockCounters | None:
        return (self.replacement or self._vm).counters()

    def statistics(self) -> str:
        """Return the VM's statistics; empty while another backend measures."""
        return "" if self.replacement else self._vm.statistics()

    def environment(self) -> Environment:
        """Return the VM's environment with further facts of the host, for all backends."""
        return self._with_facts(self._vm.environment())

    def host_environment(self) -> Environment:
        return self._with_facts(self._vm.host_environment())

    def _with_facts(self, environment: Environment) -> Environment:
        facts = {name: fact for name, fact in self._facts().items() if fact}
        return replace(environment, facts={**environment.facts, **facts})

    def shutdown(self) -> None:
        """Shut down every backend, and the VM last, also after an error."""
        with ExitStack() as stack:
            stack.callback(self._vm.shutdown)
            for backend in self._backends.values():
                stack.callback(backend.shutdown)


# --- Backends of this machine that plug-ins add: the host itself, and containers.


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendKind:
    """Backend of the cases of one bus.

    Attributes:
        make: returns the backend, on the volumes of the VM; nothing is created yet.
        check: yields whether its requirements are met by this machine; changes nothing.
        facts: returns facts of the machine, for the environment of all cases.
    """

    bus: Bus
    make: Callable[[LocalSettings, DriverContext, dict[str, Storage]], LocalBackend]
    check: Callable[[Sequence[Case]], Iterator[Finding]]
    facts: Callable[[], Mapping[str, str]]


BACKENDS: Final = Registry[BackendKind](
    "backends", lambda plugin: isinstance(plugin, BackendKind), {}
)
"""Name -> kind of backend beside the VM."""


def local_router(
    vm: Hypervisor,
    backends: Mapping[Bus, LocalBackend],
    kinds: Sequence[BackendKind],
    more_facts: Callable[[], Mapping[str, str]] = dict,
) -> BackendRouter[LocalBackend]:
    """Return the router to a VM and these backends of this machine.

    Args:
        kinds: those whose facts the environment has.
        more_facts: returns facts that can change meanwhile.
    """
    fixed = {name: fact for kind in kinds for name, fact in kind.facts().items()}

    def facts() -> dict[str, str]:
        return {**fixed, **more_facts()}

    if Bus.HOST not in backends:
        return BackendRouter(vm, backends, facts=facts)
    return BackendRouter(vm, backends, tune=backends[Bus.HOST].tune, facts=facts)
