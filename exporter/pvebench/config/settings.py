"""Settings: how this instance runs. What it measures is in packs."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import (
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from pvebench.config.document import read_document, validate
from pvebench.config.fields import Duration, FilePath, Listen, Slug, Strict, TimeWindow, Zone
from pvebench.config.proxmox import ProxmoxSettings
from pvebench.errors import ConfigError, Problem
from pvebench.model.quiet import QuietHours, parse_window


def default_state() -> Path:
    """Return `$XDG_STATE_HOME/pvebench`, or `~/.local/state/pvebench`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "pvebench"


def default_node() -> str:
    """Return this machine's short host name, as Proxmox names its nodes."""
    return socket.gethostname().partition(".")[0].lower() or "localhost"


class StorageSettings(Strict):
    """One storage of the lab. Which keys a kind wants is in `_STORAGE_KEYS`.

    Attributes:
        kind: `dir`: a directory on any host file system; `loop`: loop devices over files in a
            directory; `block`: a whole device, destroyed; `nbd`, `nfs`: a server that QEMU
            itself speaks to.
        path: the directory or the device.
        server, port: of the server; `socket`: its UNIX socket instead.
        export: the NBD export, or the directory on the NFS server.
        link_bits_per_second: what the network to the server carries. A `dir` or `block` that is a
            server's (CIFS, NFS mounted here, iSCSI) names server and port for round trips.
    """

    kind: Literal["dir", "loop", "block", "nbd", "nfs"] = "dir"
    path: FilePath | None = None
    server: StrictStr = ""
    port: int = Field(default=0, ge=0, le=65535)
    socket: FilePath | None = None
    export: StrictStr = ""
    link_bits_per_second: StrictInt = Field(default=0, ge=1)

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> StorageSettings:
        wanted, allowed = _STORAGE_KEYS[self.kind]
        given = self.model_fields_set - {"kind"}
        if missing := wanted - given:
            raise ValueError(f"a storage of kind {self.kind} wants {', '.join(sorted(missing))}")
        if extra := given - wanted - allowed:
            raise ValueError(f"a storage of kind {self.kind} has no {', '.join(sorted(extra))}")
        if self.kind == "nbd" and bool(self.server) == bool(self.socket):
            raise ValueError("a storage of kind nbd wants either server or socket")
        if self.kind in ("dir", "block") and bool(self.server) != bool(self.port):
            raise ValueError("server and port go together: 445 is CIFS, 2049 NFS, 3260 iSCSI")
        return self

    def below(self, base: Path) -> StorageSettings:
        """Return these settings with relative paths taken from `base`."""
        paths = {"path": self.path, "socket": self.socket}
        return self.model_copy(
            update={key: base / value for key, value in paths.items() if value is not None}
        )


_STORAGE_KEYS: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    "dir": (frozenset({"path"}), frozenset({"server", "port", "link_bits_per_second"})),
    "loop": (frozenset({"path"}), frozenset()),
    "block": (frozenset({"path"}), frozenset({"server", "port", "link_bits_per_second"})),
    "nbd": (
        frozenset({"export"}), frozenset({"server", "port", "socket", "link_bits_per_second"})
    ),
    "nfs": (frozenset({"server", "export"}), frozenset({"link_bits_per_second"})),
}  # fmt: skip
"""Kind -> keys that it must have, keys that it may have."""


_RELOADABLE: Final = ("packs", "max_age", "keep_evidence", "keep_runs", "wall")
"""Settings that a running instance takes over when their file changes."""


class SimulationSettings(Strict):
    """The simulated driver. `seed` decides every number it invents."""

    seed: StrictInt = 1


class WallSettings(Strict):
    """One of the four places of the wall dashboard; see `model.wall.WallSlot`."""

    scenario: StrictStr
    workload: StrictStr
    direction: Literal["read", "write", "trim"]
    title: StrictStr = ""


