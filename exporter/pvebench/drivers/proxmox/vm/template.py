"""Template or VM of the user's that a benchmark VM is cloned from; it is only read and cloned.

Witness: `clone_vm` in PVE/API2/Qemu.pm of qemu-server. A clone has its description after the copy
of its first disk, the lock `clone` until its end, and its pool only after that. The task has the ID
of the template. A failed clone frees what it copied; a killed one leaves all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import INIT, Rejected
from pvebench.drivers.proxmox.api.tasks import Tasks
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm, NodeAccess
from pvebench.drivers.proxmox.vm.drive import disks_in, is_on, parse_drive
from pvebench.errors import AccessDenied, SwitchFailed
from pvebench.model.disk import Bus

CLONE: Final = "qmclone"
"""Type of the task of a clone."""
_CLONE_SECONDS: Final = 7200.0
"""A full clone copies the disks."""
_NOT_LINKED: Final = "Linked clone feature is not supported"
_UNSUITABLE: Final = {
    "net": "a network, which no benchmark VM has",
    "hostpci": "a device of the node",
    "usb": "a device of the node",
    "hookscript": "a script that each start runs on the node",
}
"""Start of a key -> what it is."""


@dataclass(frozen=True, slots=True)
class Template:
    """VM to clone: its ID, node and configuration."""

    vmid: int
    node: str
    config: Mapping[str, Any]

    @property
    def disks(self) -> dict[str, str]:
        """Key -> volid of each disk."""
        return disks_in(self.config)

    @property
    def storages(self) -> set[str]:
        """Storages of its disks."""
        return {volid.partition(":")[0] for volid in self.disks.values()}

    def faults(self) -> Iterator[str]:
        """Yield each reason against its use, with the command on the node that ends it."""
        change = f"run `qm set {self.vmid}"
        if lock := self.config.get("lock"):
            yield f"it is locked ({lock}): wait for the end of that task"
        for key in sorted(self.config):
            if what := _UNSUITABLE.get(key.rstrip("0123456789")):
                yield f"{key}, {what}: {change} --delete {key}`"
            elif parse_drive(str(self.config[key]))[0] == "cdrom":
                yield f"{key}, the node's drive: {change} --{key} none,media=cdrom`"
        if not is_on(_first(str(self.config.get("agent", "")), "enabled")):
            yield f"no guest agent: {change} --agent enabled=1`"
        systems = [slot for slot in self.disks if slot[:-1] in (Bus.SATA, Bus.IDE, Bus.VIRTIO)]
        if scsi := sorted(slot for slot in self.disks if slot.startswith("scsi")):
            yield (
                f"{scsi[0]}, whose controller is an axis: detach it with `qm set {self.vmid} "
                f"--delete {scsi[0]}`, attach the unused disk as sata0"
            )
        elif not systems:
            yield "it has no disk: install the system on sata0"
        order = _first(str(self.config.get("boot", "")), "order").split(";")
        if systems and not set(order) & set(systems):
            yield f"boot order without a disk: {change} --boot order={min(systems)}`"

    def clone(self, vm: BenchVm, description: str) -> None:
        """Clone it to a new VM in the pool: linked from a template where possible, else full.

        Raises as `Tasks.run`.
        """
        parameters = {"newid": vm.vmid, "pool": vm.access.pool, "description": description}
        try:
            self._clone(vm.access, parameters)
        except Rejected as error:
            if _NOT_LINKED not in error.text:
                raise
            self._clone(vm.access, {**parameters, "full": 1})

    def _clone(self, access: NodeAccess, parameters: Mapping[str, Any]) -> None:
        Tasks(access.api, self.node, access.clock, vmid=self.vmid).run(
            lambda: access.api.post(f"/nodes/{self.node}/qemu/{self.vmid}/clone", **parameters),
            kind=CLONE,
            what=f"VM {parameters['newid']}: clone VM {self.vmid}",
            seconds=_CLONE_SECONDS,
        )


def _first(text: str, name: str) -> str:
    """Return the value of the first key of a property string, whose name is optional."""
    default, options = parse_drive(text)
    return options.get(name, default)


def read_template(api: Api, node: str, vmid: int) -> Template:
    """Return a template, or a VM that is off.

    Raises:
        AccessDenied: it does not exist there, or the token may not read it.
        SwitchFailed: it runs.
    """
    path = f"/nodes/{node}/qemu/{vmid}"
    try:
        config = api.get(f"{path}/config", current=1)
        status = api.get(f"{path}/status/current")["status"]
    except (AccessDenied, Rejected) as error:
        raise AccessDenied(
            f"template {vmid} on {node} not readable: {error.happened}",
            cause="it is missing or on another node, or the token lacks rights on it",
            next_step=f"run `qm list` on {node}; for the rights, run `{INIT} --template {vmid}`",
        ) from error
    if status != "stopped":
        raise SwitchFailed(
            f"VM {vmid}, the template of the pack, is {status}",
            cause="a clone of a running Windows has a damaged file system",
            next_step=f"run `qm shutdown {vmid}` on {node}",
        )
    return Template(vmid, node, config)


def usable_template(api: Api, node: str, vmid: int) -> Template:
    """Return a template that suits. Raises as `read_template`, and SwitchFailed with all faults."""
    template = read_template(api, node, vmid)
    if faults := "; ".join(template.faults()):
        raise SwitchFailed(f"template {vmid} on {node} unsuitable: {faults}")
    return template
