"""`pvebench check --boot`: a clone of the user's VM is booted as in a run, and removed.

The guest of the test API poses as Windows; `Posing` has the answers of PowerShell. The real agent
and fio are in tests/windows.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxmox.test_templates import TEMPLATE, _untouched, install
from pve.machines import AgentSilence, CheapMachine
from pve.site import MACHINE, Site
from pvebench.cli.main import run_cli
from pvebench.drivers import vm_lifecycle
from pvebench.drivers.proxmox import hypervisor
from pvebench.errors import Interrupted
from pvebench.model.guest import Completed
from pvebench.store.state import StateDirectory
from pvebench_lab.windows import WINDOWS, powershell
from pvebench_lab.windows.windows_guest import COMMANDS, WindowsGuest
from testing.packs import write_pack

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
SYSTEM = {
    "Product": "Windows Server 2022 Standard",
    "Build": "20348",
    "Revision": 2700,
    "Drivers": [{"Name": "viostor.sys", "Version": "100.101.104.27100"}],
}
CLONE = 9500
TITLE = f"guest windows on pve1 (template {TEMPLATE}, 4.0 GiB)"
Check = Callable[..., dict[str, Any]]


class Posing(WindowsGuest):
    good: dict[str, bool]
    version = "fio-3.36"

    def line(self, line: powershell.Line, **_: Any) -> Any:  # type: ignore[override] # answers only
        return SYSTEM | {"Good": self.good} if line is powershell.SYSTEM else {}

    def run(self, argv: list[str], **_: Any) -> Completed:
        return Completed(0, self.version.encode(), b"")


@pytest.fixture
def run(
    site: Site, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Check:
    """Return a function that runs the command; it returns title -> whether and what it found."""
    write_pack(config.parent, PACK)
    install(site)
    Posing.good = dict.fromkeys(powershell.REQUIREMENTS, True)
    system = vm_lifecycle.GuestSystem(
        guest=lambda client, clock, machine: Posing(client, clock, fio=machine.fio),
        min_memory=0,
        boot_seconds=120.0,
        if_silent=WINDOWS.if_silent,
    )
    monkeypatch.setattr(vm_lifecycle, "GUEST_SYSTEMS", {"windows": system})

    def command(*options: str) -> dict[str, Any]:
        code = run_cli(["check", *options, "--config", str(config), "--format=json"])
        out, err = capsys.readouterr()
        rows = json.loads(out or "[]")
        found = {row["check"]: (row["ok"], row["found"]) for row in rows}
        return {**found, "code": code, "err": err}

    return command


def test_check_alone_says_that_the_guest_is_not_proved_and_what_proves_it(
    site: Site, run: Check
) -> None:
    found = run()
    good, text = found[TITLE]
    assert (good, found["code"]) == (None, 0)
    assert text == (
        "not proved yet, run `pvebench check --boot`: it starts a VM, about 2 min 00 s and the "
        "time of a clone"
    )
    assert site.cluster.vms.keys() == {TEMPLATE}


def test_a_clone_is_booted_and_removed_and_its_versions_are_named(site: Site, run: Check) -> None:
    before = copy.deepcopy(site.cluster.vms[TEMPLATE].config)
    for _ in range(2):
        found = run("--boot")
        good, text = found[TITLE]
        assert good, found
        assert "windows_build 20348.2700, fio fio-3.36, viostor 100.101.104.27100" in text
        assert f"{TITLE}: booting, about 2 min" in found["err"]
        assert site.cluster.vms.keys() == {TEMPLATE}
        assert site.cluster.vms[TEMPLATE].config == before


def test_the_time_of_a_clone_is_not_in_the_plan_and_known_after_the_first_one(
    run: Check, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["plan", "--config", str(config)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"template {TEMPLATE} the time of its clone is not included: seconds if linked" in words
    clones = f"linked clones of local:{TEMPLATE}/base-{TEMPLATE}-disk-0.qcow2"
    assert re.match(
        f"{clones}, .*of unknown time until the first", run()[f"template {TEMPLATE}"][1]
    )
    run("--boot")
    assert re.match(rf"{clones}, .*the last in \d+ s", run()[f"template {TEMPLATE}"][1])


def test_everything_that_the_guest_lacks_is_named_at_once_with_its_remedy(
    site: Site, run: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    Posing.good = {}
    blocked = {name: name != "guest-file-write" for name in COMMANDS}
    monkeypatch.setattr(hypervisor.AgentClient, "commands", lambda _: blocked)
    found = run("--boot")
    good, text = found[TITLE]
    assert (good, found["code"]) == (False, 3)
    lines = [line.strip(" ;") for line in text.splitlines()]
    assert any("guest-file-write: allow it in qemu-ga.conf" in line for line in lines)
    for need in powershell.REQUIREMENTS.values():
        assert f"{need.what}: run `{need.remedy}`" in lines
    assert site.cluster.vms.keys() == {TEMPLATE}


def test_a_guest_that_never_answers_is_removed_with_the_step_that_shows_why(
    site: Site, run: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypervisor, "_BOOT_SECONDS", 0.0)
    monkeypatch.setattr(CheapMachine, "agent", silent)
    good, text = run("--boot")[TITLE]
    assert good is False
    assert "did not respond within 0 s of power-on" in text
    assert "run setup.ps1 and check.ps1" in text
    assert site.cluster.vms.keys() == {TEMPLATE}


def silent(*_: object) -> None:
    raise AgentSilence


def test_a_stop_removes_the_clone(site: Site, run: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[int] = []

    def stopped(*_: object) -> None:
        stops.extend(site.cluster.vms.keys())
        raise Interrupted("stopped by the user")

    monkeypatch.setattr(Posing, "line", stopped)
    assert run("--boot")["code"] == 130
    assert stops == [TEMPLATE, CLONE]
    assert site.cluster.vms.keys() == {TEMPLATE}


def test_a_clone_left_by_a_kill_is_named_and_removed_by_the_next_start(
    site: Site, run: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(hypervisor.ProxmoxNode, "shutdown", lambda _: None)
        run("--boot")
    assert site.cluster.vms.keys() == {TEMPLATE, CLONE}
    assert f"VM {CLONE}" in run()["benchmark VMs"][1]
    assert f"removed VM {CLONE} with its volumes" in run("--boot")["err"]
    assert site.cluster.vms.keys() == {TEMPLATE}


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
    assert found[f"template {TEMPLATE}"][0] is False
    assert found["guests"] == (None, "not booted; fix the failures above first")
    assert site.cluster.vms.keys() == {TEMPLATE}


def test_packs_with_one_template_boot_it_once_for_each_size(
    site: Site, run: Check, config: Path
) -> None:
    text = PACK.replace("rw: read", "rw: write").replace("pack: windows", "pack: other")
    same = write_pack(config.parent, text, "same.yaml")
    larger = write_pack(config.parent, text.replace("4G", "8G").replace("scsi", "sata"), "l.yaml")
    found = run(
        "--boot", *(f"--pack={path}" for path in (config.parent / "pack.yaml", same, larger))
    )
    titles = [title for title in found if title.startswith("guest windows")]
    assert titles == [TITLE, TITLE.replace("4.0", "8.0")]
    assert site.cluster.vms.keys() == {TEMPLATE}
