"""Real QEMU behind the API: it is killed over SSH, and its volumes are read back by another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pve.cluster import Cluster
from pve.instance import write_settings
from pve.real import direct
from pve.server import RunningApi, running_api
from pvebench.cli.main import run_cli
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from pvebench.drivers.proxmox.node.node_ssh import script_of_node
from pvebench.guest.build import build_image
from pvebench.guest.image import GuestImage, default_directory
from pvebench.model.durability import Barrier, Durability
from testing.packs import SMALL, write_pack
from testing.sshd import SshServer, ssh_server


@pytest.fixture
def image() -> GuestImage:
    return build_image(default_directory(), say=print)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    """A node's sshd, which runs the script that an administrator installs."""
    node = tmp_path / "node"
    (node / "bin").mkdir(parents=True)
    pvesm = node / "bin" / "pvesm"
    pvesm.write_text(f'#!/bin/sh\necho "{tmp_path}/cluster/local/pve1/images/${{2#local:}}"\n')
    pvesm.chmod(0o755)
    look = "grep -saHZ '' -- \"$@\""
    places = {
        "PIDS=/run/qemu-server": f"PIDS={node}",
        "MACHINES=/etc/pve/qemu-server": f"MACHINES={node}",
        "PATH=/usr/sbin": f"PATH={node}/bin:/usr/sbin",
        f"{look} || :": f"{look} | sed 's|^{node}/|/run/qemu-server/|'",
    }
    with ssh_server(tmp_path / "sshd") as found:
        found.allow_script(node / "pvebench-node", script_of_node(), places)
        yield found


@pytest.fixture
def api(tmp_path: Path, image: GuestImage, server: SshServer) -> Iterator[RunningApi]:
    make = direct(image, node=tmp_path / "node")
    with running_api(Cluster(tmp_path / "cluster", major=9, make_machine=make)) as found:
        yield found


def test_what_a_killed_qemu_leaves_is_measured_with_the_least_rights(
    api: RunningApi,
    server: SshServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The storage of this cluster creates qcow2 without preallocation: first writes are lost."""
    ssh = server.settings().model_dump(mode="json", exclude_defaults=True)
    config = write_settings(
        tmp_path,
        api,
        packs=[write_pack(tmp_path, SMALL)],
        storages={"local": "{type: dir}"},
        kvm="false",
        cpu="max",
        ssh=json.dumps(ssh),
        kill_own_vm="true",
    )
    given = ["--config", str(config)]
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    assert run_cli(["proxmox", "init", *given, "--apply"]) == 0
    capsys.readouterr()
    code = run_cli(["durability", *given, "--only", "qcow2.none", "--format=json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    (row,) = json.loads(out)
    found = Durability.from_json(json.dumps(row))
    assert (found.configuration, found.torn, found.damaged) == ("qcow2.none", 0, 0)
    by_sync = {
        sync: [one.found for one in found.killed if one.sync is sync and one.written == 16]
        for sync in Barrier
    }
    assert by_sync == {Barrier.NONE: [0, 16], Barrier.FLUSH: [16, 16], Barrier.FUA: [16, 16]}
    assert found.requested == 2  # one after the first content of rewritten blocks, one at the end
    assert found.power == ()
    assert "durable: if QEMU is killed" in err
    assert api.cluster.vms == {}
    assert not list((tmp_path / "cluster").rglob("*.qcow2"))
