"""A VM whose creation a crash interrupted is removed, or named if it has no marker.

Witness of the order of a creation: `create_vm` in PVE/API2/Qemu.pm of qemu-server 9.2.6. The empty
configuration with the lock `create` precedes the task; description and pool follow in the task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pve.site import POOL, QuickClock, Site
from pve.vms import Vm
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.vm import leftover_vms
from pvebench.drivers.proxmox.vm.bench_vm import KIND
from pvebench.drivers.proxmox.vm.description import description
from pvebench.drivers.proxmox.vm.vm_create import make_vm, upload_iso

OPTIONS = {"name": "pvebench-pve1", "ostype": "l26", "memory": 64}


class Killed(BaseException):
    """SIGKILL of pvebench."""


class DyingApi:
    """Connection of a process that is killed before or after one of its requests."""

    def __init__(self, api: Api, dies_at: int, *, after: bool) -> None:
        self._api, self._left, self._after = api, dies_at, after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._api, name)

        def request(*given: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            answer = call(*given, **named)
            if self._left == 0:
                raise Killed
            return answer

        return request


class Waits(QuickClock):
    """Only waits take time; `second` is called in the second one."""

    def __init__(self, second: Callable[[], None] = lambda: None) -> None:
        self.second, self.count, self.waited = second, 0, 0.0

    def monotonic(self) -> float:
        return self.waited

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.waited += seconds
        self.count += 1
        if self.count == 2:
            self.second()


def create(site: Site, api: Api) -> None:
    make_vm(site.access(api=api), OPTIONS, upload_iso(site.access(), "local", site.image))


@pytest.mark.parametrize("after", [False, True])
def test_killed_before_or_after_each_request_of_a_creation_nothing_is_left(
    site: Site, after: bool
) -> None:
    moments = 0
    for dies_at in range(1, 40):
        try:
            create(site, DyingApi(site.connect(), dies_at, after=after))  # type: ignore[arg-type] # as Api
        except Killed:
            moments += 1
            site.undo(Waits())
            assert (site.cluster.vms, site.store.journal.pending()) == ({}, []), dies_at
        else:
            break
    assert moments >= 6
    assert len(site.undo()) == 1


def test_a_vm_whose_request_was_on_its_way_at_a_crash_is_removed(site: Site) -> None:
    """The node has neither the VM nor its task when the next start looks."""
    with pytest.raises(Killed):
        create(site, DyingApi(site.connect(), requests_before_creation(site), after=False))  # type: ignore[arg-type] # as Api
    ((_, _, details),) = site.store.journal.pending()
    api = site.connect()

    def arrive() -> None:
        text = description(details["mark"])
        api.post("/nodes/pve1/qemu", vmid=9000, pool=POOL, description=text)

    assert site.undo(Waits(arrive)) == ["removed VM 9000 with its volumes"]
    assert (site.cluster.vms, site.store.journal.pending()) == ({}, [])


def requests_before_creation(site: Site) -> int:
    """Return the number of the request that creates the VM."""
    seen: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            def request(path: str, **named: Any) -> Any:
                seen.append(f"{name} {path}")
                return getattr(api, name)(path, **named)

            return request

    api = site.connect()
    create(site, Counting())  # type: ignore[arg-type] # as Api
    site.undo()
    return seen.index("post /nodes/pve1/qemu") + 1


def test_a_request_that_was_never_sent_is_awaited_as_long_as_a_task(site: Site) -> None:
    details = {"node": "pve1", "pool": POOL, "vmid": "9000", "mark": "0" * 32, "newest": ""}
    site.store.journal.open(KIND, details)
    clock = Waits()
    assert site.undo(clock) == ["VM 9000 already gone"]
    assert 8 <= clock.waited <= 14


def test_a_creation_that_takes_longer_than_the_wait_is_removed_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The VM is not in the pool before its task ends, so the token does not see it."""
    monkeypatch.setattr(leftover_vms, "_BIRTH_SECONDS", 1.0)
    number = requests_before_creation(site)
    goes_on, update = threading.Event(), Vm.update

    def slow(vm: Vm, wanted: Mapping[str, Any]) -> None:
        goes_on.wait(20)
        update(vm, wanted)

    monkeypatch.setattr(Vm, "update", slow)
    with pytest.raises(Killed):
        create(site, DyingApi(site.connect(), number, after=True))  # type: ignore[arg-type] # as Api
    (line,) = site.undo()
    assert "could not remove VM 9000 yet" in line
    assert "still created" in line
    assert site.store.journal.pending()
    goes_on.set()
    monkeypatch.setattr(leftover_vms, "_BIRTH_SECONDS", 60.0)
    assert site.undo() == ["removed VM 9000 with its volumes"]


def test_a_vm_without_marker_that_a_crash_of_its_node_left_is_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftover_vms, "_BIRTH_SECONDS", 1.0)
    details = {"node": "pve1", "pool": POOL, "vmid": "9000", "mark": "0" * 32, "newest": ""}
    site.store.journal.open(KIND, details)
    site.cluster._reserve("pve1", 9000)  # the task ended with the node
    (line,) = site.undo()
    assert "VM 9000 not changed: not in the pool or not visible" in line
    assert "remove it on the node as root, with the option --skiplock of qm" in line
    assert site.cluster.vms[9000].config["lock"] == "create"
    assert site.store.journal.pending() == []
