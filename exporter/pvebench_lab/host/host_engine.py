"""This machine for host cases, and the engine of driver `host`: a site without a VM."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from pvebench.drivers.backend_router import BackendKind, local_router
from pvebench.drivers.driver import (
    DriverContext,
    Engine,
    Finding,
    attempt,
    guest_image,
    image_summary,
)
from pvebench.drivers.linux.block_devices import VolumeFile, devices_below
from pvebench.drivers.linux.host_tools import HostTools, tool_version
from pvebench.drivers.linux.io_counters import counters_of
from pvebench.drivers.linux.procfs import ProcProbe, host_facts
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.storages.contract import MARK, Storage, instance_id
from pvebench.drivers.storages.storage_settings import (
    LocalSettings,
    check_networks,
    flush_facts,
    identities_of,
    make_storages,
    storage_functions,
)
from pvebench.errors import MachineError
from pvebench.files import remove_tree
from pvebench.guest.recipe import PROGRAMS
from pvebench.model.disk import Bus, Disk
from pvebench.model.ports import Journal, Site
from pvebench.model.volume import BlockCounters, Identity
from pvebench.model.workload import Case
from pvebench.workloads import TOOLS
from pvebench_lab.host import HostSettings, remote_host
from pvebench_lab.host.device_tuning import Tuner
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.lxc.container import Container, container_support
from pvebench_lab.lxc.container_disk import ContainerDisk

# --- this machine


KIND: Final = "scratch"
"""Kind of the journal entries of directories for tools' files."""


class ThisMachine:
    """Local `host_disk.HostMachine`. Owned by one worker thread.

    Args:
        runtime: directory for jobs and their output.
    """

    def __init__(self, runtime: Path, journal: Journal) -> None:
        self.tools = HostTools()
        self.work = str(runtime / "host-work")
        self._journal = journal
        self._tuner = Tuner(journal)
        self._scratch: tuple[Path, int] | None = None

    def find(self, path: str) -> VolumeFile:
        with Path(path).open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
        return VolumeFile(size_bytes=size, is_device=Path(path).is_block_device())

    def counters(self, path: str) -> BlockCounters | None:
        return counters_of(Path("/"), devices_below(Path(path)))

    def tune(self, path: str, disk: Disk) -> dict[str, str]:
        return self._tuner.apply(Path(path), disk)

    def untune(self) -> None:
        self._tuner.undo()

    def make_scratch(self, volume: str) -> str:
        path = Path(f"{volume}-scratch")
        remove_scratch(path)  # leftover of a crash: the name contains this instance's id
        self._scratch = (path, self._journal.open(KIND, {"path": str(path)}))
        path.mkdir(parents=True)
        return str(path)

    def remove_scratch(self) -> None:
        if self._scratch is not None:
            path, entry = self._scratch
            self._scratch = None
            with suppress(MachineError, OSError):  # the entry stays open; the next start reports it
                remove_scratch(path)
                self._journal.close(entry)

    def facts(self) -> dict[str, str]:
        return host_facts() | {"fio": tool_version("fio")}

    def close(self) -> None:
        self.tools.close()
        with suppress(MachineError):  # files of a few KiB, which the next start reuses
            remove_tree(Path(self.work))


def remove_scratch(path: Path) -> None:
    """Remove a directory of tools' files, but only with the ownership marker in its name."""
    if path.name.startswith(MARK):
        if path.is_symlink():
            path.unlink()  # not created by pvebench; its target must not be removed
        remove_tree(path)


def undo_scratch(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND."""
    remove_scratch(Path(details["path"]))
    return f"removed the tools' files in {details['path']}"


class HostEngine(Engine):
    """`drivers.driver.Engine` of this machine, or of one reached by ssh."""

    def sites(self, settings: HostSettings, place: DriverContext) -> list[Site]:
        if settings.ssh is not None:
            return [remote_host.site(settings, settings.ssh, place)]
        storages = make_storages(settings, place)
        host = host_of(settings, place, storages)
        container = container_of(settings, place, storages)
        backends = {Bus.LXC: container, Bus.HOST: host}
        router = local_router(host, backends, [CONTAINER], partial(flush_facts, settings))
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
                storages=storage_functions(settings),
            )
        ]

    def undo(self, settings: HostSettings, journal: Journal) -> list[str]:
        """Undo the entries of driver `qemu` too, which works with the same storages."""
        more = remote_host.undo(settings.ssh)
        instance = instance_id(settings.state)
        return undo_local(journal, more, instance=instance, runtime=settings.runtime)

    def identities(self, settings: HostSettings) -> dict[tuple[str, str], Callable[[], Identity]]:
        # Identities over ssh are not supported: each is unknown.
        unknown: dict[str, Callable[[], Identity]] = dict.fromkeys(settings.storages, dict)
        functions = unknown if settings.ssh else identities_of(settings)
        return {(settings.node, name): look for name, look in functions.items()}

    def check(self, settings: HostSettings, cases: Sequence[Case]) -> Iterator[Finding]:
        if settings.ssh is not None:
            yield from remote_host.check(settings, settings.ssh, cases)
            return
        yield from check_networks(settings)
        yield from _check_container(cases)
        yield from _check_host(cases)
        if any(case.scenario.disk.in_container for case in cases):
            yield attempt("guest image", lambda: image_summary(settings))


def _check_container(cases: Sequence[Case]) -> Iterator[Finding]:
    if any(case.scenario.disk.in_container for case in cases):
        yield "lxc", *container_support()


def _check_host(cases: Sequence[Case]) -> Iterator[Finding]:
    host_cases = [case for case in cases if case.scenario.disk.on_host]
    programs = {TOOLS[case.workload.tool].program for case in host_cases} - {""}
    if any(case.scenario.disk.drive_cache is not None for case in cases):
        programs.add("hdparm")
    for name in sorted(programs):
        where = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{remote_host.SBIN}")
        missing = f"not installed on the host; run `apt-get install {PROGRAMS[name]}`"
        yield name, where is not None, where or missing


def host_of(
    settings: LocalSettings, place: DriverContext, storages: dict[str, Storage]
) -> HostDisk:
    """Return the backend of host cases on `storages`."""
    return HostDisk(
        node=settings.node, storages=storages, machine=ThisMachine(place.runtime, place.journal)
    )


def container_of(
    settings: LocalSettings, place: DriverContext, storages: dict[str, Storage]
) -> ContainerDisk:
    """Return the backend of container cases; nothing is created yet."""
    return ContainerDisk(
        Container(instance_id(settings.state), journal=place.journal, clock=place.clock),
        storages=storages,
        image=lambda: guest_image(settings, place),
        clock=place.clock,
    )


HOST: Final = BackendKind(
    bus=Bus.HOST, make=host_of, check=_check_host, facts=lambda: {"host_fio": tool_version("fio")}
)
CONTAINER: Final = BackendKind(
    bus=Bus.LXC,
    make=container_of,
    check=_check_container,
    facts=lambda: {"lxc": tool_version("lxc-start")},
)
ENGINE: Final = HostEngine()
