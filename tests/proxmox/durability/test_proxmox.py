"""`pvebench durability` on a node: what it makes of a killed VM, and what it refuses.

The real kill is in tests/e2e/node_durability.py, the proofs before it in test_node_ssh.py. Here a
file is the disk, and its end by SIGKILL is what each test says.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from pve.server import RunningApi
from pve.site import Site
from pvebench.cli.main import run_cli
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings
from pvebench.errors import OutcomeUnknown
from pvebench.model.disk import Format
from pvebench.model.durability import Durability, Survival
from pvebench_lab.durability.proxmox import ClusterDurability
from pvebench_lab.durability.records import DISTANCE, RECORD, RECORDS
from testing.prepared_cluster import api, config

__all__ = ["api", "config"]
Lose = Callable[[list[Path]], None]
STARTED = 4711


class Stand:
    """Stands in for `NodeSsh`: the VM ends, and its files lose what `lose` takes from them."""

    def __init__(self, site: Site, lose: Lose) -> None:
        self.site, self.lose = site, lose
        self.damaged = False
        self.known: list[Path] = []

    def start_time(self, vmid: int) -> int:
        return STARTED

    def kill_vm(self, vmid: int, mark: str, started: int) -> None:
        vm = self.site.node.vm
        assert vm is not None
        assert (vmid, mark, started) == (vm.vmid, vm.mark, STARTED)
        machine = self.site.machine
        self.known = [self._path(value.partition(",")[0]) for value in machine.slots.values()]
        self.known = [path for path in self.known if "pvebench" in path.name]
        for pid in machine.programs:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)  # its programs end with it
        for future in machine.programs.values():
            future.result(20)
        machine.stop()
        self.lose(self.known)

    def _path(self, volid: str) -> Path:
        return self.site.cluster.volumes.path(volid)

    def is_damaged(self, volid: str) -> bool:
        return self.damaged

    def close(self) -> None:
        pass


def nothing(paths: list[Path]) -> None:
    """Lose nothing."""


def probe(site: Site, stand: Stand, kind: Format = Format.RAW) -> ClusterDurability:
    return ClusterDurability(
        site.node,
        cast(NodeSsh, stand),
        node="pve1",
        storage="local",
        formats=(kind,),
        kind="dir",
        clock=site.clock,
    )


def measured(site: Site, lose: Lose = nothing) -> Durability:
    (found,) = probe(site, Stand(site, lose)).measure(["raw.none"])
    assert not site.cluster.vms
    assert not site.store.journal.pending()
    return found


def test_what_survives_is_counted_and_nothing_stays(site: Site) -> None:
    found = measured(site)
    assert {one.written for one in found.killed} == {RECORDS}
    assert [one.found for one in found.killed] == [RECORDS] * 6
    assert (found.torn, found.damaged, found.power, found.durable) == (0, 0, (), True)


def test_lost_and_torn_records_are_counted(site: Site) -> None:
    def lose(paths: list[Path]) -> None:
        for number, path in enumerate(paths):
            with path.open("r+b") as file:
                file.seek(number * DISTANCE)
                file.write(bytes(RECORD))  # as before the first write
                file.seek((RECORDS + number) * DISTANCE)
                file.write(bytes(RECORD // 2))  # half a record

    found = measured(site, lose)
    assert [one.found for one in found.killed] == [RECORDS - 1] * 6
    lost: list[Survival] = [one for one in found.killed if one.lost]
    assert len(lost) == 4  # two kinds of synchronization, first writes and rewrites
    assert (found.torn, found.durable) == (3, False)


def test_a_kill_with_an_unknown_outcome_leaves_no_vm(site: Site) -> None:
    stand = Stand(site, nothing)
    ended = stand.kill_vm

    def kill(vmid: int, mark: str, started: int) -> None:
        ended(vmid, mark, started)
        raise OutcomeUnknown("the response was lost")

    stand.kill_vm = kill  # type: ignore[method-assign] # as a broken connection does
    with pytest.raises(OutcomeUnknown):
        list(probe(site, stand).measure(["raw.none"]))
    assert not site.cluster.vms


@pytest.mark.parametrize(
    ("kind", "chain", "formats"),
    [
        ("dir", False, ["raw", "qcow2"]),
        ("lvm", False, ["raw"]),
        ("lvm", True, ["raw", "qcow2"]),
        ("zfspool", False, ["raw"]),
    ],
)
def test_formats_are_those_of_the_storage(kind: str, chain: bool, formats: list[str]) -> None:
    entry = {"type": kind, "snapshot_as_volume_chain": chain}
    settings = ProxmoxSettings.model_validate({"host": "pve1", "storages": {"one": entry}})
    assert list(settings.durability_formats("one")) == formats


@pytest.mark.parametrize("major", [9])
@pytest.mark.parametrize(
    ("change", "options", "code", "message"),
    [
        ("", (), 2, "needs proxmox.ssh and proxmox.kill_own_vm: true"),
        ("  kill_own_vm: true\n", (), 2, "needs proxmox.ssh and proxmox.kill_own_vm: true"),
        (
            "  ssh: {host: pve1, key_file: key}\n",
            (),
            2,
            "needs proxmox.ssh and proxmox.kill_own_vm: true",
        ),
        ("", ("--storage", "tank"), 6, "use one of: local, fast"),
    ],
)
def test_no_vm_is_killed_unless_the_settings_allow_it(
    api: RunningApi,
    config: Path,
    change: str,
    options: tuple[str, ...],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config.write_text(config.read_text("utf-8") + change, "utf-8")
    assert run_cli(["durability", "--config", str(config), *options]) == code
    assert message in capsys.readouterr().err
    assert api.calls == []
