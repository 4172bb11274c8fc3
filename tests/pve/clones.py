"""Clones of VMs and templates, as tasks of the node.

Witness: `clone_vm` and `check_storage_access_clone` in PVE/API2/Qemu.pm (qemu-server, commit
e6352be67f70); the refusal without VM.Clone as in the recording `clone.full`. What a storage can
clone is `volume_has_feature` of its plugin.
"""

from __future__ import annotations

import shutil
import threading
from typing import Any

from pve.access import Access
from pve.drives import SLOT, parse, render
from pve.refusals import Refused, failure
from pve.storage import FILES, Volumes
from pve.tasks import Killed, Task, TaskFailure, Tasks
from pve.vms import Vm

_INTERRUPTED = "interrupted by signal"
_OTHERS = ("efidisk0", "tpmstate0")


class CloneCalls:
    """What a cluster answers about clones.

    Attributes:
        may_copy: until it is set, the copy of a disk does not end.
    """

    tasks: Tasks
    access: Access
    vms: dict[int, Vm]
    pools: dict[str, set[int]]

    def __init__(self) -> None:
        self.may_copy = threading.Event()
        self.may_copy.set()

    def vm(self, node: str, vmid: str | int) -> Vm:
        raise NotImplementedError

    def _reserve(self, node: str, vmid: int) -> Vm:
        raise NotImplementedError

    def make_template(
        self, vmid: int, node: str = "pve1", *, template: bool = True, **config: str
    ) -> Vm:
        """Install a VM of the user's: each `STORAGE:SIZE` of a disk becomes a volume."""
        vm = self._reserve(node, vmid)
        vm.config.clear()
        for key, value in config.items():
            disk = _is_disk(key, value)
            vm.config[key] = _install(vm, value, template=template) if disk else value
        if template:
            vm.config["template"] = "1"
        return vm

    def post_nodes_qemu_clone(
        self,
        who: str,
        node: str,
        vmid: str,
        newid: str,
        pool: str = "",
        description: str = "",
        full: str | None = None,
        name: str = "",
        **_: Any,
    ) -> str:
        number = int(newid)
        source = self.vm(node, vmid)
        if pool and pool not in self.pools:
            raise failure(f"pool '{pool}' does not exist")
        source.refuse_lock()
        is_template = str(source.config.get("template", "0")) == "1"
        whole = full == "1" if full is not None else not is_template
        self._need_clone_rights(who, source)
        if number in self.vms:
            raise failure(f"unable to create VM {newid}: config file already exists")
        drives = {key: value for key, value in source.config.items() if _is_disk(key, value)}
        linked = {key for key in drives if not whole and key != "tpmstate0"}
        _refuse_links(source.volumes, {key: parse(drives[key])[0] for key in linked})
        others = {
            key: value
            for key, value in source.config.items()
            if key not in drives and key != "template" and not key.startswith("unused")
        }

        def clone(task: Task) -> None:
            vm = self._reserve(node, number)
            vm.config.clear()
            vm.config |= {"lock": "clone", "description": "qmclone temporary file\n"}
            config = {**others, "lock": "clone", "name": name or f"Copy-of-VM-{vmid}"}
            config |= {"description": description} if description else {}
            try:
                for key in sorted(drives):
                    copy = self._copy_disk(task, source.volumes, drives[key], number, key in linked)
                    config[key] = copy
                    vm.config.clear()
                    vm.config |= config
            except Killed:
                raise
            except BaseException as error:
                for volid in vm.volumes.owned(number):
                    vm.volumes.free(volid)
                del self.vms[number]
                text = error.reason if isinstance(error, Refused) else str(error)
                raise TaskFailure(f"clone failed: {text}") from error
            del vm.config["lock"]
            if pool:
                self.pools[pool].add(number)

        return self.tasks.run(node, "qmclone", vmid, who, clone)

    def _need_clone_rights(self, who: str, source: Vm) -> None:
        for key, value in source.config.items():
            volid = parse(str(value))[0]
            if _is_disk(key, value):
                sid = volid.partition(":")[0]
                self.access.need(who, f"/storage/{sid}", ["Datastore.AllocateSpace"])
            elif SLOT.match(key) and volid == "cdrom":
                self.access.need(who, "/", ["Sys.Console"])
            elif key.startswith("net"):
                bridge = parse(str(value))[1]["bridge"]
                path = f"/sdn/zones/localnetwork/{bridge}"
                self.access.need(who, path, ["SDN.Use"])

    def _copy_disk(self, task: Task, volumes: Volumes, drive: str, vmid: int, linked: bool) -> str:
        volid, options = parse(drive)
        storage, _, name = volid.partition(":")
        volumes.storage(storage).activate()
        form = volumes.format(volid)
        new = volumes.next_name(storage, vmid, form)
        size = volumes.size(volid)
        copy = volumes.allocate(storage, vmid, new, size, form)
        shutil.copyfile(volumes.path(volid), volumes.path(copy))
        if linked:
            copy = volumes.rename(copy, f"{storage}:{name}/{copy.partition(':')[2]}")
        while not self.may_copy.wait(0.02):
            if task.stopped.is_set():
                raise Killed if task.kind in self.tasks.deaf else TaskFailure(_INTERRUPTED)
        return render(copy, options)


def _is_disk(key: str, value: Any) -> bool:
    return key in _OTHERS or bool(SLOT.match(key) and "media=cdrom" not in str(value))


def _install(vm: Vm, text: str, *, template: bool) -> str:
    """Create the disk `STORAGE:MIB` as a template has it after its conversion."""
    storage, _, size = text.partition(":")
    form = "qcow2" if vm.volumes.storage(storage).type in FILES else "raw"
    number = len(vm.volumes.owned(vm.vmid))
    name = f"{'base' if template else 'vm'}-{vm.vmid}-disk-{number}"
    name += f".{form}" if vm.volumes.storage(storage).type in FILES else ""
    volid = vm.volumes.allocate(storage, vm.vmid, name, int(size) << 20, form)
    return render(volid, {"size": f"{size}M"})


def _refuse_links(volumes: Volumes, drives: dict[str, str]) -> None:
    for key, volid in sorted(drives.items()):
        if not _links(volumes, volid):
            raise failure(f"Linked clone feature is not supported for '{volid}' ({key})")


def _links(volumes: Volumes, volid: str) -> bool:
    kind = volumes.storages[volid.partition(":")[0]].type
    if kind in FILES:
        return volumes.format(volid) != "raw"
    return kind in ("lvmthin", "zfspool", "rbd")
