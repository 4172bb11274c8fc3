"""`pvebench check --boot`: a clone of the user's VM is booted as in a run, and removed.

The guest of the test API poses as Windows; `Posing` has the answers of PowerShell. The real agent
and fio are in tests/windows.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxmox.test_template import TEMPLATE, _untouched, install
from pve.machines import CheapMachine
from pve.site import MACHINE, Site
from pvebench.cli.main import run_cli
from pvebench.drivers import vm_lifecycle
from pvebench.drivers.proxmox import hypervisor
from pvebench.drivers.proxmox.cluster import ClusterEngine
from pvebench.drivers.proxmox.vm.agent import AgentClient
from pvebench.errors import Interrupted
from pvebench.model.guest import Completed, Guest
from pvebench.model.ports import Clock
from pvebench.model.scenario import Machine
from pvebench.store.state_directory import StateDirectory
from pvebench_lab.windows import powershell
from pvebench_lab.windows.windows_guest import WINDOWS, WindowsGuest
from testing.packs import write_pack
from windows.test_windows_guest import COMPLETE

__all__ = ["_untouched"]
pytestmark = pytest.mark.lab

PACK = f"""\
pack: windows
title: A clone
every: 1d
guest: {{os: windows, template: {TEMPLATE}, memory: 4G}}
axes: {{bus: [scsi], format: [raw], cache: [none]}}
volume: {{size: 64M}}
workloads:
  - fio: {{rw: read, bs: 4k}}
"""
CLONE = 9500
OF_TEMPLATE = f"template {TEMPLATE}"
TITLE = f"guest windows on pve1 ({OF_TEMPLATE}, 4.0 GiB, 1 CPU)"
Check = Callable[..., dict[str, Any]]


class Posing(WindowsGuest):
    good: dict[str, bool]

    def line(self, line: powershell.Line, **_: Any) -> Any:  # type: ignore[override] # answers only
        return COMPLETE | {"Good": self.good} if line is powershell.SYSTEM else {}

    def run(self, argv: list[str], **_: Any) -> Completed:
        return Completed(0, b"fio-3.36", b"")


@pytest.fixture
def run(
    site: Site, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Check]:
    """Yield a function that runs the command and returns title -> whether, and what it found.

    Afterwards, the user's VM must be the only one.
    """
    write_pack(config.parent, PACK)
    install(site)
    Posing.good = dict.fromkeys(powershell.REQUIREMENTS, True)

    def posing(client: Guest, clock: Clock, _: Machine) -> Guest:
        assert type(client) is AgentClient  # no shell of the guest image
        return Posing(client, clock)

    system = replace(WINDOWS, guest=posing)
    monkeypatch.setitem(vm_lifecycle.GUEST_SYSTEMS._objects, "windows", system)

    def command(*options: str) -> dict[str, Any]:
        code = run_cli(["check", *options, "--config", str(config), "--format=json"])
        out, err = capsys.readouterr()
        found = {row["check"]: (row["ok"], row["found"]) for row in json.loads(out or "[]")}
        return {**found, "code": code, "err": err}

    yield command
    assert site.cluster.vms.keys() == {TEMPLATE}


def test_without_boot_the_guest_is_not_proved_and_the_time_of_a_clone_not_planned(
    run: Check, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run()
    good, text = found[TITLE]
    assert (good, found["code"]) == (None, 0)
    assert text.startswith("not proved yet, run `pvebench check --boot`: it starts a VM, about 2 ")
    assert text.endswith("and the time of a clone")
    good, text = found[OF_TEMPLATE]
    assert good
    assert text.startswith(f"linked clones of local:{TEMPLATE}/base-{TEMPLATE}-disk-0.qcow2")
    assert "; time of the last one: unknown" in text
    assert run_cli(["plan", "--config", str(config)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"{OF_TEMPLATE} its clone is not included: seconds if linked, else a copy" in words


def test_a_clone_is_booted_and_removed_and_its_versions_are_named(
    site: Site, run: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copy.deepcopy(site.cluster.vms[TEMPLATE].config)
    monkeypatch.setattr(ClusterEngine, "boot_limit", 480.0)
    for blocked in ([], ["guest-info"]):  # not needed, but then the commands are not listed
        monkeypatch.setattr(CheapMachine, "blocked", blocked)
        found = run("--boot")
        good, text = found[TITLE]
        assert good, found
        assert "windows_build 20348.2700, fio fio-3.36, viostor 100.101.104.27100" in text
        assert re.search("booting, about 2 min.* of a clone; at most 8 min", found["err"])
        assert site.cluster.vms[TEMPLATE].config == before
    assert re.search(r"; time of the last one: \d+ s$", found[OF_TEMPLATE][1])


def test_everything_that_the_guest_lacks_is_named_at_once_with_its_remedy(
    run: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    Posing.good = {}
    monkeypatch.setattr(CheapMachine, "blocked", ["guest-file-write"])
    found = run("--boot")
    good, text = found[TITLE]
    assert (good, found["code"]) == (False, 3)
    lines = [line.strip(" ;") for line in text.splitlines()]
    assert {need.missing for need in powershell.REQUIREMENTS.values()} < {*lines}
    assert "guest-file-write: allow it in qemu-ga.conf" in text


def test_a_guest_that_never_answers_is_an_error_with_the_step_that_shows_why(
    run: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypervisor, "BOOT_SECONDS", 0.0)
    monkeypatch.setattr(
        CheapMachine, "blocked", ["guest-ping"]
    )  # without it, Proxmox asks nothing else
    good, text = run("--boot")[TITLE]
    assert good is False
    assert "did not respond within 0 s of power-on" in text
    assert "run setup.ps1 and check.ps1" in text


def test_a_stop_removes_the_clone(site: Site, run: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        assert site.cluster.vms.keys() == {TEMPLATE, CLONE}
        raise Interrupted("stopped by the user")

    monkeypatch.setattr(Posing, "line", stopped)
    assert run("--boot")["code"] == 130


def test_a_clone_left_by_a_kill_is_named_and_removed_by_the_next_start(
    site: Site, run: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(hypervisor.ProxmoxHypervisor, "shutdown", lambda _: None)
        run("--boot")
    assert site.cluster.vms.keys() == {TEMPLATE, CLONE}
    assert f"VM {CLONE}" in run()["benchmark VMs"][1]
    assert f"removed VM {CLONE} with its volumes" in run("--boot")["err"]


def test_nothing_is_booted_beside_another_pvebench_or_before_a_failure_is_fixed(
    site: Site, run: Check, config: Path
) -> None:
    site.node.boot(MACHINE)
    good, text = run("--boot")[TITLE]
    assert (good, "another pvebench measures on pve1" in text) == (None, True)
    site.node.shutdown()
    with StateDirectory(config.parent / "state", exclusive=True):
        assert run("--boot")["code"] == 4
    site.cluster.storages["thin"].enabled = False
    found = run("--boot")
    assert found[OF_TEMPLATE][0] is False
    assert found["guests"] == (None, "not booted; fix the failures above first")


def test_packs_with_one_template_boot_it_once_for_each_size(run: Check, config: Path) -> None:
    text = PACK.replace("rw: read", "rw: write").replace("pack: windows", "pack: other")
    same = write_pack(config.parent, text, "same.yaml")
    larger = write_pack(config.parent, text.replace("4G", "8G").replace("scsi", "sata"), "l.yaml")
    found = run(
        "--boot", *(f"--pack={path}" for path in (config.parent / "pack.yaml", same, larger))
    )
    titles = [title for title in found if title.startswith("guest windows")]
    assert titles == [TITLE, TITLE.replace("4.0", "8.0")]
