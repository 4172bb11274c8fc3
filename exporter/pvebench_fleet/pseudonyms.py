"""Pseudonyms for names in a file of runs, the same within the file.

Only listed facts and options stay: new ones are left out until a review adds them.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from pvebench.config import shipped_packs
from pvebench.model.disk import Disk, Layout
from pvebench.model.environment import Environment
from pvebench.store.fleet_log import Entry

FACTS: Final = frozenset(
    {
        *("accel", "ceph", "cpu_model", "cpu_type", "cpus", "fio", "governor", "guest_image"),
        *("guest_kernel", "host_fio", "host_os", "kernel", "lxc", "machine", "microcode", "pve"),
        *("qemu", "qemu_package", "qemu_server", "zfs"),
    }
)
"""Facts of environments that name no machine."""
OPTIONS: Final = frozenset(
    {
        *(option.name for kind in (Disk, Layout) for option in fields(kind)),
        *("memory_bytes", "cpus", "volume_bytes", "host_cache"),
    }
) - {"file_name"}
_IDENTITY: Final = "storage_identity"


class Pseudonyms:
    """Replaces names in lines, which come in the order of `FleetLog.stored`."""

    def __init__(self, *, simulated: bool) -> None:
        self._simulated = simulated
        self._key = secrets.token_bytes(32)
        self._names: dict[tuple[str, str], str] = {}
        self._digests: dict[str, str] = {}
        self._cases: dict[str, str] = {}
        self._replace: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "environment": self._environment,
            "cycle": self._cycle,
            "definition": self._definition,
            "run": self._run,
        }

    def replaced(self, entry: Entry) -> Entry:
        """Return a line without names."""
        data = None if entry.data is None else self._replace[entry.kind](dict(entry.data))
        return Entry(entry.seq, entry.kind, data)

    def _name(self, kind: str, name: str) -> str:
        """Return `node1` for the first node, and so on."""
        number = sum(known == kind for known, _ in self._names) + 1
        return self._names.setdefault((kind, name), f"{kind}{number}")

    def _digest(self, text: str) -> str:
        """Return a digest that cannot be compared with guessed names: a key is part of it."""
        return hmac.digest(self._key, text.encode(), "sha256").hex()[:16]

    def _environment(self, data: dict[str, Any]) -> dict[str, Any]:
        environment = Environment(
            node=self._name("node", data["node"]),
            facts={name: text for name, text in data["facts"].items() if name in FACTS},
            simulated=self._simulated,
        )
        self._digests[data["digest"]] = environment.digest
        return {
            "digest": environment.digest,
            "node": environment.node,
            "slug": environment.slug,
            "facts": dict(environment.facts),
        }

    def _cycle(self, data: dict[str, Any]) -> dict[str, Any]:
        pack = data["pack"]
        shown = pack if pack in shipped_packs() else self._name("pack", pack)
        return {**data, "node": self._name("node", data["node"]), "pack": shown}

    def _definition(self, data: dict[str, Any]) -> dict[str, Any]:
        definition: dict[str, Any] = data["definition"]
        labels = definition["labels"]
        node = self._name("node", labels["node"])
        storage = self._name("storage", labels["storage"])
        _, dot, rest = labels["scenario"].partition(f"{labels['storage']}.")
        scenario = f"{storage}.{rest}" if dot else self._digest(labels["scenario"])
        fingerprint = self._digest(definition["fingerprint"])
        key = f"{node}/{scenario}/{definition['workload']['slug']}/{fingerprint}"
        self._cases[data["key"]] = key
        names = {"node": node, "storage": storage, "scenario": scenario}
        changed = {
            "labels": {**labels, **names},
            "scenario": self._options(definition["scenario"]),
            "fingerprint": fingerprint,
        }
        return {**data, "key": key, "definition": {**definition, **changed}}

    def _options(self, options: Mapping[str, str]) -> dict[str, str]:
        shown = {name: text for name, text in options.items() if name in OPTIONS}
        if _IDENTITY in options:
            shown[_IDENTITY] = self._digest(options[_IDENTITY])
        return shown

    def _run(self, data: dict[str, Any]) -> dict[str, Any]:
        # A reason quotes programs, with paths and addresses.
        return {
            **data,
            "case": self._cases[data["case"]],
            "environment": self._digests[data["environment"]],
            "reason": "",
        }
