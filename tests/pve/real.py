"""Real QEMU under the API: slots become devices, the agent's door leads to a guest.

Devices are named and nested as qemu-server does it for machine types from 10.0 on: file node,
format node, throttle filter; the virtio-scsi controller of virtio-scsi-single comes and goes with
its disk.
"""

from __future__ import annotations

import base64
import contextlib
import filecmp
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pve.cluster import MakeMachine
from pve.drives import SLOT, parse
from pve.machines import AgentRefusal, AgentSilence, Machine
from pve.storage import Volumes
from pvebench.drivers.qemu.machine import EMULATED_CPU, EMULATED_KERNEL
from pvebench.drivers.qemu.qmp import Channel, CommandRefused
from pvebench.errors import DriverError, HypervisorGone, OutcomeUnknown
from pvebench.guest.image import GuestImage
from pvebench.guest.recipe import KERNEL_ARGUMENTS

_DIRECT = ("none", "directsync")
_WRITE_THROUGH = ("writethrough", "directsync")
_QDEV = re.compile(r"(?:/machine/peripheral/)?((?:scsi|virtio|sata|ide)\d+)\b")
_BOOT_SECONDS = 560.0


def real(vmid: int, directory: Path, volumes: Volumes, qemu: Callable[[], str]) -> Machine:
    return RealMachine(directory, volumes, qemu)


def direct(image: GuestImage, *, node: Path | None = None) -> MakeMachine:
    """Return a maker of VMs that QEMU starts from the image's kernel.

    Args:
        node: directory of PID files and configurations, as the node of a running VM has them.

    A boot of the ISO by the BIOS takes TCG three times as much CPU. It has the same content:
    `test_the_iso_boots_through_the_bios_into_the_same_guest`.
    """

    def make(vmid: int, directory: Path, volumes: Volumes, qemu: Callable[[], str]) -> Machine:
        machine = RealMachine(directory, volumes, qemu, image)
        machine.place = (node, vmid) if node else None
        return machine

    return make


