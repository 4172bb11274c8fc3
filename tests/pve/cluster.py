"""The cluster: nodes, storages, VMs, access; and what each endpoint does with them."""

from __future__ import annotations

import base64
import hashlib
import itertools
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pve.access import ROOT, Access, User
from pve.clones import CloneCalls
from pve.drives import NEW, SLOT, parse
from pve.machines import AgentRefusal, AgentSilence, CheapMachine, Machine
from pve.operations import OperationCalls
from pve.refusals import Refused, bad_parameter, failure
from pve.schema import Schema
from pve.storage import FILES, Book, Storage, Volumes, parse_size
from pve.tasks import Task, TaskFailure, Tasks
from pve.vms import Vm

VERSIONS = {8: "8.4.21", 9: "9.2.11"}
PACKAGES = {
    8: {
        "pve-manager": "8.4.21",
        "qemu-server": "8.4.10",
        "pve-qemu-kvm": "9.2.0-7",
        "zfsutils-linux": "2.2.8-pve1",
        "proxmox-kernel-6.8.12-15-pve-signed": "6.8.12-15",
    },
    9: {
        "pve-manager": "9.2.11",
        "qemu-server": "9.2.6",
        "pve-qemu-kvm": "11.0.0-2",
        "zfsutils-linux": "2.4.1-pve1",
        "proxmox-kernel-7.0.2-1-pve-signed": "7.0.2-1",
    },
}
ORDERED = frozenset({"GET /nodes/{node}/tasks/{upid}/log"})
"""Requests whose rows have an order: all others come from hashes (`hash_to_array`)."""
_STORAGE_SEEN = {"Datastore.Audit", "Datastore.AllocateSpace"}
_ACL_PATH = re.compile(
    r"/|/access(/(groups|realm)(/[\w.-]+)?)?|/(nodes|storage)(/[\w.-]+)?|/vms(/[1-9]\d{2,})?"
    r"|/pool(/[\w.-]+){0,3}|/(sdn|mapping)(/[\w.-]+)*",
    re.ASCII,
)
"""Where rights may be given, as AccessControl.pm lists it."""
KERNELS = {8: "6.8.12-15-pve", 9: "7.0.2-1-pve"}

_SCHEMAS = cache(Schema)
MakeMachine = Callable[[int, Path, Volumes, Callable[[], str]], Machine]
"""From number, directory, volumes and the version of QEMU that a start would run."""


@dataclass
class Node:
    """One node; `installed` packages may be newer than what runs."""

    name: str
    installed: dict[str, str]
    kernel: str
    online: bool = True
    stalls: bool = False
    """Whether its pvestatd hangs: it is `unknown` in lists, and answers all else."""
    hastate: str = ""
    """As the HA manager keeps it; empty: it never ran, as in the recordings."""
    replicating: list[int] = field(default_factory=list)
    pools: dict[str, str] = field(default_factory=dict)
    """ZFS pool -> what `zpool status` says of its scan."""
    fragmentation: dict[str, int] = field(default_factory=dict)
    """ZFS pool -> per cent, 0 where nothing is said."""
    memory: dict[str, int] = field(
        default_factory=lambda: {"total": 64 << 30, "used": 4 << 30, "free": 16 << 30}
    )
    """As `node.status` of the recordings of 8.4; 9.2 also has `available`, total without used."""
    wearout: tuple[object, ...] = ("N/A",)
    """Of the drives; the recordings `read.token.disks` have one that is virtual."""
    drives: list[dict[str, Any]] = field(default_factory=list)
    """Drives and partitions without SMART."""

    @property
    def status(self) -> str:
        return "unknown" if self.online and self.stalls else "online" if self.online else "offline"

    @property
    def reports(self) -> bool:
        """Whether lists of the cluster know the state of its guests and storages."""
        return self.online and not self.stalls

    @property
    def qemu(self) -> str:
        """What a VM that is started now would run."""
        return self.installed["pve-qemu-kvm"].partition("-")[0]


def cheap(vmid: int, directory: Path, volumes: Volumes, qemu: Callable[[], str]) -> Machine:
    return CheapMachine(directory, volumes, qemu=qemu)


