"""Versions on a node, running and pending: facts that can affect results, and updates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.pve_version import numbers_of
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm
from pvebench.errors import DriverError
from pvebench.guest import GuestImage
from pvebench.model.environment import Environment, PendingUpdates
from pvebench.model.ports import Clock

_PACKAGES: Final = {
    "qemu-server": "qemu_server",
    "pve-qemu-kvm": "qemu_package",
    "zfsutils-linux": "zfs",
    "ceph": "ceph",
    "ceph-common": "ceph",
    "intel-microcode": "microcode",
    "amd64-microcode": "microcode",
}
"""Package -> fact, for packages that take effect at installation."""
_KERNEL: Final = re.compile(r"(?:proxmox|pve)-kernel-(?P<release>\d+\.\d+\.\d+-\d+-pve)")


def node_facts(api: Api, node: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return (running, pending) facts of the node; unknown ones are absent.

    Pending facts are installed but not running, such as a kernel before the reboot.
    """
    facts = {"pve": str(api.get(f"/nodes/{node}/version")["version"])}
    try:
        status = api.get(f"/nodes/{node}/status")
        packages = api.get(f"/nodes/{node}/apt/versions")
    except DriverError:
        return facts, {}  # without Sys.Audit on the node; `check` reports it
    cpu, kernel = status.get("cpuinfo") or {}, status.get("current-kernel") or {}
    facts |= {
        "kernel": str(kernel.get("release") or ""),
        "cpu_model": str(cpu.get("model") or ""),
        "cpus": str(cpu.get("cpus") or ""),
    }
    installed, pending = package_facts(packages, running_kernel=facts["kernel"])
    facts |= installed
    return {key: value for key, value in facts.items() if value}, pending


def whole(facts: Mapping[str, str]) -> bool:
    """Return whether `facts` are complete: a response may have been lost."""
    return "kernel" in facts


def news(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of `after` that differ from `before`."""
    return {name: value for name, value in after.items() if before.get(name) != value}


def package_facts(
    packages: Sequence[Mapping[str, Any]], *, running_kernel: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (facts, pending) of a response of apt/versions.

    There, OldVersion is the installed version; Version is the one in the repository.
    """
    installed = {
        str(entry["Package"]): str(entry["OldVersion"])
        for entry in packages
        if entry.get("OldVersion")
    }
    facts = {fact: installed[name] for name, fact in _PACKAGES.items() if name in installed}
    releases = [match["release"] for name in installed if (match := _KERNEL.match(name))]
    newest = max(releases, key=numbers_of, default="")
    pending = {}
    if newest and running_kernel and numbers_of(newest) > numbers_of(running_kernel):
        pending["kernel"] = newest
    return facts, pending


def vm_facts(
    status: Mapping[str, Any], config: Mapping[str, Any], *, qemu_package: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (running, pending) facts of the running VM, which upgrades do not change."""
    facts = {
        "qemu": str(status.get("running-qemu", "")),
        "machine": str(status.get("running-machine", "")),
        "accel": "tcg" if str(config.get("kvm", "1")) == "0" else "kvm",
        "cpu_type": str(config.get("cpu", "")),
    }
    pending = {}
    upstream = qemu_package.partition("-")[0]
    if facts["qemu"] and upstream and numbers_of(upstream) != numbers_of(facts["qemu"]):
        pending["qemu"] = upstream
    return {key: value for key, value in facts.items() if value}, pending


_UPKEEP_SECONDS: Final = 30.0
"""Interval of requests for installed packages, seconds."""


class Versions:
    """Versions on a node. Owned by one worker thread."""

    def __init__(self, api: Api, node: str, image: GuestImage, clock: Clock) -> None:
        self._api = api
        self._node = node
        self._image = image
        self._clock = clock
        self._booted_with: dict[str, str] = {}
        self._upkeep = PendingUpdates()
        self._looked = -_UPKEEP_SECONDS

    def running(self, vm: BenchVm | None) -> Environment:
        """Return the running environment; call it once after each boot of `vm`.

        Args:
            vm: the VM with a running guest; None: none.
        """
        facts, pending = node_facts(self._api, self._node)
        self._booted_with = dict(facts)
        if vm is not None:
            package = facts.get("qemu_package", "")
            more, waiting = vm_facts(vm.status(), vm.lately().values, qemu_package=package)
            facts |= more
            pending |= waiting
            if "qemu" in waiting:
                del facts["qemu_package"]  # the package version is not running yet
        self._upkeep = PendingUpdates(pending=pending)
        return self._environment(facts)

    def host(self) -> Environment:
        """Return the facts that are known without a VM; none if the node is unreachable."""
        try:
            facts, _ = node_facts(self._api, self._node)
        except DriverError:
            facts = {}
        return self._environment(facts)

    def upkeep(self, *, running: bool) -> PendingUpdates:
        """Return the packages installed since the call of `running`. Never raises DriverError.

        Args:
            running: whether a guest runs that a cold start would change.
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
            self._upkeep = PendingUpdates(
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
