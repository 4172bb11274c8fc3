"""Engine of driver `host`: a site without a VM."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pvebench.drivers.backend_router import BackendRouter, LocalBackend
from pvebench.drivers.driver import Engine, Finding, Workplace, attempt, guest_image, image_word
from pvebench.drivers.host import HostSettings, remote_host
from pvebench.drivers.host.host_disk import HostDisk
from pvebench.drivers.host.this_machine import ThisMachine
from pvebench.drivers.linux.host_tools import tool_version
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.drivers.lxc.container import Container, found_here
from pvebench.drivers.lxc.container_disk import ContainerDisk
from pvebench.drivers.storages.contract import Storage, instance_id
from pvebench.drivers.storages.settings import (
    LocalSettings,
    check_networks,
    faults_of,
    identities_of,
    make_storages,
    networks_of,
)
from pvebench.drivers.undo import undo_pending
from pvebench.guest.recipe import PROGRAMS
from pvebench.model.disk import Bus
from pvebench.model.ports import Hypervisor, Journal, Site
from pvebench.model.volume import Identity
from pvebench.model.workload import Case
from pvebench.workloads import TOOLS

_SBIN: Final = "/usr/sbin:/sbin"
"""Directories that are not on every user's PATH, but that jobs search too."""


class HostEngine(Engine):
    """`drivers.driver.Engine` of this machine, or of one reached by ssh."""

    def sites(self, settings: HostSettings, place: Workplace) -> list[Site]:
        if settings.ssh is not None:
            return [remote_host.site(settings, settings.ssh, place)]
        storages = make_storages(settings, place)
        host = host_of(settings, place, storages)
        container = container_of(settings, place, storages)
        router = local_router(host, host, container, facts={"lxc": tool_version("lxc-start")})
        probe = ProcProbe(
            lambda: None,
            lambda: (router.replacement or host).volume_path,
            container=lambda: container.pid,
        )
        return [
            Site(
                node=settings.node,
                hypervisor=router,
                probe=probe,
                clock=place.clock,
                networks=networks_of(settings),
                faults=faults_of(settings),
                identify=lambda name: identities_of(settings)[name](),
            )
        ]

    def undo(self, settings: HostSettings, journal: Journal) -> list[str]:
        """Undo the entries of driver `qemu` too, which works with the same storages."""
        more = remote_host.undo(settings.ssh)
        instance = instance_id(settings.state)
        return undo_pending(journal, more, instance=instance, runtime=settings.runtime)

    def identities(self, settings: HostSettings) -> dict[tuple[str, str], Callable[[], Identity]]:
        functions = remote_host.unidentified(settings) if settings.ssh else identities_of(settings)
        return {(settings.node, name): look for name, look in functions.items()}

    def check(self, settings: HostSettings, cases: Sequence[Case]) -> Iterator[Finding]:
        if settings.ssh is not None:
            return remote_host.check(settings, settings.ssh, cases)
        return _check_here(settings, cases)


def _check_here(settings: HostSettings, cases: Sequence[Case]) -> Iterator[Finding]:
    yield from check_host(settings, cases)
    if any(case.scenario.disk.in_container for case in cases):
        yield attempt("guest image", lambda: image_word(settings))


def check_host(settings: LocalSettings, cases: Sequence[Case]) -> Iterator[Finding]:
    """Yield checks for host cases, and for VMs and containers on the same storages."""
    yield from check_networks(settings)
    host_cases = [case for case in cases if case.scenario.disk.on_host]
    if any(case.scenario.disk.in_container for case in cases):
        yield "lxc", *found_here()
    programs = {TOOLS[case.workload.tool].program for case in host_cases} - {""}
    if any(case.scenario.disk.drive_cache is not None for case in cases):
        programs.add("hdparm")
    for name in sorted(programs):
        where = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")
        missing = f"not installed on the host; run `apt-get install {PROGRAMS[name]}`"
        yield name, where is not None, where or missing


def host_of(settings: LocalSettings, place: Workplace, storages: dict[str, Storage]) -> HostDisk:
    """Return the backend of host cases on `storages`."""
    return HostDisk(
        node=settings.node, storages=storages, machine=ThisMachine(place.runtime, place.journal)
    )


def local_router(
    vm: Hypervisor,
    host: HostDisk,
    container: LocalBackend | None = None,
    *,
    facts: Mapping[str, str] | None = None,
) -> BackendRouter[LocalBackend]:
    """Return the router to a VM, the host and a container of this machine on the same volumes."""
    backends: dict[Bus, LocalBackend] = {Bus.LXC: container} if container is not None else {}
    return BackendRouter(vm, {**backends, Bus.HOST: host}, tune=host.tune, facts=facts)


def container_of(
    settings: LocalSettings, place: Workplace, storages: dict[str, Storage]
) -> ContainerDisk:
    """Return the backend of container cases; nothing is created yet."""
    return ContainerDisk(
        Container(instance_id(settings.state), journal=place.journal, clock=place.clock),
        storages=storages,
        image=lambda: guest_image(settings, place),
        clock=place.clock,
    )


ENGINE: Final = HostEngine()