@dataclass
class Cluster(CloneCalls, OperationCalls):
    """Everything that the API shows, and its endpoints. `directory` holds all files."""

    directory: Path
    major: int = 9
    nodes: tuple[str, ...] = ("pve1", "pve2")
    make_machine: MakeMachine = cheap
    pools: dict[str, set[int]] = field(default_factory=dict)
    pool_storages: dict[str, set[str]] = field(default_factory=dict)
    vms: dict[int, Vm] = field(default_factory=dict)
    tasks: Tasks = field(default_factory=Tasks)
    zfs_installed: bool = True
    zfs_loaded: bool = True
    ceph: dict[str, Any] | None = None
    """The answer of `ceph status`; None: the nodes have no Ceph."""

    def __post_init__(self) -> None:
        super().__post_init__()
        CloneCalls.__init__(self)
        self.order = random.Random(str(self.directory.parent.name))
        """Of lists, from the name of the test's directory."""
        self.schema = _SCHEMAS(self.major)
        roles = {name: set(privs) for name, privs in self.schema.data["roles"].items()}
        self.access = Access(
            roles, self._pools_of, self.major, users={ROOT: User(password="rootpw")}
        )
        self.all_nodes = {
            name: Node(name, dict(PACKAGES[self.major]), KERNELS[self.major]) for name in self.nodes
        }
        base = self.directory
        self.storages = {
            "local": Storage("local", "dir", base / "local"),
            "thin": Storage("thin", "lvmthin", base / "thin", content="images"),
            "share": Storage("share", "nfs", base / "share", shared=True),
        }
        shared: Book = {}
        self.volumes_on = {name: Volumes(self.storages, name, shared) for name in self.nodes}
        self._names = itertools.count(1)

    @property
    def volumes(self) -> Volumes:
        """What the first node sees."""
        return self.volumes_on[self.nodes[0]]

    def _pools_of(self, path: str) -> list[str]:
        _, kind, name = [*path.split("/"), "", ""][:3]
        return [
            pool
            for pool in self.pools
            if (kind == "vms" and name.isdigit() and int(name) in self.pools[pool])
            or (kind == "storage" and name in self.pool_storages.get(pool, ()))
        ]

    def call(self, who: str, name: str, params: dict[str, Any]) -> Any:
        """Check one request and answer it; `params` include what the path says."""
        node = params.get("node")
        if node is not None and node not in self.all_nodes:
            raise failure(f"hostname lookup '{node}' failed - failed to get address info")
        if node is not None and not self.all_nodes[node].online:
            raise Refused(595, "No route to host", empty=True)
        self.access.check(who, self.schema.permissions(name), params)
        self.schema.check(name, params)
        method, _, path = name.partition(" ")
        words = [word for word in path.split("/") if word and not word.startswith("{")]
        handler = getattr(self, f"{method.lower()}_{'_'.join(words).replace('-', '_')}", None)
        if handler is None or ("{" in path.rpartition("/")[2]):
            last = path.rpartition("/")[2].strip("{}")
            handler = getattr(self, f"{method.lower()}_{'_'.join(words)}_{last}", handler)
        answer = handler(who, **{key.replace("-", "_"): value for key, value in params.items()})
        return answer if name in ORDERED else self._in_any_order(answer)

    def _in_any_order(self, answer: Any) -> Any:
        """Return an answer with its lists as of a Perl hash: in another order at each call."""
        if isinstance(answer, list):
            rows = [self._in_any_order(row) for row in answer]
            self.order.shuffle(rows)
            return rows
        if not isinstance(answer, dict):
            return answer
        answer = {key: self._in_any_order(value) for key, value in answer.items()}
        if isinstance(answer.get("content"), str) and "storage" in answer:
            kinds = answer["content"].split(",")
            self.order.shuffle(kinds)
            answer["content"] = ",".join(kinds)
        return answer

    # --- cluster, nodes, tasks -------------------------------------------------------------

    def get_version(self, who: str) -> dict[str, str]:
        version = VERSIONS[self.major]
        return {"version": version, "release": version.rpartition(".")[0], "repoid": "0" * 16}

    def get_nodes(self, who: str) -> list[dict[str, Any]]:
        return [
            {"node": node.name, "type": "node", "status": node.status}
            for node in self.all_nodes.values()
        ]

    def get_nodes_version(self, who: str, node: str) -> dict[str, str]:
        return self.get_version(who)

    def get_nodes_time(self, who: str, node: str) -> dict[str, Any]:
        now = int(time.time())
        return {"time": now, "localtime": now, "timezone": "UTC"}

    def get_nodes_status(self, who: str, node: str) -> dict[str, Any]:
        return {
            "current-kernel": {"release": self.all_nodes[node].kernel, "sysname": "Linux"},
            "cpuinfo": {"model": "Test CPU", "cpus": 4},
            "loadavg": ["0.1", "0.1", "0.1"],
            "cpu": 0.05,
            "wait": 0.01,
            "uptime": 1000,
            "memory": self.all_nodes[node].memory,
        }

    def get_nodes_apt_versions(self, who: str, node: str) -> list[dict[str, str]]:
        return [
            {"Package": name, "OldVersion": version, "Version": version}
            for name, version in self.all_nodes[node].installed.items()
        ]

    def get_nodes_tasks(
        self,
        who: str,
        node: str,
        *,
        source: str = "archive",
        limit: int = 50,
        vmid: str | None = None,
        typefilter: str | None = None,
        **_: Any,
    ) -> list[dict[str, Any]]:
        foreign = "Sys.Audit" in self.access.rights(who, f"/nodes/{node}")
        rows = []
        for task in reversed(self.tasks.all):
            ended = task.end is not None
            mine = foreign or task.user == who
            if task.node != node or not mine or (source == "archive" and not ended):
                continue
            if (vmid and task.subject != str(vmid)) or (typefilter and task.kind != typefilter):
                continue
            row = task.status()
            row["status"] = row.pop("exitstatus", "RUNNING")
            row |= {"endtime": task.ended} if ended else {}
            rows.append(row)
        return rows[: int(limit)]

    def get_nodes_tasks_status(self, who: str, node: str, upid: str) -> dict[str, Any]:
        return self.tasks.find(upid).status()

    def get_nodes_tasks_log(self, who: str, node: str, upid: str, **_: Any) -> list[dict[str, Any]]:
        lines = self.tasks.find(upid).log
        return [{"n": number, "t": line} for number, line in enumerate(lines, 1)]

    def get_cluster_nextid(self, who: str, vmid: str | None = None) -> str:
        if vmid is not None:
            if int(vmid) in self.vms:
                raise bad_parameter({"vmid": f"VM {vmid} already exists"})
            return vmid
        return str(next(number for number in itertools.count(100) if number not in self.vms))

    def get_cluster_resources(self, who: str, type: str = "", **_: Any) -> list[dict[str, Any]]:
        nodes = [
            {
                "id": f"node/{node.name}",
                "type": "node",
                "node": node.name,
                "status": node.status,
                **({"hastate": node.hastate} if node.hastate else {}),
            }
            for node in self.all_nodes.values()
        ]
        wanted = {"vm": "qemu"}.get(type, type)
        storages = [
            self._storage_resource(one, node)
            for node in self.nodes
            for one in self._storages_of(node)
            if self.access.rights(who, f"/storage/{one.name}") & _STORAGE_SEEN
        ]
        rows = [*nodes, *self._guests(who), *storages]
        return [row for row in rows if wanted in {"", row["type"]}]

    def get_cluster_backup(self, who: str) -> list[dict[str, Any]]:
        return []

    def get_nodes_replication(self, who: str, node: str, **_: Any) -> list[dict[str, Any]]:
        return [
            {"id": f"{guest}-0", "guest": guest, "pid": 4711}
            for guest in self.all_nodes[node].replicating
        ]

    def get_nodes_ceph_status(self, who: str, node: str) -> dict[str, Any]:
        if self.ceph is None:
            raise failure("binary not installed: /usr/bin/ceph-mon")
        return self.ceph

    def get_nodes_disks_zfs(self, who: str, node: str) -> list[dict[str, Any]]:
        if not self.zfs_installed:
            raise failure("zfsutils-linux not installed")
        if not self.zfs_loaded:  # `run_command` of pve-common, of a zpool that ends with 1
            raise failure("command '/sbin/zpool list -HpPLo name,size,health' failed: exit code 1")
        one = self.all_nodes[node]
        return [
            {"name": name, "health": "ONLINE", "frag": one.fragmentation.get(name, 0)}
            for name in one.pools
        ]

    def get_nodes_disks_list(
        self, who: str, node: str, include_partitions: str = "", skipsmart: str = ""
    ) -> list[dict[str, Any]]:
        if include_partitions:
            return self.all_nodes[node].drives
        return [
            {"devpath": f"/dev/sd{letter}", "wearout": rest, "type": "unknown"}
            for letter, rest in zip("abcdefgh", self.all_nodes[node].wearout, strict=False)
        ]

    def get_storage(self, who: str, type: str = "") -> list[dict[str, Any]]:
        return [
            {"storage": one.name, "type": one.type, "content": one.content}
            | ({"pool": one.pool} if one.pool else {})
            | dict(one.options)
            | ({"snapshot-as-volume-chain": 1} if one.volume_chain else {})
            for one in self.storages.values()
            if type in {"", one.type}
            and _STORAGE_SEEN & self.access.rights(who, f"/storage/{one.name}")
        ]

    def get_nodes_disks_zfs_name(self, who: str, node: str, name: str) -> dict[str, Any]:
        scan, *others = self.all_nodes[node].pools[name].splitlines()
        more = dict(line.split(": ", 1) for line in others)
        return {"name": name, "state": "ONLINE", "scan": scan, **more}

    def _reports(self, node: str) -> bool:
        return node in self.all_nodes and self.all_nodes[node].reports

    def _shown_status(self, vm: Vm) -> str:
        if not self._reports(vm.node):
            return "unknown"
        return "running" if vm.running else "stopped"

    def _storage_resource(self, one: Storage, node: str) -> dict[str, Any]:
        there = one.active and self._reports(node)
        return {
            "id": f"storage/{node}/{one.name}",
            "type": "storage",
            "storage": one.name,
            "node": node,
            "plugintype": one.type,
            "content": one.content,
            "shared": int(one.shared),
            "status": "available" if there else "unknown",
            "disk": one.avail if there else 0,
            "maxdisk": one.avail * 2 if there else 0,
        }

    def _guests(self, who: str) -> list[dict[str, Any]]:
        return [
            {
                "id": f"qemu/{vm.vmid}",
                "type": "qemu",
                "vmid": vm.vmid,
                "node": vm.node,
                "status": self._shown_status(vm),
                "name": vm.config.get("name", ""),
                "pool": "".join(self._pools_of(f"/vms/{vm.vmid}")),
                **({"hastate": vm.hastate} if vm.hastate else {}),
                **{key: vm.config[key] for key in ("lock", "tags") if key in vm.config},
            }
            for vm in self.vms.values()
            if "VM.Audit" in self.access.rights(who, f"/vms/{vm.vmid}")
        ]

    def get_cluster_status(self, who: str) -> list[dict[str, Any]]:
        return [{"type": "cluster", "name": "test", "quorate": 1, "nodes": len(self.nodes)}]

    # --- access and pools ------------------------------------------------------------------

    def post_access_ticket(
        self, who: str, username: str, password: str, tfa_challenge: str = "", **_: Any
    ) -> Any:
        return self.access.ticket(username, password, tfa_challenge)

    def get_access_permissions(self, who: str, path: str = "", **_: Any) -> Any:
        if path:
            return {path: dict.fromkeys(sorted(self.access.rights(who, path)), 1)}
        paths = [f"/pool/{name}" for name in self.pools]
        members = {name for names in self.pool_storages.values() for name in names}
        return self.access.table(who, [*paths, *(f"/storage/{name}" for name in members)])

    def get_access_roles(self, who: str) -> list[dict[str, Any]]:
        special = self.schema.data["roles"]
        return [
            {"roleid": name, "privs": ",".join(self._known(name)), "special": int(name in special)}
            for name in self.access.roles
        ]

    def _known(self, role: str) -> list[str]:
        """What of a role this version knows: the rest is ignored where it is read."""
        return sorted(self.access.roles[role] & self.schema.privileges)

    def _own_role(self, doing: str, roleid: str) -> None:
        if roleid in self.schema.data["roles"]:
            raise failure(f"auto-generated role '{roleid}' cannot be {doing}")
        if roleid not in self.access.roles:
            verb = {"modified": "update", "deleted": "delete"}[doing]
            raise failure(f"{verb} role failed: role '{roleid}' does not exist")

    def get_access_roles_roleid(self, who: str, roleid: str) -> dict[str, int]:
        if roleid not in self.access.roles:
            raise failure(f"role '{roleid}' does not exist")
        return dict.fromkeys(self._known(roleid), 1)

    def post_access_roles(self, who: str, roleid: str, privs: str = "") -> None:
        if roleid.upper().startswith("PVE"):
            text = "cannot use role ID starting with the (case-insensitive) 'PVE' namespace"
            raise bad_parameter({"roleid": text})
        if roleid in self.access.roles:
            raise failure(f"create role failed: role '{roleid}' already exists")
        self.access.roles[roleid] = split_list(privs)

    def put_access_roles(self, who: str, roleid: str, privs: str = "", append: str = "0") -> None:
        self._own_role("modified", roleid)
        before = self.access.roles[roleid] if append == "1" else set()
        self.access.roles[roleid] = before | split_list(privs)

    def delete_access_roles_roleid(self, who: str, roleid: str) -> None:
        self._own_role("deleted", roleid)
        del self.access.roles[roleid]

    def get_access_acl(self, who: str, **_: Any) -> list[dict[str, Any]]:
        """Only what the caller might change, as in Proxmox."""
        rows = []
        for entry in self.access.acl:
            path, subject, role = entry
            with suppress(Refused):
                self.access.need_modify(who, path)
                rows.append(
                    {
                        "path": path,
                        "ugid": subject,
                        "roleid": role,
                        "type": "token" if "!" in subject else "user",
                        "propagate": int(entry not in self.access.not_inherited),
                    }
                )
        return [row for row in rows if row["roleid"] in self.access.roles]

    def put_access_acl(
        self,
        who: str,
        path: str,
        roles: str,
        users: str = "",
        tokens: str = "",
        groups: str = "",
        propagate: str = "1",
        delete: str = "0",
    ) -> None:
        if not (users or tokens or groups):
            what = "either 'users', 'groups' or 'tokens' is required."
            raise bad_parameter(dict.fromkeys(("users", "groups", "tokens"), what))
        subjects = sorted(split_list(users) | split_list(tokens))
        if not _ACL_PATH.fullmatch(path):
            raise bad_parameter({"path": f"invalid ACL path '{path}'"})
        for role in split_list(roles):
            self.access.refuse_unknown(role, subjects)
            if delete == "1":
                for subject in subjects:
                    self.access.withdraw(path, subject, role)
            else:
                self.access.grant(path, role, subjects, inherited=propagate == "1")

    def get_access_users(self, who: str, **_: Any) -> list[dict[str, Any]]:
        return [
            {"userid": name, "enable": int(user.enabled)}
            for name, user in self.access.users.items()
        ]

    def post_access_users(self, who: str, userid: str, password: str = "", **_: Any) -> None:
        if userid in self.access.users:
            raise failure(f"create user failed: user '{userid}' already exists")
        self.access.users[userid] = User(password=password)

    def delete_access_users_userid(self, who: str, userid: str) -> None:
        """Its tokens and its rights go with it; one that is not there is deleted as well.

        PVE/API2/User.pm of pve-access-control says so. There a token's rights stay in user.cfg
        until somebody reads and writes it again (AccessControl.pm); nothing shows them meanwhile.
        """
        self.access.users.pop(userid, None)
        self.access.acl = [
            entry for entry in self.access.acl if entry[1].partition("!")[0] != userid
        ]

    def get_access_users_token(self, who: str, userid: str) -> list[dict[str, Any]]:
        tokens = self.access.existing(userid).tokens
        return [{"tokenid": name, **token.shown()} for name, token in tokens.items()]

    def get_access_users_token_tokenid(self, who: str, userid: str, tokenid: str) -> dict[str, Any]:
        return self.access.token(userid, tokenid).shown()

    def post_access_users_token_tokenid(
        self,
        who: str,
        userid: str,
        tokenid: str,
        privsep: str = "1",
        comment: str = "",
        expire: str = "0",
    ) -> dict[str, Any]:
        secret = self.access.make_token(userid, tokenid, privsep=privsep == "1")
        token = self.access.token(userid, tokenid)
        token.comment, token.expire = comment, int(expire)
        told = {"privsep": privsep, **({"comment": comment} if comment else {})}
        return {"full-tokenid": f"{userid}!{tokenid}", "value": secret, "info": told}

    def put_access_users_token_tokenid(
        self, who: str, userid: str, tokenid: str, privsep: str | None = None, **_: Any
    ) -> dict[str, Any]:
        token = self.access.token(userid, tokenid)
        if privsep is not None:
            token.privsep = privsep == "1"
        return token.shown()

    def delete_access_users_token_tokenid(self, who: str, userid: str, tokenid: str) -> None:
        self.access.token(userid, tokenid)
        del self.access.users[userid].tokens[tokenid]
        full = f"{userid}!{tokenid}"
        self.access.acl = [entry for entry in self.access.acl if entry[1] != full]

    def get_pools(self, who: str, poolid: str = "", **_: Any) -> list[dict[str, Any]]:
        if poolid:
            self.access.need(who, f"/pool/{poolid}", ["Pool.Audit"])
            return [self.get_pools_poolid(who, poolid)]
        return [
            {"poolid": name}
            for name in self.pools
            if "Pool.Audit" in self.access.rights(who, f"/pool/{name}")
        ]

    def get_pools_poolid(self, who: str, poolid: str, **_: Any) -> dict[str, Any]:
        if poolid not in self.pools:
            raise failure(f"pool '{poolid}' does not exist")
        members: list[dict[str, Any]] = [
            {"id": f"qemu/{vmid}", "vmid": vmid, "type": "qemu", "node": self.vms[vmid].node}
            for vmid in sorted(self.pools[poolid])
        ]
        members += [
            self._storage_resource(self.storages[name], self.nodes[0])
            for name in sorted(self.pool_storages.get(poolid, ()))
            if name in self.storages
        ]
        return {"poolid": poolid, "members": members}

    def post_pools(self, who: str, poolid: str, **_: Any) -> None:
        if poolid in self.pools:
            raise failure(f"create pool failed: pool '{poolid}' already exists")
        if not poolid.rpartition("/")[2][:1].isalpha():
            raise failure("create pool failed: pool name must start with a letter")
        self.pools[poolid] = set()

    def delete_pools(self, who: str, poolid: str) -> None:
        """Its rights go with it; PVE/API2/Pool.pm of pve-manager and AccessControl.pm say so."""
        if poolid not in self.pools:
            raise failure(f"delete pool failed: pool '{poolid}' does not exist")
        members = [f"VM {vmid}" for vmid in sorted(self.pools[poolid])]
        there = self.pool_storages.get(poolid, set()) & set(self.storages)
        members += [f"storage '{name}'" for name in sorted(there)]
        if members:
            reason = f"pool '{poolid}' is not empty (contains {members[0]})"
            raise failure(f"delete pool failed: {reason}")
        del self.pools[poolid]
        self.access.acl = [entry for entry in self.access.acl if entry[0] != f"/pool/{poolid}"]

    def put_pools(
        self, who: str, poolid: str, storage: str = "", vms: str = "", delete: str = "0", **_: Any
    ) -> None:
        """As a whole or not at all: one member that is there already refuses the others, too."""
        if poolid not in self.pools:
            raise failure(f"update pools failed: pool '{poolid}' does not exist")
        storages, numbers = split_list(storage), {int(vmid) for vmid in split_list(vms)}
        have = self.pool_storages.setdefault(poolid, set())
        for path in [f"/vms/{vmid}" for vmid in numbers] + [f"/storage/{one}" for one in storages]:
            self.access.need_modify(who, path)
        away = delete == "1"
        for word, wanted, there in (
            ("Storage '{}'", storages, have),
            ("VM {}", numbers, self.pools[poolid]),
        ):
            for one in sorted(wanted - there if away else wanted & there):
                how = "not" if away else "already"
                raise failure(f"update pools failed: {word.format(one)} is {how} a pool member")
        if away:
            have -= storages
            self.pools[poolid] -= numbers
        else:
            have |= storages
            self.pools[poolid] |= numbers

    # --- storage ---------------------------------------------------------------------------

    def _storages_of(self, node: str) -> list[Storage]:
        return [one for one in self.storages.values() if not one.nodes or node in one.nodes]

    def _storage_row(self, one: Storage, *, formats: bool = False) -> dict[str, Any]:
        row: dict[str, Any] = {
            "storage": one.name,
            "type": one.type,
            "content": one.content,
            "active": int(one.active),
            "enabled": int(one.enabled),
            "shared": int(one.shared),
            "total": one.avail * 2 * one.active,
            "used": one.avail * one.active,
            "avail": one.avail * one.active,
        }
        if formats and self.major >= 9:
            row["formats"] = {"supported": list(one.formats), "default": one.formats[0]}
        return row

    def get_nodes_storage(
        self,
        who: str,
        node: str,
        format: str = "0",
        content: str = "",
        enabled: str = "0",
        **_: Any,
    ) -> list[dict[str, Any]]:
        return [
            self._storage_row(one, formats=format == "1")
            for one in self._storages_of(node)
            if _STORAGE_SEEN & self.access.rights(who, f"/storage/{one.name}")
            and (not content or split_list(content) & split_list(one.content))
            and (one.enabled or enabled != "1")
        ]

    def get_nodes_storage_status(self, who: str, node: str, storage: str) -> dict[str, Any]:
        row = self._storage_row(self.volumes_on[node].storage(storage))
        del row["storage"]
        return row

    def get_nodes_storage_content(
        self, who: str, node: str, storage: str, content: str = "", vmid: str | None = None
    ) -> list[dict[str, Any]]:
        rows = self.volumes_on[node].listed(storage, content, int(vmid) if vmid else None)
        of_lvm = self.major >= 9 and self.storages[storage].type == "lvm"
        running = {vm.vmid for vm in self.vms.values() if vm.running}
        for row in rows:  # the header of a logical volume is read only while it is active
            if of_lvm and row["format"] == "qcow2" and row.get("vmid") not in running:
                row["approximate-size"] = row.pop("size") + (4 << 20)
        return [
            row
            for row in rows
            if "vmid" not in row
            or {"backup": "VM.Backup"}.get(row["content"], "VM.Config.Disk")
            in self.access.rights(who, f"/vms/{row['vmid']}")
        ]

    def post_nodes_storage_content(
        self,
        who: str,
        node: str,
        storage: str,
        vmid: str,
        filename: str,
        size: str,
        format: str = "raw",
    ) -> str:
        return self.volumes_on[node].allocate(
            storage, int(vmid), filename, parse_size(size), format
        )

    def post_nodes_storage_upload(
        self,
        who: str,
        node: str,
        storage: str,
        content: str,
        filename: str,
        blob: bytes = b"",
        checksum: str = "",
        checksum_algorithm: str = "",
    ) -> str:
        def copy(task: Task) -> None:
            if checksum:
                got = hashlib.new(checksum_algorithm, blob).hexdigest()
                if got != checksum:
                    raise TaskFailure(f"checksum mismatch: got '{got}' != expect '{checksum}'")
            self.volumes_on[node].upload(storage, filename, blob)

        if not filename.endswith((".iso", ".img")):
            raise bad_parameter({"filename": "wrong file extension"})
        self.volumes_on[node].refuse_iso(storage)
        return self.tasks.run(node, "imgcopy", "", who, copy)

    # --- VMs -------------------------------------------------------------------------------

    def vm(self, node: str, vmid: str | int) -> Vm:
        found = self.vms.get(int(vmid))
        if found is None or found.node != node:
            raise failure(
                f"Configuration file 'nodes/{node}/qemu-server/{vmid}.conf' does not exist"
            )
        return found

    def get_nodes_qemu(self, who: str, node: str, **_: Any) -> list[dict[str, Any]]:
        rows = [row for row in self._guests(who) if row["node"] == node]
        return [{key: row[key] for key in ("vmid", "name", "status")} for row in rows]

    def post_nodes_qemu(
        self, who: str, node: str, vmid: str, pool: str = "", **options: Any
    ) -> str:
        number = int(vmid)
        path = self._place_of_new(who, vmid, pool)
        if "archive" in options:
            self._need_options(who, f"/vms/{vmid}", {"description": ""}, creating=True)
            return self.restore(who, node, number, **options)
        self._need_volumes(who, node, number, options)
        tags = options.pop("tags", None)
        starts = options.pop("start", "0") == "1"
        self._need_options(who, path, options, creating=True)
        vm = self._reserve(node, number)

        def create(task: Task) -> None:
            try:
                if tags is not None and self.major >= 9:
                    # Checked before the VM is in its pool.
                    self.access.need(who, f"/vms/{vmid}", ["VM.Config.Options"])
                wanted = options if tags is None else {**options, "tags": tags}
                if wanted:
                    vm.update(wanted)
            except Refused as error:
                undo()
                code = f"{error.status} " if error.status != 500 else ""
                raise failure(f"unable to create VM {vmid} - {code}{error.reason}") from error
            except BaseException:
                undo()
                raise
            del vm.config["lock"]
            if pool:
                self.pools[pool].add(number)
            if starts:  # a task of its own, whose failure is only told in a log
                self.post_nodes_qemu_status_start(who, node, vmid)

        def undo() -> None:
            vm.remove()
            del self.vms[number]

        return self.tasks.run(node, "qmcreate", vmid, who, create, undo)

    def _place_of_new(self, who: str, vmid: str, pool: str) -> str:
        """Return the path on which rights for a new VM are checked."""
        path = f"/pool/{pool}" if pool else f"/vms/{vmid}"
        if pool and pool not in self.pools:
            raise Refused(403, f"Permission check failed (pool '{pool}' does not exist)")
        if "VM.Allocate" not in self.access.rights(who, path):
            raise Refused(403, "Permission check failed")
        return path

    def _reserve(self, node: str, vmid: int) -> Vm:
        if vmid in self.vms:
            where = self.vms[vmid].node
            raise failure(
                f"unable to create VM {vmid} - VM {vmid} already exists on node '{where}'"
            )
        place = self.directory / "vms" / f"{vmid}-{next(self._names)}"
        volumes = self.volumes_on[node]
        machine = self.make_machine(vmid, place, volumes, lambda: self.all_nodes[node].qemu)
        self.vms[vmid] = Vm(vmid, node, machine, volumes)
        self.vms[vmid].config["lock"] = "create"
        return self.vms[vmid]

    def _need_volumes(self, who: str, node: str, vmid: int, options: Mapping[str, Any]) -> None:
        """Check the storages of new disks, and the owners of volumes that are there."""
        for key, value in options.items():
            volid, flags = parse(str(value))
            if not SLOT.match(key) or volid in ("none", "cdrom"):
                continue
            storage, colon, name = volid.partition(":")
            if volid.startswith("/"):
                raise failure("Only root can pass arbitrary filesystem paths.")
            if not colon:
                raise failure(f"unable to parse directory volume name '{volid}'")
            owner = re.match(r"(?:\d+/)?vm-(\d+)-", name)
            if owner and int(owner[1]) != vmid:
                self.access.need(who, f"/vms/{owner[1]}", ["VM.Config.Disk"])
            cdrom = flags.get("media") == "cdrom"
            wanted = ["Datastore.AllocateSpace", *(["Datastore.Audit"] if cdrom else [])]
            if NEW.match(volid) or cdrom:
                self.access.need(who, f"/storage/{storage}", wanted, any_of=True)
            if storage not in self.volumes_on[node].storages:
                raise failure(f"storage '{storage}' does not exist")
            files = self.volumes_on[node].storages[storage].type in FILES
            if files and not NEW.match(volid) and "/" not in name:
                raise failure(f"unable to parse directory volume name '{name}'")

    def _need_options(
        self, who: str, path: str, options: Mapping[str, Any], *, creating: bool = False
    ) -> None:
        table = self.schema.data["option_privileges"]
        for key, value in options.items():
            family = f"{key.rstrip('0123456789')}[n]"
            if key[:3] in ("scs", "vir", "sat", "ide", "unu") and key[-1].isdigit():
                if creating:
                    continue
                privilege = "VM.Config.CDROM" if "media=cdrom" in str(value) else "VM.Config.Disk"
                self.access.need(who, path, [privilege])
                continue
            for privilege, names in table.items():
                known = any(name.split("=")[0] in (key, family) for name in names)
                if known and privilege.startswith("VM.") and " " not in privilege:
                    self.access.need(who, path, [privilege])
                    break
            else:
                if key == "skiplock":
                    raise bad_parameter({key: "Only root may use this option."})
                if who != ROOT:
                    raise failure(f"only root can set '{key}' config")

    def _is_option(self, key: str) -> bool:
        known = self.schema.data["endpoints"]["POST /nodes/{node}/qemu/{vmid}/config"]
        return bool(self.schema.rule(known["parameters"], key))

    def get_nodes_qemu_config(
        self, who: str, node: str, vmid: str, current: str = "0", **_: Any
    ) -> dict[str, Any]:
        return self.vm(node, vmid).shown(current=current == "1")

    def get_nodes_qemu_pending(self, who: str, node: str, vmid: str) -> list[dict[str, Any]]:
        return self.vm(node, vmid).pending_rows()

    def put_nodes_qemu_config(self, who: str, node: str, vmid: str, **options: Any) -> None:
        """Synchronous and without a task: `config.put.*` of the recordings."""
        change = self._config_change(who, node, vmid, **options)
        if doom := self.tasks.doomed.pop("qmconfig", None):
            raise failure(doom)
        change()

    def post_nodes_qemu_config(
        self, who: str, node: str, vmid: str, background_delay: str = "0", **options: Any
    ) -> str | None:
        change = self._config_change(who, node, vmid, **options)
        upid = self.tasks.run(node, "qmconfig", vmid, who, lambda _task: change())
        return upid if self._outlasts(upid, int(background_delay)) else None

    def _config_change(
        self,
        who: str,
        node: str,
        vmid: str,
        digest: str | None = None,
        force: str = "0",
        **options: Any,
    ) -> Callable[[], None]:
        """Return what a change does, once everything that is checked before allows it."""
        vm = self.vm(node, vmid)
        drops = str(options.get("delete", "")).split(",")
        changed = {key: value for key, value in options.items() if key not in ("delete", "revert")}
        for key in filter(None, drops):
            if not self._is_option(key):
                raise bad_parameter({"delete": f"unknown option '{key}'"})
            if key in changed:
                text = f"you can't use '-{key}' and -delete {key}' at the same time"
                raise bad_parameter({"delete": text})
        self._need_volumes(who, node, int(vmid), changed)
        self._need_options(who, f"/vms/{vmid}", {**dict.fromkeys(filter(None, drops)), **changed})
        # In this order, as `update_vm_api` in PVE/API2/Qemu.pm of qemu-server: a lock is part of
        # the configuration, so that a new one is reported as a mismatch.
        vm.check_digest(digest)
        vm.refuse_lock()

        def change() -> None:
            with vm.locked():
                vm.check_digest(digest)
                vm.refuse_lock()
                vm.update(options, force=force == "1")

        return change

    def _outlasts(self, upid: str, seconds: int) -> bool:
        """Wait up to so long for a task that is to end well: its caller then is told of none."""
        task, deadline = self.tasks.find(upid), time.monotonic() + seconds
        while task.end is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if not seconds or task.end is None:
            return True
        if task.end != "OK" and not task.end.startswith("WARNINGS"):
            raise failure(f"failed to update VM {task.subject}: {task.end}")
        return False

    def get_nodes_qemu_status_current(self, who: str, node: str, vmid: str) -> dict[str, Any]:
        vm = self.vm(node, vmid)
        running = vm.running
        found: dict[str, Any] = {
            "vmid": vm.vmid,
            "name": vm.config.get("name", ""),
            "ha": {"managed": 0},
            "status": "running" if running else "stopped",
            "qmpstatus": vm.machine.qmp_status() if running else "stopped",
        }
        if "agent" in vm.config:
            found["agent"] = 1
        if "lock" in vm.config:
            found["lock"] = vm.config["lock"]
        if running:
            qemu, machine = vm.machine.versions()
            found |= {
                "running-qemu": qemu,
                "running-machine": machine,
                "blockstat": vm.machine.blockstat(),
            }
            if self.major >= 9:
                found |= {
                    "pressurecpusome": 1.5,
                    "pressureiosome": 2.5,
                    "pressureiofull": 0.5,
                    "pressurememorysome": 0,
                    "pressurememoryfull": 0,
                }
        return found

    def post_nodes_qemu_status_start(
        self, who: str, node: str, vmid: str, skiplock: str = "0", **_: Any
    ) -> str:
        vm = self.vm(node, vmid)
        if skiplock == "1" and who != ROOT:
            raise bad_parameter({"skiplock": "Only root may use this option."})

        def start(task: Task) -> None:
            with vm.locked():
                try:
                    task.log += vm.start()
                except RuntimeError as error:
                    task.log.append(f"kvm: -blockdev {{}}: {error}")
                    raise TaskFailure("start failed: QEMU exited with code 1") from error

        return self.tasks.run(node, "qmstart", vmid, who, start)

    def post_nodes_qemu_status_stop(self, who: str, node: str, vmid: str, **_: Any) -> str:
        def stop(task: Task) -> None:
            vm = self.vms.get(int(vmid))
            if vm is None or vm.node != node:
                raise TaskFailure(
                    f"unable to find configuration file for VM {vmid} on node '{node}'"
                )
            with vm.locked():
                if vm.running:  # of one that is off nothing is asked: `_do_vm_stop`, QemuServer.pm
                    vm.refuse_lock()
                vm.stop()

        if (ours := self.vms.get(int(vmid))) and ours.hastate not in ("", "ignored"):
            threading.Timer(0.3, ours.stop).start()  # by and by, as HA does
            return self.tasks.run(node, "hastop", vmid, who, lambda _: None)
        return self.tasks.run(node, "qmstop", vmid, who, stop)

    def delete_nodes_qemu_vmid(
        self,
        who: str,
        node: str,
        vmid: str,
        destroy_unreferenced_disks: str = "0",
        purge: str = "0",
        **_: Any,
    ) -> str:
        vm = self.vm(node, vmid)
        if vm.hastate and purge != "1":
            text = "used in HA resources and purge parameter not set."
            raise failure(f"unable to remove VM {vmid} - {text}")
        if str(vm.config.get("protection", "0")) == "1":
            raise failure(f"can't remove VM {vmid} - protection mode enabled")
        if vm.running:
            raise failure(f"VM {vmid} is running - destroy failed")

        def destroy(task: Task) -> None:
            """The steps of `destroy_vm` in PVE/API2/Qemu.pm, in their order."""
            with vm.locked():
                vm.refuse_lock()
                states = {taken.state for taken in self.snapshots(vm.vmid).values()}
                vm.remove(states, unreferenced=destroy_unreferenced_disks == "1")
                self.snapshots(vm.vmid).clear()
                vm.config = {"lock": "destroyed"}
                if task.kind in self.tasks.deaf:
                    self._work(task, self.seconds)
                for members in self.pools.values():
                    members.discard(vm.vmid)
                self.vms.pop(vm.vmid, None)

        return self.tasks.run(node, "qmdestroy", vmid, who, destroy)

    def post_nodes_qemu_monitor(self, who: str, node: str, vmid: str, command: str) -> str:
        return self.vm(node, vmid).machine.monitor(command)

    # --- guest agent -----------------------------------------------------------------------

    def _agent(self, node: str, vmid: str, what: str, **arguments: Any) -> Any:
        vm = self.vm(node, vmid)
        if not vm.config.get("agent", "").startswith(("enabled=1", "1")):
            raise failure("No QEMU guest agent configured")
        if not vm.running:
            raise failure(f"VM {vmid} is not running")
        try:
            return vm.machine.agent(what, arguments)
        except AgentSilence as error:
            raise failure("QEMU guest agent is not running") from error
        except AgentRefusal as error:
            raise failure(f"Agent error: {error}") from error

    def post_nodes_qemu_agent_ping(self, who: str, node: str, vmid: str) -> dict[str, Any]:
        return {"result": self._agent(node, vmid, "ping")}

    def get_nodes_qemu_agent_info(self, who: str, node: str, vmid: str) -> dict[str, Any]:
        return {"result": self._agent(node, vmid, "info")}

    def post_nodes_qemu_agent_exec(
        self, who: str, node: str, vmid: str, command: list[str], input_data: str = ""
    ) -> dict[str, Any]:
        if not input_data.isascii():
            raise failure("Wide character in subroutine entry")
        try:
            given = input_data.encode()
            answer = self._agent(node, vmid, "exec", command=command, input=given)
        except FileNotFoundError as error:
            raise Refused(596, "Broken pipe", empty=True) from error
        return {"pid": answer["pid"]}

    def get_nodes_qemu_agent_exec_status(
        self, who: str, node: str, vmid: str, pid: str
    ) -> dict[str, Any]:
        status = self._agent(node, vmid, "exec-status", pid=pid)
        if not status["exited"]:
            return {"exited": 0}
        streams = {"out-data": status.pop("out", b""), "err-data": status.pop("err", b"")}
        if sum(map(len, streams.values())) > 1 << 20:
            raise failure(f"VM {vmid} qga command 'guest-exec-status' failed - got timeout")
        return status | {key: text.decode("latin-1") for key, text in streams.items() if text}

    def get_nodes_qemu_agent_file_read(
        self,
        who: str,
        node: str,
        vmid: str,
        file: str,
        offset: str = "0",
        count: str = "16777216",
        **_: Any,
    ) -> dict[str, Any]:
        whole = self._agent(node, vmid, "file-read", file=file)
        piece = whole[int(offset) : int(offset) + int(count)]
        found = {"content": piece.decode("latin-1"), "bytes-read": len(piece)}
        if len(whole) > int(offset) + len(piece):
            found["truncated"] = 1
        return found

    def post_nodes_qemu_agent_file_write(
        self, who: str, node: str, vmid: str, file: str, content: str, encode: str = "1"
    ) -> None:
        data = content.encode("latin-1") if encode == "1" else base64.b64decode(content)
        self._agent(node, vmid, "file-write", file=file, content=data)

    # --- what tests do from outside --------------------------------------------------------

    def grant(self, pool: str, privileges: set[str], *, node_audit: bool = True) -> str:
        """Make pool, role, user and token as an administrator would; return the token."""
        self.pools.setdefault(pool, set())
        self.pool_storages[pool] = set(self.storages)
        self.access.roles["StorageBenchVM"] = privileges
        self.access.roles["StorageBenchNode"] = {"Sys.Audit"}
        user = "pvebench@pve"
        self.access.users[user] = User()
        secret = self.access.make_token(user, "bench", privsep=True)
        for subject in (user, f"{user}!bench"):
            self.access.acl.append((f"/pool/{pool}", subject, "StorageBenchVM"))
            if node_audit:
                self.access.acl.append(("/nodes", subject, "StorageBenchNode"))
        return f"{user}!bench={secret}"

    def share_with(self, other: Cluster) -> None:
        """Have the storage `share` be one server's for both clusters, which know nothing else."""
        other.storages["share"] = self.storages["share"]
        for volumes in other.volumes_on.values():
            volumes.share(self.volumes)

    def idle(self, seconds: float = 10.0) -> None:
        """Wait until no task runs."""
        deadline = time.monotonic() + seconds
        while any(task.end is None for task in self.tasks.all) and time.monotonic() < deadline:
            time.sleep(0.01)


def split_list(text: str) -> set[str]:
    """Return the items of a list as the API takes it: parted by commas, semicolons or blanks."""
    return set(text.replace(",", " ").replace(";", " ").split())
