from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.drivers.qemu.accelerator import Accelerator, choose_accelerator
from pvebench.drivers.qemu.machine import arguments
from pvebench.errors import GuestTimeout, MachineError
from pvebench.guest.image import GuestImage
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB
from testing.captured_logs import captured_logs


class Proof:
    def __init__(self, *, works: bool) -> None:
        self.works = works
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        if not self.works:
            raise GuestTimeout("QEMU exited: kvm_arch.c:12: assertion `x` failed")


def choose(
    tmp_path: Path, proof: Proof, wish: str = "auto", device: Path | None = None
) -> Accelerator:
    usable = tmp_path / "kvm"
    usable.touch()
    return choose_accelerator(
        wish, memory=tmp_path / "kvm.json", prove=proof, say=print, device=device or usable
    )


def test_kvm_is_used_once_a_guest_has_booted_under_it(tmp_path: Path) -> None:
    assert choose(tmp_path, Proof(works=True)) is Accelerator.KVM


def test_a_device_that_hangs_guests_means_tcg_and_is_proved_once_per_host_boot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = Proof(works=False)
    assert choose(tmp_path, proof) is Accelerator.TCG
    assert choose(tmp_path, proof) is Accelerator.TCG
    assert proof.times == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        "no KVM (a guest does not boot with KVM; details: `pvebench check -v`); "
        "using TCG, results carry accel=tcg"
    )


def test_the_words_of_qemu_are_in_the_log_only(tmp_path: Path) -> None:
    with captured_logs() as logs:
        choose(tmp_path, Proof(works=False))
    (entry,) = [one for one in logs if one["event"] == "KVM is unusable"]
    assert entry["log_level"] == "info"
    assert entry["reason"].endswith("assertion `x` failed")


def test_after_a_new_boot_of_the_host_it_is_proved_again(tmp_path: Path) -> None:
    choose(tmp_path, Proof(works=False))
    (tmp_path / "kvm.json").write_text('{"boot": "another", "fault": "x"}')
    proof = Proof(works=True)
    assert choose(tmp_path, proof) is Accelerator.KVM
    assert proof.times == 1


def test_without_the_device_nothing_is_tried(tmp_path: Path) -> None:
    proof = Proof(works=True)
    assert choose(tmp_path, proof, device=tmp_path / "absent") is Accelerator.TCG
    assert proof.times == 0


def test_kvm_on_demand_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="accelerator is set to kvm, but a guest does not boot"):
        choose(tmp_path, Proof(works=False), wish="kvm")


def test_requested_tcg_skips_the_test_of_kvm(tmp_path: Path) -> None:
    proof = Proof(works=True)
    assert choose(tmp_path, proof, wish="tcg") is Accelerator.TCG
    assert proof.times == 0


def command_line(accelerator: Accelerator, cpus: int = 1) -> list[str]:
    """QEMU's command line for the benchmark VM."""
    place = Path("/image")
    image = GuestImage(
        directory=place,
        kernel=place / "kernel",
        initramfs=place / "initramfs",
        iso=place / "guest.iso",
        digest="",
        manifest={},
    )
    return arguments("uuid", image, Machine(memory_bytes=MIB, cpus=cpus), accelerator)


@pytest.mark.parametrize(
    ("accelerator", "cpus", "given"),
    [
        (Accelerator.TCG, 1, "cpus=1,maxcpus=2"),
        (Accelerator.TCG, 4, "cpus=4,maxcpus=4"),
        (Accelerator.KVM, 1, "1"),
    ],
)
def test_an_emulated_guest_never_has_room_for_a_single_cpu_only(
    accelerator: Accelerator, cpus: int, given: str
) -> None:
    """QEMU drops the barriers of an emulated guest then: see tests/integration/test_cpus.py."""
    line = command_line(accelerator, cpus)
    assert line[line.index("-smp") + 1] == given


@pytest.mark.parametrize("accelerator", Accelerator)
def test_only_an_emulated_guest_skips_the_test_of_its_timer(accelerator: Accelerator) -> None:
    """Linux' kernel-parameters.txt; Kata Containers passes it as well (clh.go).

    In a host in a process, beside other work, a guest without it printed "...trying to set up timer
    as ExtINT IRQ...", the last thing that Linux tries, and ended.
    """
    line = command_line(accelerator)
    skips = "no_timer_check" in line[line.index("-append") + 1].split()
    assert skips is (accelerator is Accelerator.TCG)


def test_only_an_emulated_guest_has_the_same_addresses_at_each_start() -> None:
    """Linux' kernel-parameters.txt: "norandmaps Don't use address space randomization"."""
    lines = {kind: command_line(kind) for kind in Accelerator}
    given = {kind: "norandmaps" in line[line.index("-append") + 1] for kind, line in lines.items()}
    assert given == {Accelerator.TCG: True, Accelerator.KVM: False}
