"""The lab put together as a site: a VM under this machine's QEMU, host and container beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pvebench.drivers.driver import (
    Engine,
    Finding,
    Workplace,
    attempt,
    guest_image,
    image_word,
    volume_bytes,
)
from pvebench.drivers.host.beside import Beside
from pvebench.drivers.host.procfs import ProcProbe
from pvebench.drivers.host.this_host import check_host, container_of, host_of
from pvebench.drivers.host.this_machine import UNDO, tool_version
from pvebench.drivers.qemu import LabSettings
from pvebench.drivers.qemu.accelerator import (
    PROOF_SECONDS,
    choose_accelerator,
    kvm_memory,
    remembered_fault,
)
from pvebench.drivers.qemu.lab import QemuLab
from pvebench.drivers.qemu.machine import prove_kvm, undo_pending
from pvebench.drivers.storages.instance import instance_id
from pvebench.drivers.storages.settings import (
    check_space,
    check_storages,
    faults_of,
    guards_of,
    identities_of,
    make_storages,
    networks_of,
)
from pvebench.errors import ToolsMissing
from pvebench.model.ports import Journal, Site
from pvebench.model.storage_identity import Identity
from pvebench.model.workload import Case

TOOLS: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "fincore": "util-linux-extra",
}
"""Program -> Debian package."""
INSTALL: Final = "apt-get install --no-install-recommends"
"""What QEMU's packages recommend is a desktop's libraries."""


class LabEngine(Engine):
    """`drivers.driver.Engine` of the lab."""

    def sites(self, settings: LabSettings, place: Workplace) -> list[Site]:
        require_tools()
        image = guest_image(settings, place)
        proof = prove_kvm(
            image, place.runtime, journal=place.journal, clock=place.clock, timeout=PROOF_SECONDS
        )
        accelerator = choose_accelerator(
            settings.accelerator, memory=kvm_memory(), prove=proof, say=place.say
        )
        storages = make_storages(settings, place)
        lab = QemuLab(
            node=settings.node,
            storages=storages,
            image=image,
            accelerator=accelerator,
            runtime=place.runtime,
            journal=place.journal,
            clock=place.clock,
        )
        host = host_of(settings, place, storages)
        container = container_of(settings, place, storages)
        versions = {"host_fio": tool_version("fio"), "lxc": tool_version("lxc-start")}
        both = Beside(lab, host, container, facts=versions)
        # While another measures, the idle VM's counters have nothing to do with it.
        probe = ProcProbe(
            lambda: None if both.aside else lab.pid,
            lambda: (both.aside or lab).volume_path,
            container=lambda: container.pid,
        )
        networks = networks_of(settings)
        return [
            Site(
                node=settings.node,
                hypervisor=both,
                probe=probe,
                clock=place.clock,
                networks=networks,
                faults=faults_of(settings),
                identify=lambda name: identities_of(settings)[name](),
                guards=guards_of(storages),
            )
        ]

    def undo(self, settings: LabSettings, journal: Journal) -> list[str]:
        instance = instance_id(settings.state)
        return undo_pending(journal, UNDO, instance=instance, runtime=settings.runtime)

    def identities(self, settings: LabSettings) -> dict[tuple[str, str], Callable[[], Identity]]:
        found = identities_of(settings)
        return {(settings.node, name): look for name, look in found.items()}

    def check(self, settings: LabSettings, cases: Sequence[Case]) -> Iterator[Finding]:
        yield from check_host(settings, cases)
        for tool, package in TOOLS.items():
            where = shutil.which(tool)
            yield tool, where is not None, where or f"not installed: {INSTALL} {package}"
        yield from check_space(settings, volume_bytes(cases))
        yield from check_storages(settings)
        yield attempt("guest image", lambda: image_word(settings))
        yield _accelerator(settings.accelerator)


def require_tools() -> None:
    """Raise ToolsMissing if a program is not there that every case needs."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        packages = " ".join(TOOLS[tool] for tool in lacking)
        raise ToolsMissing(
            f"not installed: {', '.join(lacking)}", next_step=f"{INSTALL} {packages}"
        )


def _accelerator(wish: str) -> Finding:
    device = Path("/dev/kvm")
    usable = os.access(device, os.R_OK | os.W_OK)
    if wish == "tcg" or not usable:
        why = "set so" if wish == "tcg" else f"{device} cannot be used"
        return "accelerator", wish != "kvm", f"tcg ({why}); results carry accel=tcg"
    fault = remembered_fault(kvm_memory())
    if fault is None:
        return "accelerator", True, f"{device} is there, to be proved by the first run"
    if not fault:
        return "accelerator", True, "kvm, proved by a guest"
    return "accelerator", wish != "kvm", f"tcg ({fault}); results carry accel=tcg"


ENGINE: Final = LabEngine()
