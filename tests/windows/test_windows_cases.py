"""Packs with a Windows guest: errors with their place, reasons in the plan, QEMU's command line."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import Lab
from pve.site import small_image
from pvebench.cli.main import run_cli
from pvebench.config.pack import load_pack
from pvebench.config.settings import load_settings
from pvebench.drivers import driver_of
from pvebench.drivers.proxmox.vm.drive import storage_kind
from pvebench.drivers.qemu import qemu_hypervisor
from pvebench.drivers.qemu.accelerator import Accelerator
from pvebench.drivers.qemu.machine import SYSTEM, arguments
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.qemu_img import image_format, overlay_on, run_qemu_img
from pvebench.errors import ConfigError, DriverError, VolumeError
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.rules import why_not, why_not_run
from pvebench.model.scenario import Filesystem, Layout, Machine, Scenario
from pvebench.model.units import GIB, MIB
from pvebench.scheduler.plan import expand, make_plan
from testing.packs import tool_workload

pytestmark = pytest.mark.lab

LINUX = Machine(memory_bytes=4 * GIB, cpus=2)
MACHINE = replace(LINUX, os="windows", image="/images/windows.qcow2")
SCENARIO = Scenario(
    node="n",
    storage="local",
    disk=Disk(bus=Bus.SCSI, format=Format.RAW, cache=Cache.NONE),
    machine=MACHINE,
    volume_bytes=4 * GIB,
)
NTFS = Layout(filesystem=Filesystem.NTFS, file_bytes=GIB)
LOCAL = KINDS["dir"].holds


def pack(tmp_path: Path, guest: str) -> Path:
    path = tmp_path / "windows.yaml"
    path.write_text(
        f"pack: windows\nguest: {guest}\nworkloads:\n  - fio: {{rw: read, bs: 4k}}\n", "utf-8"
    )
    return path


@pytest.mark.parametrize(
    ("guest", "message"),
    [
        ("{os: windows, memory: 4G}", "needs image, the file of an installed disk, or template"),
        ("{os: windows, image: /w.qcow2, template: 900, memory: 4G}", "one of them, not both"),
        ("{os: windows, template: 99, memory: 4G}", "template"),
        ("{template: 900}", "os linux boots pvebench's own guest image"),
        ("{fio: /fio.exe}", "fio: os linux boots pvebench's own guest image"),
        ("{os: windows, fio: /fio.exe, memory: 4G}", "needs image"),
        ("{os: windows, image: /w.qcow2}", "use at least 2G"),
        ("{image: /w.qcow2}", "os linux boots pvebench's own guest image"),
        ("{os: beos, memory: 4G}", "windows"),
    ],
)
def test_a_wrong_guest_is_an_error_with_its_line(tmp_path: Path, guest: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as wrong:
        load_pack(pack(tmp_path, guest))
    assert "windows.yaml:2:" in str(wrong.value)


def test_the_plan_has_the_minutes_of_a_boot_of_windows(tmp_path: Path) -> None:
    seconds = {}
    for guest in ("{memory: 4G}", "{os: windows, image: /w.qcow2, memory: 4G}"):
        loaded = load_pack(pack(tmp_path, guest))
        plan = make_plan(expand(loaded, node="n", storages={"local": LOCAL}), seed=1)
        assert plan.restarts == 1
        seconds[guest] = plan.seconds
    first, last = seconds.values()
    assert last - first == pytest.approx(110)


def test_both_systems_have_histories_of_their_own() -> None:
    linux = replace(SCENARIO, machine=LINUX)
    assert SCENARIO.slug == f"{linux.slug}.os-windows"
    assert SCENARIO.fingerprint != linux.fingerprint
    assert "os" not in linux.meaning()
    assert SCENARIO.meaning()["image"] == MACHINE.image
    host = replace(SCENARIO, disk=replace(SCENARIO.disk, bus=Bus.HOST))
    assert host.fingerprint == replace(host, machine=LINUX).fingerprint


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        (replace(SCENARIO, layout=NTFS, machine=LINUX), "ntfs needs a guest with windows"),
        (
            replace(SCENARIO, layout=replace(NTFS, filesystem=Filesystem.EXT4)),
            "ext4 needs a guest with linux",
        ),
        (replace(SCENARIO, layout=replace(NTFS, mount_options="noatime")), "no mount options"),
        (replace(SCENARIO, disk=replace(SCENARIO.disk, chain=1)), "needs chain 0"),
    ],
)
def test_a_disk_that_the_guest_cannot_use_is_left_out_with_its_reason(
    scenario: Scenario, reason: str
) -> None:
    assert reason in (why_not(scenario, LOCAL) or "")


def test_a_windows_guest_has_its_disk_and_its_file_systems() -> None:
    assert not why_not(SCENARIO, LOCAL)
    for layout in (NTFS, replace(NTFS, filesystem=Filesystem.REFS)):
        assert not why_not(replace(SCENARIO, layout=layout), LOCAL)


def test_each_driver_boots_windows_from_its_own_key_of_the_pack_and_says_so() -> None:
    cloned = replace(SCENARIO, machine=replace(LINUX, os="windows", template=900))
    assert "from guest.template of the pack" in (why_not(SCENARIO, storage_kind("dir")) or "")
    assert not why_not(cloned, storage_kind("dir"))
    assert "from guest.image of the pack" in (why_not(cloned, LOCAL) or "")
    simulated = driver_of("simulated").storages(load_settings(None), None)["local"].holds
    assert why_not(SCENARIO, simulated) == "the simulated driver has Linux guests only"


def test_another_template_is_another_history_but_not_fio_beside_the_pack(tmp_path: Path) -> None:
    own, same, other = (
        load_pack(pack(tmp_path, f"{{os: windows, memory: 4G, template: {more}}}")).machine
        for more in ("900", "900, fio: fio.exe", "901")
    )
    prints = [replace(SCENARIO, machine=machine).fingerprint for machine in (own, same, other)]
    assert (own.fio, same.fio) == ("", f"{tmp_path}/fio.exe")
    assert prints[0] == prints[1] != prints[2]
    assert own.foreign == {"os": "windows", "template": "900"}


@pytest.mark.parametrize(
    ("tool", "options", "reason"),
    [
        ("fio", {"rw": "randtrim", "bs": "4k"}, "fio cannot trim in a guest with windows"),
        ("fio", {"rw": "read", "bs": "4k", "ioengine": "io_uring"}, "io_uring belongs to linux"),
        ("ioping", {}, "ioping needs a guest with linux"),
        ("fio", {"rw": "read", "bs": "4k", "vms": 2}, "several VMs need guests with linux"),
    ],
)
def test_what_windows_cannot_run_is_left_out_with_its_reason(
    tool: str, options: dict[str, Any], reason: str
) -> None:
    workload = tool_workload(tool, options)
    assert reason in (why_not_run(SCENARIO, workload, LOCAL) or "")
    assert reason not in (why_not_run(replace(SCENARIO, machine=LINUX), workload, LOCAL) or "")


def test_a_workload_of_fio_runs_on_both() -> None:
    for options in ({"rw": "randread", "bs": "4k", "iodepth": 32}, {"rw": "write", "bs": "1M"}):
        assert why_not_run(SCENARIO, tool_workload("fio", options), LOCAL) is None


def test_qemu_boots_an_overlay_of_the_image_and_never_the_image(tmp_path: Path) -> None:
    words = arguments("0" * 32, small_image(tmp_path), MACHINE, Accelerator.KVM)
    assert not {"-kernel", "-initrd", "-append"} & set(words)
    assert MACHINE.image not in " ".join(words)
    assert any(f"file={SYSTEM}" in word for word in words)
    assert "-netdev" not in words
    assert any("hv_relaxed" in word for word in words)


@pytest.mark.parametrize("form", ["raw", "qcow2"])
def test_an_overlay_leaves_the_image_as_it_is(tmp_path: Path, form: str) -> None:
    image, overlay = tmp_path / "windows.img", tmp_path / SYSTEM
    (plain := tmp_path / "plain").write_bytes(bytes(510) + b"\x55\xaa" + bytes(8 * MIB - 512))
    run_qemu_img("convert", "-O", form, str(plain), str(image))
    before = image.read_bytes()
    overlay_on(image, overlay)
    write = ["qemu-io", "-f", "qcow2", "-c", "write -P 7 0 1M", str(overlay)]
    subprocess.run(write, check=True, capture_output=True)
    assert image.read_bytes() == before
    data = json.loads(run_qemu_img("info", "--output=json", str(overlay)))
    assert (data["backing-filename"], data["backing-filename-format"]) == (str(image), form)
    assert data["virtual-size"] == 8 * MIB


@pytest.mark.parametrize(
    ("code", "seconds", "cause"),
    [
        (b"\xb0\xfe\xe6\x64\xf4", 300.0, "the guest shut down or restarted, which an image may"),
        (b"\xeb\xfe", 2.0, "has no running guest agent(.|\n)*run setup.ps1 and check.ps1"),
    ],
    ids=["restarts", "hangs"],
)
def test_an_image_that_does_not_boot_is_an_error_with_the_step_that_shows_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: bytes, seconds: float, cause: str
) -> None:
    """By QEMU: the boot sector resets the machine, or is an endless loop."""
    monkeypatch.setattr(qemu_hypervisor, "BOOT_SECONDS", seconds)
    (tmp_path / "disk").write_bytes(code.ljust(510, b"\0") + b"\x55\xaa" + bytes(MIB))
    lab = Lab(tmp_path, small_image(tmp_path))
    with pytest.raises(DriverError, match=cause):
        lab.qemu.boot(replace(MACHINE, image=str(tmp_path / "disk"), memory_bytes=256 * MIB))
    lab.close()


def test_check_and_plan_name_an_image_or_fio_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("no disk", "utf-8")
    broken, settings = tmp_path / "broken", tmp_path / "pvebench.yaml"
    run_qemu_img("create", *["-u", "-f", "qcow2", "-F", "raw", "-b", "gone"], str(broken), "8M")
    for name, fault in {"text": "boot sector", "broken": "gone", "none": "No such"}.items():
        file = pack(tmp_path, f"{{os: windows, memory: 4G, image: {name}, fio: no.exe}}")
        settings.write_text(f"state: state\nguest_image: {file}\n", "utf-8")
        options = ["--config", str(settings), "--pack", str(file)]
        assert (run_cli(["check", *options]), run_cli(["plan", *options])) == (3, 0)
        shown = " ".join(capsys.readouterr().out.split())
        assert fault in shown
        assert f"guest_image {file} is a file" in shown
        assert "correct guest.image in the pack, or create it" in shown
        assert f"{tmp_path}/no.exe is missing or unreadable" in shown
    assert f"{tmp_path}/none no such file" in shown
    (tmp_path / "gone").touch()
    hold = ["qemu-io", "-f", "qcow2", str(broken)]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as held:
        assert held.stdout
        held.stdout.read(9)  # the prompt: the image is open
        with pytest.raises(VolumeError, match="shut down the VM that uses it"):
            image_format(broken)
        held.communicate(b"quit\n")
