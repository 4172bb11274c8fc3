"""Programs that a lab needs are asked for at once, and not found missing case by case.

Debian 13 has fincore in a package of its own that is not always there, seen in a fresh container.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.qemu.accelerator import Accelerator
from pvebench.drivers.qemu.block_graph import Names
from pvebench.drivers.qemu.qemu_hypervisor import PluggedDisk, QemuHypervisor, require_tools
from pvebench.drivers.storages.contract import Storage
from pvebench.drivers.vm_lifecycle import Power, VmState
from pvebench.errors import DriverError, HypervisorGone, OutcomeUnknown, SwitchFailed, ToolsMissing
from pvebench.guest.image import GuestImage
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.volume import Plug, Volume
from testing.null_journal import NullJournal


def only(directory: Path, *names: str) -> str:
    """Return a PATH on which there are these programs and no others."""
    for name in names:
        (directory / name).write_text("#!/bin/sh\n", "utf-8")
        (directory / name).chmod(0o755)
    return str(directory)


def test_all_missing_programs_are_named_at_once_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, "qemu-system-x86_64"))
    with pytest.raises(ToolsMissing, match="not installed: qemu-img, fincore") as error:
        require_tools()
    installing = "apt-get install --no-install-recommends"
    assert error.value.next_step == f"run `{installing} qemu-utils util-linux-extra`"


def test_a_lab_that_has_all_of_them_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, "qemu-system-x86_64", "qemu-img", "fincore"))
    require_tools()


DISK = Disk(bus=Bus.SCSI, format=Format.RAW, cache=Cache.NONE)
VOLUME = Volume(storage="local", volid="/volume", format="raw", size_bytes=1)


class FailingStorage:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def check(self, volume: Volume) -> None:
        pass

    def drop_caches(self, volume: Volume) -> None:
        raise self._error


class FailingQemu:
    """Running QEMU whose every command fails."""

    pid = 1

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def qmp(self) -> None:
        raise self._error


def hypervisor(tmp_path: Path, error: Exception) -> QemuHypervisor:
    qemu = QemuHypervisor(
        node="lab",
        storages={"local": cast(Storage, FailingStorage(error))},
        image=cast(GuestImage, None),
        accelerator=Accelerator.TCG,
        runtime=tmp_path,
        journal=NullJournal(),
        clock=SimulatedClock(),
    )
    qemu._vm = FailingQemu(error)  # type: ignore[assignment] # stands in for a process
    return qemu


GONE = HypervisorGone("QEMU exited", cause="it was killed", next_step="check QEMU's log")
ATTACH = "could not attach /volume as scsi, cache=none, aio=io_uring: "


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GONE, f"{ATTACH}{GONE}"),
        (
            DriverError("no device", cause="removed"),
            f"{ATTACH}no device\n  likely cause: removed\n"
            "  next step: no action needed; pvebench restarts the VM for the next run",
        ),
    ],
    ids=["driver", "no-next-step"],
)
def test_a_failed_attach_has_cause_and_next_step_once(
    tmp_path: Path, error: Exception, text: str
) -> None:
    with pytest.raises(SwitchFailed) as failed:
        hypervisor(tmp_path, error).attach(VOLUME, DISK)
    assert str(failed.value) == text


def test_a_response_without_the_disk_fails_the_attach(tmp_path: Path) -> None:
    error = KeyError("image")
    qemu, cold = hypervisor(tmp_path, error), replace(DISK, bus=Bus.SATA)
    guest = Mock(ask=Mock(side_effect=error))
    qemu._state = VmState(
        Power.RUNNING, guest=guest, disk=PluggedDisk(Names(1), Plug(VOLUME, cold))
    )
    with pytest.raises(SwitchFailed) as failed:
        qemu.attach(VOLUME, cold)
    unreported = SwitchFailed("QEMU does not report the disk: KeyError('image')")
    assert (
        str(failed.value)
        == f"could not attach /volume as sata, cache=none, aio=io_uring: {unreported}"
    )


def test_a_failed_detach_names_the_guest_only_if_it_does_not_respond(tmp_path: Path) -> None:
    causes = []
    for error in (GONE, OutcomeUnknown("no event within 60 s")):
        qemu = hypervisor(tmp_path, error)
        qemu._state = VmState(Power.RUNNING, disk=PluggedDisk(Names(1), Plug(VOLUME, DISK)))
        with pytest.raises(SwitchFailed, match="could not detach the test disk: ") as failed:
            qemu.detach()
        assert str(failed.value).count("likely cause: ") == 1
        causes.append(failed.value.cause)
    assert causes == ["it was killed", "the guest hangs or still uses the disk"]