class RealMachine:
    """`Machine` with QEMU under TCG. Its version is told as the one that the node has installed."""

    def __init__(
        self,
        directory: Path,
        volumes: Volumes,
        qemu: Callable[[], str],
        image: GuestImage | None = None,
    ) -> None:
        self.place: tuple[Path, int] | None = None
        self._image = image
        self._installed_qemu = qemu
        self._version = ""
        self._directory = directory
        self._volumes = volumes
        self._directory_fd = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._qmp: Channel | None = None
        self._guest: Channel | None = None
        self._answered = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._plugged: dict[str, tuple[str, str]] = {}

    def start(self, config: Mapping[str, Any]) -> list[str]:
        if self._process is not None:
            self.stop()  # it was killed: its channels are still open
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._directory_fd < 0:
            self._directory_fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        self._answered.clear()
        self._version = self._installed_qemu()
        scsihw = str(config.get("scsihw", "lsi"))
        disks: list[str] = []
        self._plugged = {}
        shared = scsihw != "virtio-scsi-single"
        if shared:
            kind = {"virtio-scsi-pci": "virtio-scsi-pci"}.get(scsihw, "lsi53c895a")
            disks += ["-device", json.dumps({"driver": kind, "id": "scsihw0"})]
        if any(slot.startswith("sata") for slot in config):
            disks += ["-device", json.dumps({"driver": "ahci", "id": "ahci0"})]
        for slot, value in config.items():
            if SLOT.match(slot) and "media=cdrom" not in str(value):
                disks += self._command_line(slot, str(value), scsihw)
                self._plugged[slot] = (str(value), scsihw)
        iso = self._volumes.path(parse(str(config["ide2"]))[0])
        errors = os.open(
            self._directory / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        )
        self._process = subprocess.Popen(
            [
                "qemu-system-x86_64",
                "-machine",
                "type=pc,accel=tcg,usb=off",
                "-cpu",
                EMULATED_CPU,
                "-m",
                f"{config['memory']}M",
                "-smp",
                _smp(config),
                "-name",
                # qemu-server passes the ID as `-id`, an option that only its QEMU has.
                f"vm -id {self.place[1] if self.place else 0} end",
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-blockdev",
                json.dumps(
                    {"driver": "file", "node-name": "iso", "read-only": True, "filename": str(iso)}
                ),
                "-device",
                "ide-cd,bus=ide.1,unit=0,drive=iso,id=ide2,bootindex=100",
                "-chardev",
                "socket,id=qmp,path=qmp.sock,server=on,wait=off",
                "-mon",
                "chardev=qmp,mode=control",
                "-chardev",
                "socket,id=agent,path=agent.sock,server=on,wait=off",
                "-device",
                "virtio-serial-pci",
                "-device",
                "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
                "-chardev",
                "file,id=console,path=console.log",
                "-device",
                "isa-serial,chardev=console",
                "-device",
                "virtio-rng-pci",
                *self._direct_boot(iso),
                *disks,
            ],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stderr=errors,
        )
        os.close(errors)
        self._note(config)
        try:
            self._qmp = self._channel("qmp", negotiate=True)
            self._guest = self._channel("agent", negotiate=False)
        except HypervisorGone as error:
            self.stop()
            said = (self._directory / "stderr").read_text("utf-8", "replace").strip()
            raise RuntimeError(said.splitlines()[-1] if said else str(error)) from error
        threading.Thread(target=self._wait_for_agent, args=(self._guest,), daemon=True).start()
        return []

    def _note(self, config: Mapping[str, Any]) -> None:
        """Write PID file and configuration; the latter as `write_vm_config` of qemu-server."""
        if self.place is None:
            return
        node, vmid = self.place
        (node / f"{vmid}.pid").write_text(f"{self.pid}\n")
        lines = [f"#{text.replace(':', '%3A')}" for text in config["description"].splitlines()]
        lines += [f"{key}: {value}" for key, value in config.items() if key != "description"]
        (node / f"{vmid}.conf").write_text("".join(f"{line}\n" for line in lines))

    def _direct_boot(self, iso: Path) -> list[str]:
        if self._image is None:
            return []
        assert filecmp.cmp(iso, self._image.iso, shallow=False)
        files = ["-kernel", str(self._image.kernel), "-initrd", str(self._image.initramfs)]
        return [*files, "-append", KERNEL_ARGUMENTS + EMULATED_KERNEL]

    def _channel(self, name: str, *, negotiate: bool) -> Channel:
        def check() -> None:
            if not self.alive():
                raise HypervisorGone("QEMU has exited")

        # A UNIX socket's path may have 107 characters; through the descriptor it is short.
        path = f"/proc/self/fd/{self._directory_fd}/{name}.sock"
        channel = Channel(name, path, negotiate=negotiate, check=check)
        channel.connect(timeout=10.0)
        return channel

    def _wait_for_agent(self, guest: Channel) -> None:
        # One question that waits in the socket; several would be answered late, one by one.
        try:
            guest.execute("guest-ping", timeout=_BOOT_SECONDS)
        except DriverError:
            return
        if guest is self._guest:
            self._answered.set()

    def stop(self) -> None:
        for channel in (self._guest, self._qmp):
            if channel is not None:
                channel.close()
        self._guest = self._qmp = None
        self._answered.clear()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    @property
    def pid(self) -> int:
        """Of QEMU, which runs."""
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- disks -----------------------------------------------------------------------------

    def _objects(self, slot: str, value: str, scsihw: str) -> list[dict[str, Any]]:
        _, options = parse(value)
        limits = {}
        if "iops" in options:
            limits["iops-total"] = int(options["iops"])
        if "mbps" in options:
            limits["bps-total"] = int(options["mbps"]) << 20
        found: list[dict[str, Any]] = [
            {"qom-type": "throttle-group", "id": f"throttle-drive-{slot}", "limits": limits}
        ]
        if options.get("iothread") == "1" and _has_thread(slot, scsihw):
            found.append({"qom-type": "iothread", "id": _thread(slot)})
        return found

    def _nodes(self, slot: str, value: str) -> list[dict[str, Any]]:
        volid, options = parse(value)
        cache = options.get("cache", "none")
        discard = options.get("discard", "ignore") == "on"
        common = {
            "cache": {"direct": cache in _DIRECT, "no-flush": cache == "unsafe"},
            "discard": "unmap" if discard else "ignore",
        }
        zeroes = options.get("detect_zeroes", "1") == "1"
        detect = ("unmap" if discard else "on") if zeroes else "off"
        return [
            {
                "driver": "file",
                "node-name": f"e-{slot}",
                "filename": str(self._volumes.path(volid)),
                "aio": options.get("aio", "io_uring"),
                "locking": "off",
                **common,
            },
            {
                "driver": self._volumes.format(volid),
                "node-name": f"f-{slot}",
                "file": f"e-{slot}",
                "detect-zeroes": detect,
                **common,
            },
            {
                "driver": "throttle",
                "node-name": f"drive-{slot}",
                "file": f"f-{slot}",
                "throttle-group": f"throttle-drive-{slot}",
                **common,
            },
        ]

    @staticmethod
    def _devices(slot: str, value: str, scsihw: str) -> list[dict[str, Any]]:
        _, options = parse(value)
        number = int(slot.lstrip("scivrtaode") or 0)
        disk: dict[str, Any] = {
            "id": slot,
            "drive": f"drive-{slot}",
            "write-cache": "off" if options.get("cache") in _WRITE_THROUGH else "on",
        }
        if "serial" in options:
            disk["serial"] = options["serial"]
        if options.get("ssd") == "1":
            disk["rotation_rate"] = 1
        thread = {"iothread": _thread(slot)} if options.get("iothread") == "1" else {}
        if slot.startswith("virtio"):
            return [{"driver": "virtio-blk-pci", **disk, **thread}]
        if slot.startswith("scsi") and scsihw == "virtio-scsi-single":
            controller: dict[str, Any] = {"driver": "virtio-scsi-pci", "id": f"virtio{slot}"}
            if "queues" in options:
                controller["num_queues"] = int(options["queues"])
            place = {"bus": f"virtio{slot}.0", "channel": 0, "scsi-id": 0, "lun": 1}
            return [controller | thread, {"driver": "scsi-hd", **place, **disk}]
        if slot.startswith("scsi"):
            place = {"bus": "scsihw0.0", "scsi-id": number, "lun": 0}
            return [{"driver": "scsi-hd", **place, **disk}]
        bus = f"ahci0.{number}" if slot.startswith("sata") else "ide.0"
        place = {"bus": bus} if slot.startswith("sata") else {"bus": bus, "unit": number % 2}
        return [{"driver": "ide-hd", **place, **disk}]

    def _command_line(self, slot: str, value: str, scsihw: str) -> list[str]:
        found: list[str] = []
        for thing in self._objects(slot, value, scsihw):
            found += ["-object", json.dumps(thing)]
        for node in self._nodes(slot, value):
            found += ["-blockdev", json.dumps(node)]
        for device in self._devices(slot, value, scsihw):
            found += ["-device", json.dumps(device)]
        return found

    def _ask(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        if self._qmp is None:
            raise RuntimeError("VM not running")
        try:
            return self._qmp.execute(command, arguments)
        except CommandRefused as error:
            raise RuntimeError(f"qmp command '{command}' failed - {error.text}") from error
        except DriverError as error:
            raise RuntimeError(f"qmp command '{command}' failed - got timeout") from error

    def plug(self, slot: str, value: str, scsihw: str) -> None:
        for thing in self._objects(slot, value, scsihw):
            self._ask("object-add", thing)
        try:
            for node in self._nodes(slot, value):
                self._ask("blockdev-add", node)
            for device in self._devices(slot, value, scsihw):
                self._ask("device_add", device)
        except RuntimeError:
            self._clear(slot, value, scsihw)
            raise
        self._plugged[slot] = (value, scsihw)

    def _clear(self, slot: str, value: str, scsihw: str) -> None:
        commands = [
            ("blockdev-del", {"node-name": f"{name}-{slot}"}) for name in ("drive", "f", "e")
        ]
        commands += [
            ("object-del", {"id": thing["id"]}) for thing in self._objects(slot, value, scsihw)
        ]
        for command, arguments in commands:
            with contextlib.suppress(RuntimeError):
                self._ask(command, arguments)

    def unplug(self, slot: str) -> None:
        value, scsihw = self._plugged[slot]
        if self._qmp is None:
            raise RuntimeError("VM not running")
        for device in reversed(self._devices(slot, value, scsihw)):
            try:
                self._qmp.execute_until(
                    "device_del",
                    {"id": device["id"]},
                    event="DEVICE_DELETED",
                    device=device["id"],
                    timeout=5.0,
                )
            except DriverError as error:
                raise RuntimeError(
                    f"error on hot-unplugging device '{device['id']}' - still busy in guest?"
                ) from error
        del self._plugged[slot]
        self._clear(slot, value, scsihw)

    def qmp_status(self) -> str:
        return str(self._ask("query-status")["status"])

    def blockstat(self) -> dict[str, dict[str, int]]:
        found = {}
        for entry in self._ask("query-blockstats"):
            match = _QDEV.match(str(entry.get("qdev", "")))
            if match:
                found[match[1]] = entry["stats"]
        return found

    def versions(self) -> tuple[str, str]:
        machine = self._ask("qom-get", {"path": "/machine", "property": "type"})
        return self._version, str(machine).removesuffix("-machine")

    def monitor(self, command: str) -> str:
        return str(self._ask("human-monitor-command", {"command-line": command}))

    # --- agent -----------------------------------------------------------------------------

    def agent(self, command: str, arguments: Mapping[str, Any]) -> Any:
        if not self._answered.is_set():
            time.sleep(0.2)  # Proxmox waits three seconds here
            raise AgentSilence
        with self._one_at_a_time:
            match command:
                case "ping":
                    return self._say("guest-ping")
                case "exec":
                    return self._exec(arguments)
                case "exec-status":
                    return self._status(int(arguments["pid"]))
                case "file-read":
                    return self._read(str(arguments["file"]))
                case "file-write":
                    return self._write(str(arguments["file"]), arguments["content"])
        raise AgentRefusal(f"The command guest-{command} has not been found")

    def _say(self, command: str, **arguments: Any) -> Any:
        if self._guest is None:
            raise AgentSilence
        plain = {key.replace("_", "-"): value for key, value in arguments.items()}
        try:
            return self._guest.execute(command, plain or None, timeout=15.0)
        except CommandRefused as error:
            raise AgentRefusal(error.text) from error
        except (OutcomeUnknown, HypervisorGone) as error:
            self._answered.clear()
            raise AgentSilence from error

    def _exec(self, arguments: Mapping[str, Any]) -> Any:
        path, *rest = arguments["command"]
        given = base64.b64encode(arguments["input"]).decode("ascii")
        more = {"input_data": given} if given else {}
        try:
            return self._say("guest-exec", path=path, arg=rest, capture_output=True, **more)
        except AgentRefusal as error:
            if "No such file" in str(error):
                raise FileNotFoundError(path) from error
            raise

    def _status(self, pid: int) -> dict[str, Any]:
        status = self._say("guest-exec-status", pid=pid)
        if not status["exited"]:
            return {"exited": 0}
        return {
            "exited": 1,
            "exitcode": status.get("exitcode", 0),
            "out": base64.b64decode(status.get("out-data", "")),
            "err": base64.b64decode(status.get("err-data", "")),
        }

    def _read(self, path: str) -> bytes:
        try:
            handle = self._say("guest-file-open", path=path, mode="r")
        except AgentRefusal as error:
            raise AgentRefusal(f"failed to open file '{path}' (mode: 'r'): {error}") from error
        pieces = []
        try:
            while True:
                got = self._say("guest-file-read", handle=handle, count=1 << 20)
                pieces.append(base64.b64decode(got["buf-b64"]))
                if got["eof"] or not got["count"]:
                    return b"".join(pieces)
        finally:
            self._say("guest-file-close", handle=handle)

    def _write(self, path: str, content: bytes) -> None:
        handle = self._say("guest-file-open", path=path, mode="w")
        try:
            text = base64.b64encode(content).decode("ascii")
            self._say("guest-file-write", handle=handle, buf_b64=text)
        finally:
            self._say("guest-file-close", handle=handle)


def _smp(config: Mapping[str, Any]) -> str:
    """Return what qemu-server makes of `vcpus` and `cores`; `sockets` is 1.

    Room for two CPUs at least: this is TCG also where the VM's options say KVM, and with room for
    one TCG loses notifications of virtio (`cpus_option` in
    drivers/qemu/machine.py).
    """
    cores = int(config.get("cores", 1))
    vcpus, room = int(config.get("vcpus", cores)), max(2, cores)
    return f"{vcpus},sockets=1,cores={room},maxcpus={room}"


def _has_thread(slot: str, scsihw: str) -> bool:
    return slot.startswith("virtio") or (slot.startswith("scsi") and scsihw == "virtio-scsi-single")


def _thread(slot: str) -> str:
    return f"iothread-virtio{slot}" if slot.startswith("scsi") else f"iothread-{slot}"
