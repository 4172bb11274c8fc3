"""Guests that are clones of a VM of the user's, which is read and cloned, and never changed.

The Linux guest of the test API poses as the other system: it knows the same questions.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from proxmox.test_vm_create import DyingApi, Killed, Waits
from pve.cluster import Cluster
from pve.site import MACHINE, POOL, Site, scenario
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.tasks import Tasks
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings
from pvebench.drivers.proxmox.setup.checks import NodeChecks
from pvebench.drivers.proxmox.vm import leftover_vms
from pvebench.drivers.proxmox.vm.template import usable_template
from pvebench.drivers.proxmox.vm.vm_create import VmOptions, clone_options, make_vm
from pvebench.errors import AccessDenied, HypervisorGone, SwitchFailed
from pvebench.model.disk import Bus
from pvebench.model.scenario import Scenario
from pvebench.model.volume import Plug
from pvebench.model.workload import Case
from testing.node_guards import FIO

TEMPLATE = 700
GUEST = replace(MACHINE, template=TEMPLATE)
CONFIG = {
    "sata0": "local:8",
    "efidisk0": "thin:4",
    "tpmstate0": "thin:4",
    "agent": "1",
    "boot": "order=sata0",
    "sockets": "2",
    "protection": "1",
    "tags": "golden",
    "description": "Windows Server, do not delete",
}


def install(site: Site, *, template: bool = True, **more: str) -> dict[str, Any]:
    """Install the user's VM with the rights to clone it; return its configuration."""
    access = site.cluster.access
    access.roles["StorageBenchTemplate"] = {"VM.Audit", "VM.Clone"}
    for subject in ("pvebench@pve", "pvebench@pve!bench"):
        access.acl.append((f"/vms/{TEMPLATE}", subject, "StorageBenchTemplate"))
    vm = site.cluster.make_template(TEMPLATE, template=template, **{**CONFIG, **more})
    return copy.deepcopy(vm.config)


def content(site: Site) -> dict[str, bytes]:
    """Return volid -> content of the user's disks."""
    volumes = site.cluster.volumes
    return {volid: volumes.path(volid).read_bytes() for volid in volumes.owned(TEMPLATE)}


