"""What the real API does that its recordings cannot show, and whether the test API does it too.

Seen on the real code of Proxmox VE 9.2.11 and 8.4.21 with QEMU's own backup, fleecing and savevm,
or read in it; each docstring is the behavior. `make pve-replay` compares these and the recordings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pve.access import ROOT
from pve.cluster import Cluster
from pve.refusals import Refused

STATUS = {"status", "exitstatus", "tokenid", "node", "upid", "starttime", "user", "pid", "id"}
STATUS |= {"pstart", "type"}
"""Members of a task's status in all recordings, which `pve.replay` does not play."""

DEAF = {"vzdump", "qmmove", "qmrestore", "qmdestroy", "qmsnapshot"}


class Behaviors:
    """Checks on a cluster with one VM, which has a disk; each is a method with its sentence."""

    def __init__(self, directory: Path, major: int) -> None:
        self.cluster = Cluster(directory, major=major, nodes=("pve1", "PVE-2"))
        for name in "fedcba":
            self.cluster.storages[name] = self.cluster.storages["local"]
        self.cluster.storages["local"].content = "images,iso,backup"
        self.ended("POST", "qemu", vmid="9000", scsi0="local:1")

    def call(self, method: str, path: str, node: str = "pve1", **params: str) -> Any:
        """Return the answer of root's request below a node."""
        place = f"/nodes/{node}/{path}".rstrip("/")
        name, found = self.cluster.schema.endpoint(method, place)
        return self.cluster.call(ROOT, name, {**params, **found})

    def refusal(self, method: str, path: str, node: str = "pve1", **params: str) -> str:
        try:
            return str(self.call(method, path, node, **params) and "")
        except Refused as error:
            return f"{error.status} {error.reason}"

    def ended(self, method: str, path: str, *, stop: str = "", **params: str) -> dict[str, Any]:
        """Return the status of a task at its end; `stop`: ask for its end, `kill`: ignored."""
        self.cluster.seconds = 30.0 if stop else 0.0
        self.cluster.tasks.deaf = DEAF if stop == "kill" else set()
        upid = self.call(method, path, **params)
        if stop:
            self.call("DELETE", f"tasks/{upid}")
        self.cluster.idle()
        return dict(self.call("GET", f"tasks/{upid}/status"))

    def status(self, **state: bool) -> tuple[Any, ...]:
        vars(self.cluster.storages["local"]).update(state)
        answer = self.call("GET", "storage/local/status")
        return tuple(answer[key] for key in ("active", "avail", "total", "enabled"))

    @property
    def config(self) -> dict[str, Any]:
        return self.cluster.vms[9000].config

    def dump(self) -> set[str]:
        place = self.cluster.storages["local"].directory / "pve1/dump"
        return {path.suffix for path in place.iterdir()}

    def listed(self) -> list[str]:
        return [row["volid"] for row in self.call("GET", "storage/local/content")]

    # --- the behaviors

    def disabled(self) -> bool:
        """A storage that is disabled or not mounted answers 200 with zeros; it is never full."""
        return (self.status(enabled=False), self.status(enabled=True, mounted=False)) == (
            (0, 0, 0, 0),
            (0, 0, 0, 1),
        )

    def unordered(self) -> bool:
        """Lists have no order: a Perl hash has another one at each call."""
        calls = [self.call("GET", "storage") for _ in range(9)]
        return len({str([row["storage"] for row in rows]) for rows in calls}) > 1

    def unknown(self) -> bool:
        """A node can be `unknown` while its pvestatd hangs, and answers all else."""
        self.cluster.all_nodes["PVE-2"].stalls = True
        rows = self.cluster.call(ROOT, "GET /nodes", {})
        states = {row["node"]: row["status"] for row in rows}
        return states["PVE-2"] == "unknown" and bool(self.call("GET", "version", "PVE-2"))

    def killed_backup(self) -> bool:
        """A killed backup leaves its lock, data and directory, and the API lists neither."""
        end = self.ended("POST", "vzdump", vmid="9000", storage="local", stop="kill")
        left = self.config.get("lock") == "backup" and self.dump() == {".dat", ".tmp"}
        return (
            left and end["exitstatus"] == "unexpected status" and "dump" not in str(self.listed())
        )

    def stopped_backup(self) -> bool:
        """A backup that is stopped in time leaves only its log, which is not listed."""
        self.ended("POST", "vzdump", vmid="9000", storage="local", stop="term")
        return "lock" not in self.config and self.dump() == {".log"} and len(self.listed()) == 1

    def killed_move(self) -> bool:
        """A killed qmmove leaves the target volume, in no configuration."""
        self.ended("POST", "qemu/9000/move_disk", disk="scsi0", storage="thin", stop="kill")
        owned = self.cluster.volumes.owned(9000)
        return len(owned) == 2 and sum(volid in str(self.config) for volid in owned) == 1

    def killed_restore(self) -> bool:
        """A killed qmrestore leaves `lock: create`."""
        self.ended("POST", "vzdump", vmid="9000", storage="local")
        (archive,) = [volid for volid in self.listed() if "/vzdump-" in volid]
        options = {"archive": archive, "storage": "local", "force": "1", "description": "x"}
        self.ended("POST", "qemu", vmid="9000", stop="kill", **options)
        return bool(self.config["lock"] == "create")

    def killed_snapshot(self) -> bool:
        """A killed qmsnapshot leaves `lock: snapshot`, the snapshot and its memory's volume."""
        self.call("PUT", "qemu/9000/config", scsi0="thin:0.01", memory="16")
        self.ended("POST", "qemu/9000/status/start")
        self.ended("POST", "qemu/9000/snapshot", snapname="ab", vmstate="1", stop="kill")
        names = {row["name"] for row in self.call("GET", "qemu/9000/snapshot")}
        left = "vm-9000-state-ab" in str(self.cluster.volumes.owned(9000))
        return self.config["lock"] == "snapshot" and names == {"ab", "current"} and left

    def killed_removal(self) -> bool:
        """A killed qmdestroy has freed the volumes, and leaves only `lock: destroyed`."""
        self.ended("DELETE", "qemu/9000", stop="kill")
        return self.config == {"lock": "destroyed"} and not self.cluster.volumes.owned(9000)

    def removal_without_storage(self) -> bool:
        """A VM is removed without its volumes on an inactive storage, which cannot be freed."""
        self.status(mounted=False)
        end = self.ended("DELETE", "qemu/9000")
        return end["exitstatus"] == "OK" and len(self.cluster.volumes.owned(9000)) == 1

    def lost_log(self) -> bool:
        """A crash of a node can lose a task's log: its exit status then is `unable to …`."""
        self.cluster.tasks.killed_status = "unable to read tail (got 0 bytes)"
        end = self.ended("POST", "vzdump", vmid="9000", storage="local", stop="kill")
        log = self.call("GET", f"tasks/{end['upid']}/log")
        return log == [] and str(end["exitstatus"]).startswith("unable to read tail")

    def failed_backup(self) -> bool:
        """The exit status of a failed backup is `job errors`; its cause is in the log."""
        self.cluster.vms[9000].config.pop("scsi0")
        end = self.ended("POST", "vzdump", vmid="9000", storage="local")
        return bool(end["exitstatus"] == "job errors" and end.keys() <= STATUS)

    def lock_in_a_run(self) -> bool:
        """A lock disturbs nothing that runs; the next change meets it, and a start in its task."""
        self.call("POST", "qemu/9000/status/start")
        self.cluster.idle()
        self.config["lock"] = "backup"
        refused = self.refusal("PUT", "qemu/9000/config", description="x")
        return self.cluster.vms[9000].running and refused == "500 VM is locked (backup)"

    def node_off(self) -> bool:
        """The status of a VM on a node that is off is 595, never a part of the list's answer."""
        self.cluster.all_nodes["pve1"].online = False
        rows = self.cluster.call(ROOT, "GET /cluster/resources", {})
        return self.refusal("GET", "qemu/9000/status/current")[:3] == "595" and "9000" in str(rows)


NAMES = tuple(
    name
    for name, one in vars(Behaviors).items()
    if callable(one) and (one.__annotations__ == {"return": "bool"})
)


def holds(name: str, directory: Path, major: int) -> bool:
    """Return whether the test API has a behavior."""
    return bool(getattr(Behaviors(directory, major), name)())


def missing(major: int) -> Iterator[str]:
    """Yield the behaviors that the test API does not have."""
    for name in NAMES:
        with tempfile.TemporaryDirectory(prefix="pvebench-behaviours-") as place:
            if not holds(name, Path(place), major):
                yield str(getattr(Behaviors, name).__doc__)
