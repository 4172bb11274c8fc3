"""What pvebench leaves in a node's task history, which administrators need for their backups.

The witness are the recordings `config.put.*` and `config.post.*` of a real Proxmox API, which the
tests' API is held to (test_replay): PUT makes no task, POST makes one.
"""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest.mock import Mock

import pytest

from pve.site import MACHINE, Site, scenario
from pvebench.drivers.proxmox.api.tasks import KEPT_TASKS, Tasks, share_of_log
from pvebench.errors import DriverError, OutcomeUnknown, SwitchFailed
from pvebench.metrics.exposition import Families
from pvebench.model.disk import Bus, Cache
from pvebench.model.ports import Traffic
from pvebench.service.publisher import collect_api
from testing.families import families_of

SWITCHES = [(bus, cache) for bus in (Bus.SCSI, Bus.VIRTIO) for cache in (Cache.NONE, *Cache)]


def measured(site: Site) -> list[str]:
    """Return the kinds of the tasks of a cycle: one boot, twelve hot-plugs, one end."""
    site.node.boot(MACHINE)
    for bus, cache in SWITCHES:
        wanted = scenario(bus, cache=cache)
        volume, _ = site.node.volume(wanted)
        site.node.attach(volume, wanted.disk)
    site.node.shutdown()
    return [task.kind for task in site.cluster.tasks.all]


def test_a_cycle_of_twelve_hot_plugs_makes_four_tasks(both: Site) -> None:
    """It made 29, so a cycle every five minutes left hours of an administrator's history."""
    assert len(SWITCHES) == 12
    kinds = [kind for kind in measured(both) if kind != "imgcopy"]  # the image, once
    assert sorted(kinds) == ["qmcreate", "qmdestroy", "qmstart", "qmstop"]


def test_the_tasks_are_counted_as_the_node_lists_them(site: Site) -> None:
    traffic = Traffic()
    site.node._api._traffic = traffic  # type: ignore[attr-defined] # counted from now on
    started = len(site.cluster.tasks.all)
    kinds = measured(site)[started:]
    families = Families()
    collect_api({"pve1": traffic}, families)
    (found,) = [one for one in families_of(families) if one.name == "pvebench_pve_tasks"]
    assert found.samples[0].value == len(kinds)


def test_check_says_what_share_of_the_task_log_is_its_own(site: Site) -> None:
    kinds = measured(site)
    user = site.cluster.tasks.all[0].user
    site.cluster.tasks.run("pve1", "vzdump", "100", "root@pam", lambda _task: None)
    said = share_of_log(site.connect(), "pve1", user, time.time())
    share = f"{len(kinds) / KEPT_TASKS:.0%}"
    assert said.startswith(f"{len(kinds)} by pvebench in 24 hours, {share} of the about 1200")
    assert share_of_log(site.connect(), "pve1", user, time.time() + 90_000).startswith("0 by")


@pytest.mark.parametrize("made", [True, False], ids=["made", "never arrived"])
def test_a_change_without_a_reply_is_looked_up_and_never_sent_again(site: Site, made: bool) -> None:
    """pveproxy gives up after 30 s with 596, while the worker goes on."""
    site.node.boot(MACHINE)
    wanted = scenario()
    volume, _ = site.node.volume(wanted)
    kind = "status_after" if made else "status"
    site.faults.add(kind, "PUT", "/config", status=596, text="")  # type: ignore[arg-type] # one of its names
    calls = site.api.calls.count("PUT /nodes/pve1/qemu/9000/config")
    if made:
        site.node.attach(volume, wanted.disk)
    else:
        with pytest.raises(SwitchFailed, match=r"plug scsi1: .*no response \(596 "):
            site.node.attach(volume, wanted.disk)
    assert site.api.calls.count("PUT /nodes/pve1/qemu/9000/config") == calls + 1


def test_a_change_that_goes_on_after_the_reply_was_lost_is_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.node.boot(MACHINE)
    original, pause = site.cluster.put_nodes_qemu_config, threading.Event()

    def slow(who: str, **params: Any) -> None:
        threading.Thread(target=lambda: (pause.wait(1.0), original(who, **params))).start()

    monkeypatch.setattr(site.cluster, "put_nodes_qemu_config", slow)
    site.faults.add("status_after", "PUT", "/config", status=596, text="")
    vm = site.node._held.the_vm
    vm.change("tag", tags="pvebench-slow")
    assert vm.read().values["tags"] == "pvebench-slow"


def test_after_a_failed_list_of_tasks_an_old_task_is_not_taken_for_a_lost_one(site: Site) -> None:
    site.node.boot(MACHINE)
    access, lost = site.access(), Mock(side_effect=OutcomeUnknown("no response"))
    tasks = Tasks(access.api, access.node, access.clock, vmid=9000)
    site.faults.add("status", "GET", "/tasks", times=99, text="got timeout")
    with pytest.raises(DriverError, match="got timeout"):
        tasks.begin(lost, kind="qmstart")
    site.faults.active.clear()
    with pytest.raises(OutcomeUnknown):
        tasks.begin(lost, kind="qmstart")