@pytest.fixture(autouse=True)
def _untouched(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Require that nothing but reads and clones is sent about the user's VM."""
    sent: list[str] = []
    call = type(site.cluster).call

    def recorded(cluster: Cluster, who: str, name: str, params: dict[str, Any]) -> Any:
        sent.extend([name] * (str(params.get("vmid")) == str(TEMPLATE)))
        return call(cluster, who, name, params)

    monkeypatch.setattr(type(site.cluster), "call", recorded)
    yield
    allowed = ("GET ", "POST /nodes/{node}/qemu/{vmid}/clone")
    assert [name for name in sent if not name.startswith(allowed)] == []


def of_template(**options: Any) -> Scenario:
    return replace(scenario(**options), machine=GUEST)


def create(site: Site, api: Api) -> None:
    template = usable_template(api, "pve1", TEMPLATE)
    options = clone_options("pve1", VmOptions(iso_storage="local"), GUEST)
    make_vm(site.access(api=api), options, template=template)


def run(site: Site, wanted: Scenario) -> Mapping[str, Any]:
    """Boot the guest and attach a disk as a case does; return the configuration meanwhile."""
    site.plug(wanted)
    config = dict(site.cluster.vms[site.node.vmid].config)
    site.node.detach()
    return config


def test_a_case_runs_in_a_linked_clone_that_is_removed_with_its_disks(site: Site) -> None:
    before, disks = install(site), set(site.cluster.volumes.owned(TEMPLATE))
    config = run(site, of_template())
    assert config["sata0"].startswith(f"local:{TEMPLATE}/base-{TEMPLATE}-disk-0.qcow2/9000/vm-9000")
    assert config["efidisk0"].startswith(f"thin:base-{TEMPLATE}-disk-1/vm-9000")
    assert config["tpmstate0"].startswith("thin:vm-9000")
    assert "scsi1" in config
    assert {key: config[key] for key in ("sockets", "protection", "tags", "memory", "cores")} == {
        "sockets": "1",
        "protection": "0",
        "tags": "pvebench",
        "memory": "512",
        "cores": "1",
    }
    assert 9000 in site.cluster.pools[POOL]
    site.node.shutdown()
    assert site.cluster.vms.keys() == {TEMPLATE}
    assert site.cluster.vms[TEMPLATE].config == before
    assert set(site.cluster.volumes.owned(TEMPLATE)) == disks
    assert site.cluster.volumes.owned(9000) == []


def test_a_vm_that_is_no_template_is_cloned_fully(site: Site) -> None:
    install(site, template=False)
    config = run(site, of_template())
    assert config["sata0"].startswith("local:9000/vm-9000-disk-0")


def test_a_template_whose_storage_cannot_link_is_cloned_fully(site: Site) -> None:
    site.cluster.storages["thin"].type = "lvm"
    install(site)
    config = run(site, of_template())
    assert config["efidisk0"].startswith("thin:vm-9000-disk-0")
    assert config["sata0"].startswith("local:9000/vm-9000-disk-0")


def test_the_description_keeps_the_disks_of_the_clone_with_all_later_notes(site: Site) -> None:
    install(site)
    run(site, of_template())
    vm = site.node.vm
    assert vm is not None
    vm.claim(time.time() + 60)
    vm.note_filled([])
    assert (
        "pvebench-system: efidisk0 sata0 tpmstate0" in site.cluster.vms[9000].config["description"]
    )


@pytest.mark.parametrize(("bus", "slot"), [(Bus.SATA, "sata1"), (Bus.IDE, "ide1")])
def test_a_test_disk_gets_a_slot_that_the_template_does_not_use(
    site: Site, bus: Bus, slot: str
) -> None:
    install(site, ide0="local:iso/virtio-win.iso,media=cdrom")
    site.cluster.volumes.upload("local", "virtio-win.iso", b"disc")
    wanted = of_template(bus=bus)
    volume, _ = site.node.volume(wanted)
    site.node.boot(wanted.machine, Plug(volume, wanted.disk))
    assert slot in site.cluster.vms[9000].config


def test_a_pack_with_another_guest_replaces_the_vm(site: Site) -> None:
    install(site)
    run(site, of_template())
    assert "sata0" not in run(site, scenario())
    assert "sata0" in run(site, of_template())
    assert len(site.cluster.vms) == 2
    assert len(site.store.journal.pending()) == 1


def test_a_kept_clone_is_reused_only_for_its_template(site: Site) -> None:
    install(site)
    site.node = site.driver("pve1", keep=True)
    wanted = of_template()
    run(site, wanted)
    volume, _ = site.node.volume(wanted)
    site.node.note(volume, "filled")
    site.node.shutdown()
    assert site.cluster.vms.keys() == {TEMPLATE, 9000}
    site.node = site.driver("pve1", keep=True)
    assert "sata0" not in run(site, scenario())
    site.node.shutdown()
    site.node = site.driver("pve1", keep=True)
    config = run(site, wanted)
    assert "vm-9000" in config["sata0"]
    assert site.node.content(site.node.volume(wanted)[0]) == "filled"


# --- crashes and failures


@pytest.mark.parametrize("after", [False, True])
def test_killed_before_or_after_each_request_of_a_clone_nothing_of_it_is_left(
    site: Site, after: bool
) -> None:
    before, disks = install(site), content(site)
    moments = 0
    for dies_at in range(1, 40):
        try:
            create(site, DyingApi(site.connect(), dies_at, after=after))  # type: ignore[arg-type] # as Api
        except Killed:
            moments += 1
            site.cluster.idle()
            site.undo(Waits())
            assert site.cluster.vms.keys() == {TEMPLATE}, dies_at
            assert site.store.journal.pending() == [], dies_at
        else:
            break
    assert moments >= 7
    assert site.undo() == ["removed VM 9000 with its volumes"]
    assert (site.cluster.vms[TEMPLATE].config, content(site)) == (before, disks)


def test_a_clone_that_takes_longer_than_the_wait_is_removed_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clone is not in the pool before its task ends, so the token does not see it."""
    monkeypatch.setattr(leftover_vms, "_BIRTH_SECONDS", 1.0)
    install(site)
    site.cluster.may_copy.clear()
    number = request_of_clone(site)
    with pytest.raises(Killed):
        create(site, DyingApi(site.connect(), number, after=True))  # type: ignore[arg-type] # as Api
    (line,) = site.undo()
    assert "VM 9000 is still created" in line
    assert site.store.journal.pending()
    site.cluster.tasks.all[-1].stopped.set()
    site.cluster.idle()
    monkeypatch.setattr(leftover_vms, "_BIRTH_SECONDS", 60.0)
    assert site.undo() == ["VM 9000 already gone"]
    assert site.cluster.vms.keys() == {TEMPLATE}


def request_of_clone(site: Site) -> int:
    """Return the number of the request that clones the VM."""
    seen: list[str] = []
    api = site.connect()

    class Counting:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            def request(path: str, **named: Any) -> Any:
                seen.append(path)
                if path.endswith("/clone"):
                    raise Killed
                return getattr(api, name)(path, **named)

            return request

    with pytest.raises(Killed):
        create(site, Counting())  # type: ignore[arg-type] # as Api
    site.undo(Waits())
    return len(seen)


def test_a_clone_by_another_user_does_not_end_the_wait_for_the_own_one(site: Site) -> None:
    """A task of a clone has the ID of the template: it may be another user's."""
    before = install(site)
    number = request_of_clone(site)
    with pytest.raises(Killed):
        create(site, DyingApi(site.connect(), number, after=False))  # type: ignore[arg-type] # as Api
    site.cluster.tasks.foreign("pve1", "qmclone", str(TEMPLATE)).end = "OK"
    ((_, _, details),) = site.store.journal.pending()
    text = f"pvebench-mark: {details['mark']}\npvebench-system: efidisk0 sata0 tpmstate0\n"
    api = site.connect()
    path = f"/nodes/pve1/qemu/{TEMPLATE}/clone"
    late = Waits(lambda: api.post(path, newid=9000, pool=POOL, description=text))
    assert site.undo(late) == ["removed VM 9000 with its volumes"]
    assert site.cluster.vms[TEMPLATE].config == before


def test_a_clone_whose_response_is_lost_is_found_by_its_task(site: Site) -> None:
    install(site)
    site.faults.add("drop_after", "POST", "/clone")
    create(site, site.connect())
    assert site.faults.hits
    assert site.cluster.vms[9000].config["tags"] == "pvebench"
    assert site.undo() == ["removed VM 9000 with its volumes"]


def test_a_clone_taken_for_another_users_stays_in_the_journal(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its response is lost, and so is the proof which of two tasks of the template is its own."""
    install(site)
    other = site.cluster.tasks.foreign("pve1", "qmclone", str(TEMPLATE))
    other.end = "OK"
    monkeypatch.setattr(Tasks, "_search", lambda _self, _kind: other.upid)
    site.cluster.may_copy.clear()
    site.faults.add("drop_after", "POST", "/clone")
    with pytest.raises(HypervisorGone):
        create(site, site.connect())
    assert len(site.store.journal.pending()) == 1
    site.cluster.may_copy.set()
    site.cluster.idle()
    assert site.undo() == ["removed VM 9000 with its volumes"]
    assert site.cluster.vms.keys() == {TEMPLATE}


def test_a_clone_that_fails_midway_leaves_nothing_and_says_why(site: Site) -> None:
    install(site)
    site.cluster.storages["thin"].mounted = False
    with pytest.raises(Exception, match="clone failed: unable to activate storage 'thin'"):
        site.node.volume(of_template())
    assert site.cluster.vms.keys() == {TEMPLATE}
    assert site.store.journal.pending() == []


def test_a_killed_clone_is_named_with_its_marker_for_root(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftover_vms, "_BIRTH_SECONDS", 1.0)
    install(site)
    number = request_of_clone(site)
    site.cluster.may_copy.clear()
    site.cluster.tasks.deaf.add("qmclone")
    with pytest.raises(Killed):
        create(site, DyingApi(site.connect(), number, after=True))  # type: ignore[arg-type] # as Api
    site.cluster.tasks.all[-1].stopped.set()
    site.cluster.idle()
    ((_, _, details),) = site.store.journal.pending()
    (line,) = site.undo()
    assert f"lock clone with {details['mark']} in it" in line
    assert site.cluster.vms[9000].config["lock"] == "clone"


def test_a_foreign_disk_in_a_clone_keeps_the_clone(site: Site) -> None:
    install(site)
    run(site, of_template())
    vm = site.cluster.vms[9000]
    site.cluster.volumes.allocate("thin", 123, "vm-123-disk-0", 4 << 20, "raw")
    vm.stop()
    site.node.vm.tasks.learn() if site.node.vm else None
    vm.config["sata0"] = "thin:vm-123-disk-0"
    with pytest.raises(Exception, match="vm-123-disk-0 was not created by pvebench"):
        site.node.shutdown()
    assert "thin:vm-123-disk-0" in site.cluster.volumes.owned(123)


# --- check


def findings(site: Site) -> dict[str, tuple[bool, str]]:
    entries = {name: {"type": one.type} for name, one in site.cluster.storages.items()}
    cluster = ProxmoxSettings.model_validate({"host": "h", "pool": POOL, "storages": entries})
    case = Case(scenario=of_template(), workload=FIO)
    found = NodeChecks(site.connect(), cluster, "pve1", [case]).all()
    return {name: (good, text) for name, good, text in found}


def test_check_names_each_reason_against_a_template_with_its_command(site: Site) -> None:
    install(
        site,
        net0="virtio=02:00:00:00:00:01,bridge=vmbr0",
        ide2="cdrom,media=cdrom",
        hookscript="local:snippets/x.pl",
        agent="0",
        boot="order=net0",
        scsi0="local:8",
        lock="backup",
    )
    site.cluster.storages["thin"].enabled = False
    good, text = findings(site)[f"template {TEMPLATE}"]
    assert not good
    for part in (
        "it is locked (backup): wait",
        "run `qm set 700 --delete net0`",
        "run `qm set 700 --delete hookscript`",
        "run `qm set 700 --ide2 none,media=cdrom`",
        "no guest agent: run `qm set 700 --agent enabled=1`",
        "`qm set 700 --delete scsi0`",
        "run `qm set 700 --boot order=sata0`",
        "run `pvesm set thin --disable 0`",
    ):
        assert part in text
    with pytest.raises(SwitchFailed, match="unsuitable"):
        site.node.volume(of_template())


def test_a_missing_template_and_missing_rights_are_errors_with_the_next_step(site: Site) -> None:
    step = f"--template {TEMPLATE}"
    good, text = findings(site)[f"template {TEMPLATE}"]
    assert (good, step in text) == (False, True)
    assert step in findings(site)["rights"][1]
    with pytest.raises(AccessDenied, match="not readable") as missing:
        site.node.volume(of_template())
    assert step in str(missing.value)
    assert site.store.journal.pending() == []


def test_a_running_vm_is_not_cloned(site: Site) -> None:
    install(site, template=False, ide2="none,media=cdrom")
    site.cluster.vms[TEMPLATE].machine.start({})
    with pytest.raises(SwitchFailed, match="is running") as running:
        site.node.volume(of_template())
    assert f"qm shutdown {TEMPLATE}" in str(running.value)
