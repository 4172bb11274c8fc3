"""What runs on the node: facts that may move a number, told from what is only installed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pvebench.drivers.proxmox.connection import Api
from pvebench.errors import DriverError

_PACKAGES: Final = {
    "qemu-server": "qemu_server",
    "pve-qemu-kvm": "qemu_package",
    "zfsutils-linux": "zfs",
    "ceph": "ceph",
    "ceph-common": "ceph",
    "intel-microcode": "microcode",
    "amd64-microcode": "microcode",
}
"""Package -> fact, for what takes effect when it is installed."""
_KERNEL: Final = re.compile(r"(?:proxmox|pve)-kernel-(?P<release>\d+\.\d+\.\d+-\d+-pve)")


def version_number(api: Api) -> tuple[int, ...]:
    """Return the version of pve-manager as numbers: (9, 2, 11)."""
    return tuple(int(part) for part in re.findall(r"\d+", str(api.get("/version")["version"])))


def node_facts(api: Api, node: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return (running, pending) facts of the node. What cannot be known is absent.

    Pending: installed, but not what runs: a kernel before its reboot.
    """
    facts = {"pve": str(api.get(f"/nodes/{node}/version")["version"])}
    try:
        status = api.get(f"/nodes/{node}/status")
        packages = api.get(f"/nodes/{node}/apt/versions")
    except DriverError:
        return facts, {}  # without Sys.Audit on the node; `check` tells how to give it
    cpu = status.get("cpuinfo", {})
    facts |= {
        "kernel": str(status.get("current-kernel", {}).get("release", "")),
        "cpu_model": str(cpu.get("model", "")),
        "cpus": str(cpu.get("cpus", "")),
    }
    installed, pending = package_facts(packages, running_kernel=facts["kernel"])
    facts |= installed
    return {key: value for key, value in facts.items() if value}, pending


def whole(facts: Mapping[str, str]) -> bool:
    """Return whether `facts` are all that a node tells: an answer may have been lost."""
    return "kernel" in facts


def news(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of `after` that are other ones than in `before`."""
    return {name: value for name, value in after.items() if before.get(name) != value}


def package_facts(
    packages: Sequence[Mapping[str, Any]], *, running_kernel: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (facts, pending) of an answer of apt/versions.

    There, OldVersion is what is installed; Version is what the repository offers.
    """
    installed = {
        str(entry["Package"]): str(entry["OldVersion"])
        for entry in packages
        if entry.get("OldVersion")
    }
    facts = {fact: installed[name] for name, fact in _PACKAGES.items() if name in installed}
    releases = [match["release"] for name in installed if (match := _KERNEL.match(name))]
    newest = max(releases, key=_numbers, default="")
    pending = {}
    if newest and running_kernel and _numbers(newest) > _numbers(running_kernel):
        pending["kernel"] = newest
    return facts, pending


def vm_facts(
    status: Mapping[str, Any], config: Mapping[str, Any], *, qemu_package: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (running, pending) facts of the running VM: an upgrade does not reach it."""
    facts = {
        "qemu": str(status.get("running-qemu", "")),
        "machine": str(status.get("running-machine", "")),
        "accel": "tcg" if str(config.get("kvm", "1")) == "0" else "kvm",
        "cpu_type": str(config.get("cpu", "")),
    }
    pending = {}
    upstream = qemu_package.partition("-")[0]
    if facts["qemu"] and upstream and _numbers(upstream) != _numbers(facts["qemu"]):
        pending["qemu"] = upstream
    return {key: value for key, value in facts.items() if value}, pending


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))