class Settings(Strict):
    """How this instance runs.

    Attributes:
        node: the label `node` of every result.
        driver: what runs the workloads: real QEMU here, a Proxmox VE cluster, `host`: no guest,
            only the host's own rows; or a simulation.
        state: directory of results, locks and sockets; one instance at a time.
        packs: pack files to run.
        listen: address of /metrics and the status page.
        storages: id -> storage. Empty: one directory storage `local` below `state`.
        guest_image: directory of the guest image. None: the cache directory.
        accelerator: `auto` uses KVM only after a guest has proved that it boots under it.
        known_issues: files of known issues beside those that pvebench knows.
        max_age: results older than this (seconds) leave /metrics.
        keep_evidence, keep_runs: raw evidence, and runs with their numbers, older than this
            (seconds) are removed; each case keeps its newest.
        quiet_hours: windows in which nothing is measured, such as `Mon-Fri 08:00-18:00`.
        time_zone: zone of the quiet hours, such as `Europe/Vienna`.
        proxmox: the cluster, for driver `proxmox`; `node` is then one of its nodes, unless the
            section names several.
        wall: up to four cases for the wall dashboard. Empty: chosen from the results.
    """

    node: Slug = Field(default_factory=default_node)
    driver: Literal["qemu", "proxmox", "host", "simulated"] = "qemu"
    state: FilePath = Field(default_factory=default_state)
    packs: tuple[FilePath, ...] = ()
    listen: Listen = "127.0.0.1:9620"
    storages: dict[Slug, StorageSettings] = Field(default_factory=dict)
    guest_image: FilePath | None = None
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    known_issues: tuple[FilePath, ...] = ()
    max_age: Duration = 14 * 86400.0
    keep_evidence: Duration = 90 * 86400.0
    keep_runs: Duration = 3 * 365 * 86400.0
    wall: tuple[WallSettings, ...] = Field(default=(), max_length=4)
    simulation: SimulationSettings = SimulationSettings()
    quiet_hours: tuple[TimeWindow, ...] = ()
    time_zone: Zone = "UTC"
    proxmox: ProxmoxSettings | None = None

    @field_validator("packs")
    @classmethod
    def _no_pack_twice(cls, packs: tuple[Path, ...]) -> tuple[Path, ...]:
        twice = {str(path) for path in packs if packs.count(path) > 1}
        if twice:
            raise ValueError(f"listed twice: {', '.join(sorted(twice))}")
        return packs

    def with_changes(self, changes: dict[str, Any]) -> Settings:
        """Return these settings with options of the command line put over them.

        Raises:
            ConfigError: an option's value is not valid.
        """
        try:
            given = Settings.model_validate(changes)
        except ValidationError as error:
            problems = [
                Problem("command line", 0, 0, f"--{fault['loc'][0]}: {fault['ctx']['error']}")
                for fault in error.errors()
            ]
            raise ConfigError(problems) from error
        return self.model_copy(update={key: getattr(given, key) for key in changes})

    def fixed_differences(self, other: Settings) -> list[str]:
        """Return the keys that differ and cannot be changed while running."""
        mine, others = dict(self), dict(other)
        return [key for key in mine if key not in _RELOADABLE and mine[key] != others[key]]

    def quiet(self) -> QuietHours | None:
        """Return the quiet hours; None: there are none."""
        if not self.quiet_hours:
            return None
        windows = tuple(parse_window(text) for text in self.quiet_hours)
        return QuietHours(windows, ZoneInfo(self.time_zone))

    def nodes_in_force(self) -> tuple[str, ...]:
        """Return the nodes that are measured, each by a worker of its own."""
        several = self.proxmox.nodes if self.driver == "proxmox" and self.proxmox else ()
        return several or (self.node,)

    def storages_in_force(self) -> dict[str, StorageSettings]:
        """Return the storages in force, with the default one if none is configured."""
        if self.storages:
            return dict(self.storages)
        return {"local": StorageSettings(kind="dir", path=self.state / "storage")}


def load_settings(path: Path | None) -> Settings:
    """Return the settings of `path`, or the defaults when it is None.

    Relative paths in the file are taken from the file's own directory, so that it means the
    same wherever pvebench is started.

    Raises:
        ConfigError: with every fault of the file.
    """
    if path is None:
        return Settings()
    settings = validate(read_document(path), Settings)
    base = path.parent
    storages = {name: storage.below(base) for name, storage in settings.storages.items()}
    image = settings.guest_image
    return settings.model_copy(
        update={
            "state": base / settings.state,
            "packs": tuple(base / pack for pack in settings.packs),
            "known_issues": tuple(base / path for path in settings.known_issues),
            "storages": storages,
            "guest_image": base / image if image else None,
            "proxmox": settings.proxmox.below(base) if settings.proxmox else None,
        }
    )
