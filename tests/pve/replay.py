"""Recorded requests of a real API, played against the test API: what matches, what does not, why.

A recording is one JSON object a line: case, token, method, path, params, status, reason, body.
Run as a module: `python -m pve.replay RECORDING…`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from pve.access import Token, User
from pve.behaviours import NAMES, missing
from pve.cluster import Cluster
from pve.drives import SLOT, UNUSED, parse
from pve.machines import CheapMachine
from pve.server import PREFIX, RunningApi, running_api
from pve.storage import Storage
from pvebench.drivers.proxmox.api.privileges import vm_privileges

NOT_PLAYED = (
    (r"\Ahttp|\A(?!/)", "not below /api2/json"),
    (r"/agent/|/monitor\Z", "wants a guest; tests with real QEMU look after it"),
    (r"/tasks/", "of a task that only the recording knows; ends of tasks are compared"),
)
"""Pattern of a path -> why such requests are left out."""


@dataclass(frozen=True)
class Verdict:
    """How one request compared. `difference` is empty where it matched."""

    case: str
    request: str
    difference: str = ""
    left_out: str = ""

    @property
    def reason(self) -> str:
        """Why it is known to differ; empty: it is not."""
        known = (text for pattern, text in KNOWN if re.search(pattern, self.case))
        return next(known, "") if self.difference else ""


KNOWN: tuple[tuple[str, str], ...] = (
    (r"plain-http|gzip", "the transport is http.server's: no redirection, no header of proxmoxer"),
    (r"proxmoxer-wrong-secret", "the recording does not tell which secret was sent"),
    (
        r"^cleanup\.|nextid\.after",
        "depends on what was left before, from calls that are not played",
    ),
    (r"create\.net-no-bridge", "the benchmark VM has no network: the driver sends none"),
    (r"throttle", "a throttle is applied at once even with a change that stays pending; there not"),
    (
        r"config-while-locked|^ide\.delete|^q35\.scsi1|^race",
        "somebody else held the lock just then",
    ),
    (r"client-timeout|default-timeout", "the client gave up waiting; here the answer is compared"),
    (r"boot-disk-live\.pending", "the removal of a boot disk does not change boot here"),
    (r"background_delay-slow", "the guest takes its time there; a cheap one refuses at once"),
    (r"^orph\.", "QEMU kept a half-gone disk; only real QEMU does so"),
)
"""Pattern of a case -> why the test API is known to differ there."""


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the recorded requests of a file."""
    raw = path.read_bytes()
    for line in (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines():
        record = json.loads(line)
        if record["method"] != "NOTE":
            yield record


def recorded_cluster(directory: Path, major: int) -> tuple[Cluster, dict[str, str]]:
    """Return a cluster like the one that was recorded, and token -> secret."""
    images = "images,import,rootdir,iso"
    cluster = _with_storages(
        directory,
        major,
        ("bench", images, 60 << 30),
        ("small", "images", 60 << 30),
        ("smallfull", "images", 1),
        ("hidden", images, 60 << 30),
        ("local", "iso,vztmpl,backup", 60 << 30),
    )
    cluster.storages["smallfull"].preallocates = True
    for iso in ("bench.iso", "tiny.iso"):
        cluster.volumes.upload("bench", iso, b"\0" * 4096)
    access, user = cluster.access, User()
    cluster.pools["bench"] = set()
    cluster.pool_storages["bench"] = {"bench", "small", "smallfull"}
    access.users["bench@pve"] = user
    access.roles["Bench"] = vm_privileges(major)
    access.roles["NodeRead"] = {"Sys.Audit"}
    for name in ("rig", "full", "noacl", "noaudit", "expired"):
        user.tokens[name] = Token(name * 3, privsep=name != "full", expire=int(name == "expired"))
    for subject in ("bench@pve", "bench@pve!rig", "bench@pve!noaudit"):
        access.acl.append(("/pool/bench", subject, "Bench"))
        if not subject.endswith("noaudit"):
            access.acl.append(("/nodes", subject, "NodeRead"))
    access.users["root@pam"].tokens["admin"] = Token("admin" * 3, privsep=False)
    secrets = {f"bench@pve!{name}": token.secret for name, token in user.tokens.items()}
    return cluster, secrets | {"root@pam!admin": "admin" * 3}


def administered_cluster(directory: Path, major: int) -> tuple[Cluster, dict[str, str]]:
    """Return a cluster like the one on which an administrator's calls were recorded."""
    cluster = _with_storages(
        directory,
        major,
        ("bench", "images", 12 << 30),
        ("small", "images", 652_824_576),
        ("local", "iso,vztmpl,backup", 60 << 30),
    )
    cluster.zfs_installed = False
    access, user = cluster.access, User(tokens={"bench": Token("bench" * 3)})
    cluster.pools["pvebench"] = set()
    cluster.pool_storages["pvebench"] = {"bench", "local"}
    access.users["pvebench@pve"] = user
    access.roles |= {"BenchVm": vm_privileges(major), "BenchNode": {"Sys.Audit"}}
    for subject in ("pvebench@pve", "pvebench@pve!bench"):
        access.acl.append(("/pool/pvebench", subject, "BenchVm"))
        access.acl.append(("/nodes", subject, "BenchNode"))
    access.users["root@pam"].tokens["rec"] = Token("rec" * 3, privsep=False)
    return cluster, {"bench": "bench" * 3, "root@pam!rec": "rec" * 3}


def _with_storages(directory: Path, major: int, *storages: tuple[str, str, int]) -> Cluster:
    cluster = Cluster(directory, major=major, nodes=("pve1",))
    cluster.storages.clear()
    for name, content, avail in storages:
        place = directory / "storages" / name
        cluster.storages[name] = Storage(name, "dir", place, content=content, avail=avail)
    return cluster


class Player:
    """Sends recorded requests and compares the answers."""

    def __init__(self, api: RunningApi, secrets: Mapping[str, str]) -> None:
        self._api = api
        self._secrets = secrets
        self._client = httpx2.Client(
            base_url=f"https://127.0.0.1:{api.port}{PREFIX}", verify=False, timeout=30
        )

    def close(self) -> None:
        self._client.close()

    def play(self, record: Mapping[str, Any], ended: str | None) -> Verdict:
        """Send one request.

        Args:
            ended: how its task ended, if the recording tells.
        """
        path = str(record["path"]).split(PREFIX)[-1]
        about = Verdict(str(record["case"]), f"{record['method']} {path}")
        if not isinstance(record.get("params") or {}, dict):
            return Verdict(about.case, about.request, left_out="its body is no form")
        for pattern, reason in NOT_PLAYED:
            if re.search(pattern, path):
                return Verdict(about.case, about.request, left_out=reason)
        self._meanwhile(path, about.case)
        method = str(record["method"])
        if not self._knows(method, path) and record["status"] != 501:
            return Verdict(about.case, about.request, left_out="the driver does not use it")
        answer = self._send(method, path, record)
        status, text, data, errors = _parts(answer)
        if status == 200 and str(data).startswith("UPID:"):
            task = self._end(str(data))
            if ended is not None and _plain(task) != _plain(ended):
                return Verdict(about.case, about.request, f"task: {task!r}, not {ended!r}")
        found = compare(record, status, text, data, errors)
        return Verdict(about.case, about.request, found)

    def _meanwhile(self, path: str, case: str) -> None:
        """Do what was done beside the calls that are played: by hand, or by another way."""
        if case.endswith((".rm-volume", ".clean")):
            self._api.cluster.volumes.free(path.partition("/content/")[2])
        vm = self._api.cluster.vms.get(9000)
        self._administrator(case)
        if vm is None:
            return
        if case.split(".", maxsplit=1)[0] in ("lock", "lockrunning", "lockstopped"):
            vm.config["lock"] = "backup"
        elif vm.config.get("lock") == "backup":
            del vm.config["lock"]
        machine = vm.machine
        if case in ("lc.shutdown-forceStop", "s9.shutdown-clean"):
            vm.stop()
        if isinstance(machine, CheapMachine) and path.endswith(("/suspend", "/resume")):
            machine.hung = path.endswith("/suspend")

    def _administrator(self, case: str) -> None:
        """What was done by hand on VM 9701, which an administrator's calls are about."""
        cluster = self._api.cluster
        if case == "cpuhost.start":
            made = {"vmid": "9701", "pool": "probe", "kvm": "0", "cpu": "host"}
            self._end(cluster.post_nodes_qemu("root@pam", "pve1", **made))
        elif case == "read.token.zfs" and 9701 in cluster.vms:
            self._end(cluster.delete_nodes_qemu_vmid("root@pam", "pve1", "9701"))
        elif case == "locked.config":
            cluster.vms[9701].config["lock"] = "backup"
        elif case == "locked.clean":
            del cluster.vms[9701].config["lock"]

    def _knows(self, method: str, path: str) -> bool:
        return any(
            name.partition(" ")[0] == method
            and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", name.partition(" ")[2]), path)
            for name in self._api.cluster.schema.data["endpoints"]
        )

    def _send(self, method: str, path: str, record: Mapping[str, Any]) -> httpx2.Response:
        params = dict(record.get("params") or {})
        token = record.get("token") or ""
        full = "pvebench@pve!bench" if token == "bench" else token
        headers = {"Authorization": f"PVEAPIToken={full}={self._secrets.get(token, '')}"}
        if "raw_headers" in record:
            raw = record["raw_headers"] or {}
            named = re.search(r"PVEAPIToken=([^=:]+)", str(raw))
            secret = self._secrets.get(named[1] if named else token, "unknown")
            secret = "wrong" if "wrong" in record["case"] else secret
            headers = {name: text.replace("<secret>", secret) for name, text in raw.items()}
        digest = str(params.get("digest", ""))
        if len(digest) == 40 and digest.strip("0"):
            params["digest"] = self._api.cluster.vms[9000].digest
        if method in ("GET", "DELETE"):
            return self._client.request(method, path, params=params, headers=headers)
        if path.endswith("/upload"):
            return self._upload(path, params, headers)
        return self._client.request(method, path, data=params, headers=headers)

    def _upload(self, path: str, params: dict[str, Any], headers: dict[str, str]) -> Any:
        name = str(params.pop("filename")).rpartition("/")[2].strip(">")
        content = b"\0" * 4096
        if str(params.get("checksum", "")).strip("0"):
            params["checksum"] = hashlib.sha256(content).hexdigest()
        parts: list[Any] = [(key, (None, str(value))) for key, value in params.items()]
        parts.append(("filename", (name, content)))
        return self._client.post(path, files=parts, headers=headers)

    def _end(self, upid: str) -> str:
        task = self._api.cluster.tasks.find(upid)
        deadline = time.monotonic() + 30
        while task.end is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return str(task.end)


def _parts(answer: httpx2.Response) -> tuple[int, str, Any, dict[str, Any]]:
    body = answer.json() if answer.content else {}
    text = str(body.get("message") or answer.reason_phrase).strip()
    return answer.status_code, text, body.get("data"), body.get("errors") or {}


def compare(
    record: Mapping[str, Any], status: int, text: str, data: Any, errors: Mapping[str, Any]
) -> str:
    """Return how an answer differs from the recorded one, empty if it does not matter."""
    body = record.get("body") if isinstance(record.get("body"), dict) else {}
    wanted = record["status"]
    said = str((body or {}).get("message") or record["reason"]).strip()
    if status != wanted:
        return f"{status} {text!r}, not {wanted} {said!r}"
    if status != 200:
        theirs = (body or {}).get("errors") or {}
        if set(errors) != set(theirs):
            return f"complains of {sorted(errors)}, not of {sorted(theirs)}"
        for key, why in theirs.items():
            if errors[key] and _plain(errors[key])[:40] != _plain(str(why))[:40]:
                return f"says {errors[key]!r} of {key}, not {why!r}"
        return "" if _plain(text)[:30] == _plain(said)[:30] else f"says {text!r}, not {said!r}"
    return _compare_data(str(record["path"]), data, (body or {}).get("data"))


def _compare_data(path: str, data: Any, wanted: Any) -> str:
    if type(data) is not type(wanted):
        return f"answers {type(data).__name__}, not {type(wanted).__name__}"
    if path.endswith("/config") and isinstance(data, dict):
        return _unequal(_slots(data), _slots(wanted))
    if path.endswith("/pending") and isinstance(data, list):
        return _unequal(_waiting(data), _waiting(wanted))
    if isinstance(data, dict):
        extra = set(data) - set(wanted)
        return f"has {sorted(extra)}, which the real one has not" if extra else ""
    if isinstance(data, list):
        return _compare_rows(path, data, wanted)
    return ""


_WHOLE_LISTS = (("/content", ("volid", "vmid", "format", "content")), ("/access/acl", ()))
"""Lists whose rows must all be there, and their members that count; none: all of them."""


def _compare_rows(path: str, data: list[Any], wanted: list[Any]) -> str:
    for ending, members in _WHOLE_LISTS:
        if path.endswith(ending):
            return _unequal(_rows(data, members), _rows(wanted, members))
    known = {key for row in wanted if isinstance(row, dict) for key in row}
    extra = {key for row in data if isinstance(row, dict) for key in row} - known
    return f"rows have {sorted(extra)}, which the real ones have not" if extra and wanted else ""


def _rows(rows: list[dict[str, Any]], members: tuple[str, ...]) -> list[str]:
    return sorted(str({key: row.get(key) for key in members or sorted(row)}) for row in rows)


def _slots(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is plugged in, and what is unused: its numbers only tell the order of events."""
    found: dict[str, Any] = {
        key: _drive(str(value))
        for key, value in config.items()
        if SLOT.match(key) and key != "ide2"
    }
    unused = {str(value).partition(",")[0] for key, value in config.items() if UNUSED.match(key)}
    return {**found, "unused": unused}


def _drive(text: str) -> tuple[str, dict[str, str]]:
    volid, options = parse(text)
    return volid, {key: value for key, value in options.items() if key != "size"}


def _waiting(rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    return {
        (row["key"], "delete" if "delete" in row else "pending")
        for row in rows
        if "pending" in row or "delete" in row
    }


def _unequal(mine: Any, theirs: Any) -> str:
    return "" if mine == theirs else f"{mine}, not {theirs}"


def _plain(text: str) -> str:
    """Return a text without what differs from machine to machine."""
    text = re.sub(r"/\S+|'[0-9a-f]{64}'", "PATH", text).lower()
    text = re.sub(r"- still busy in guest\?", "", text)
    return " ".join(re.sub(r"\d+", "N", text).split())


def replay(path: Path, directory: Path, major: int) -> list[Verdict]:
    """Play a whole recording; return a verdict on each request."""
    records = list(read(path))
    ends = _ends(records)
    make = administered_cluster if "admin" in path.name else recorded_cluster
    cluster, secrets = make(directory / "cluster", major)
    with running_api(cluster) as api:
        player = Player(api, secrets)
        with closing(player):
            return [player.play(record, ends.get(_upid(record))) for record in records]


def _upid(record: Mapping[str, Any]) -> str:
    body = record.get("body")
    return str(body.get("data")) if isinstance(body, dict) else ""


def _ends(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    found = {}
    for record in records:
        body = record.get("body")
        data = body.get("data") if isinstance(body, dict) else None
        if isinstance(data, dict) and "exitstatus" in data:
            found[str(data["upid"])] = str(data["exitstatus"])
    return found


def main(paths: Iterable[str]) -> int:
    """Print each file's matches and mismatches; return 1 where one has no known reason."""
    unknown = 0
    for name in paths:
        path = Path(name)
        major = 8 if "-8" in path.name else 9
        with tempfile.TemporaryDirectory(prefix="pvebench-replay-") as place:
            verdicts = replay(path, Path(place), major)
        unknown += report(path.name, verdicts)
    for major in (8, 9):
        lacking = list(missing(major))
        unknown += len(lacking)
        print(f"version {major}: {len(NAMES)} behaviors, lacking: {' '.join(lacking) or 'none'}")
    return 1 if unknown else 0


def report(name: str, verdicts: Iterable[Verdict]) -> int:
    """Print a file's verdicts; return how many mismatches have no known reason."""
    verdicts = list(verdicts)
    left = Counter(one.left_out for one in verdicts if one.left_out)
    differ = [one for one in verdicts if one.difference]
    matched = len(verdicts) - sum(left.values()) - len(differ)
    unknown = sum(not one.reason for one in differ)
    print(
        f"{name}: {matched} matched, {len(differ) - unknown} differ as explained, {unknown} "
        f"unexplained, {sum(left.values())} not played"
    )
    for reason, count in left.most_common():
        print(f"  not played  {count:5}  {reason}")
    for one in differ:
        print(
            f"  {one.case}: {one.request}: {one.difference}\n      {one.reason or 'NOT KNOWN WHY'}"
        )
    return unknown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
