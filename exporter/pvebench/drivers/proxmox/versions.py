"""What runs on a node and what only waits there: environments, and what was installed since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.environment import news, node_facts, vm_facts, whole
from pvebench.drivers.proxmox.vm import BenchVm
from pvebench.errors import DriverError
from pvebench.guest import GuestImage
from pvebench.model.environment import Environment, Upkeep
from pvebench.model.ports import Clock

_UPKEEP_SECONDS: Final = 30.0
"""How often a node is asked what is installed."""


class Versions:
    """The versions on one node. Owned by one worker thread."""

    def __init__(self, api: Api, node: str, image: GuestImage, clock: Clock) -> None:
        self._api = api
        self._node = node
        self._image = image
        self._clock = clock
        self._booted_with: dict[str, str] = {}
        self._upkeep = Upkeep()
        self._looked = -_UPKEEP_SECONDS

    def running(self, vm: BenchVm | None) -> Environment:
        """Return the running environment; call it once after each boot of `vm`.

        Args:
            vm: the VM whose guest runs; None: none does.
        """
        facts, pending = node_facts(self._api, self._node)
        self._booted_with = dict(facts)
        if vm is not None:
            package = facts.get("qemu_package", "")
            more, waiting = vm_facts(vm.status(), vm.config(), qemu_package=package)
            facts |= more
            pending |= waiting
            if "qemu" in waiting:
                del facts["qemu_package"]  # of the package that does not run yet
        self._upkeep = Upkeep(pending=pending)
        return self._environment(facts)

    def host(self) -> Environment:
        """Return what is known without a VM; nothing where the node does not answer."""
        try:
            facts, _ = node_facts(self._api, self._node)
        except DriverError:
            facts = {}
        return self._environment(facts)

    def upkeep(self, *, running: bool) -> Upkeep:
        """Return what was installed since `running` was asked for. Never raises DriverError.

        Args:
            running: whether there is a guest that a cold start would change.
        """
        now = self._clock.monotonic()
        if now - self._looked < _UPKEEP_SECONDS:
            return self._upkeep
        self._looked = now
        try:
            facts, pending = node_facts(self._api, self._node)
        except DriverError:
            return self._upkeep
        if whole(facts):
            changed = news(self._booted_with, facts) if running else {}
            self._upkeep = Upkeep(
                pending={**pending, **changed},
                restart=", ".join(f"{name} {version}" for name, version in changed.items()),
            )
        return self._upkeep

    def _environment(self, facts: Mapping[str, str]) -> Environment:
        versions = self._image.versions
        image = {
            "guest_image": self._image.digest[:12],
            "guest_kernel": versions.get("kernel", ""),
            "fio": versions.get("fio", ""),
        }
        return Environment(node=self._node, facts={**facts, **image})
