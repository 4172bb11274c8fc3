"""Scenario: one fully resolved configuration on a node, with a readable, stable slug."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Final

from pvebench.model.disk import (
    HOST_OPTIONS,
    VOLUME_OPTIONS,
    Disk,
    HostCache,
    PrimaryCache,
    option_text,
    traits,
)
from pvebench.model.units import count_text, show_bytes

# --- Content of the disk in the guest: data, or a filesystem with a file.

_MOUNT_OPTIONS: Final = re.compile(r"[a-z0-9_=,-]+\Z")
DEFAULT_FILE: Final = "fio.dat"


class Filesystem(StrEnum):
    """Filesystem that the guest creates on the disk; `none`: workloads use the device.

    A Windows guest creates ntfs and refs, and no other.
    """

    NONE = "none"
    EXT4 = "ext4"
    XFS = "xfs"
    BTRFS = "btrfs"
    NTFS = "ntfs"
    REFS = "refs"

    @property
    def of_windows(self) -> bool:
        """Whether only Windows creates it."""
        return self in (Filesystem.NTFS, Filesystem.REFS)

    @property
    def of_linux(self) -> bool:
        """Whether the guest image creates it."""
        return self is not Filesystem.NONE and not self.of_windows


def _mount_options(text: str) -> str:
    if text and not _MOUNT_OPTIONS.match(text):
        raise ValueError(
            f"invalid mount options {text!r}: write them as for mount -o: noatime,commit=30"
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Content of the disk in the guest. Packs vary its options; the rest belongs to the volume.

    Attributes:
        mount_options: as for `mount -o`; empty: the kernel's defaults.
        file_name: of the test file in the root of the filesystem.
        file_bytes: its size; 0 without a filesystem.
        fill_passes: number of full writes before the runs; two bring an SSD to the state that it
            has in use.
        fill_compress: percentage of the filled data that can be removed by compression.
    """

    filesystem: Filesystem = field(default=Filesystem.NONE, metadata=traits())
    mount_options: str = field(default="", metadata=traits(check=_mount_options))
    file_name: str = DEFAULT_FILE
    file_bytes: int = 0
    fill_passes: int = 1
    fill_compress: int = 0

    @property
    def on_filesystem(self) -> bool:
        """Whether workloads use a file instead of the device."""
        return self.filesystem is not Filesystem.NONE

    @property
    def provable(self) -> bool:
        """Whether its content has no zeros: free space and compressible data have some."""
        return not self.on_filesystem and not self.fill_compress

    @property
    def content(self) -> str:
        """Key of the volume's content before a run; equal keys need no new preparation."""
        filled = self.filled
        if not self.on_filesystem:
            return "/".join(["data", *filled])
        return "/".join([self.filesystem, self.file_name, str(self.file_bytes), *filled])

    @property
    def filled(self) -> list[str]:
        """Non-default properties of the filled data."""
        passes = [f"fill-{self.fill_passes}"] if self.fill_passes != 1 else []
        return [*passes, *([f"compress-{self.fill_compress}"] if self.fill_compress else [])]

    def differences(self) -> list[tuple[str, str]]:
        """Return (option, value) of every non-default option, for a slug."""
        values = [(field, getattr(self, field.name)) for field in fields(self) if field.metadata]
        return [
            (field.name, option_text(value)) for field, value in values if value != field.default
        ]


LAYOUT_OPTIONS: Final = tuple(option.name for option in fields(Layout) if option.metadata)
"""Fields that packs vary."""


# --- The VM, and the whole.

LINUX: Final = "linux"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Benchmark VM of the test disk. A change needs a restart of the VM.

    Attributes:
        os: system of the guest; `linux` is pvebench's guest image.
        image: file that another system boots from.
        template: ID of the VM that another system is cloned from; 0: none.
        fio: file of fio for a guest without it; empty: none.
    """

    memory_bytes: int
    cpus: int
    os: str = LINUX
    image: str = ""
    template: int = 0
    fio: str = ""

    @property
    def foreign(self) -> dict[str, str]:
        """System and origin of a guest that is not pvebench's guest image."""
        if self.os == LINUX:
            return {}
        origin = {"template": str(self.template)} if self.template else {"image": self.image}
        return {"os": self.os, **origin}

    @property
    def details(self) -> str:
        """Origin and size for people: `template 700, 4.0 GiB, 1 CPU`."""
        origin = [f"{name} {text}" for name, text in self.foreign.items() if name != "os"]
        size = [show_bytes(self.memory_bytes), count_text(self.cpus, "CPU")]
        return ", ".join([*origin, *size, *([f"fio {self.fio}"] if self.fio else [])])


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One measured configuration. Derived values are computed once.

    Attributes:
        node: the Proxmox node's or this machine's name.
        storage: the storage's id.
        disk: the test disk's options.
        machine: the VM.
        volume_bytes: size of the test volume.
        layout: content of the disk in the guest.
        host_cache: treatment of the host's page cache, in modes that use it; ARC: in all modes.
        identity: digest of the storage's identity; empty: the first one of its name.
    """

    node: str
    storage: str
    disk: Disk
    machine: Machine
    volume_bytes: int
    layout: Layout = field(default_factory=Layout)
    host_cache: HostCache = HostCache.DROPPED
    identity: str = ""

    @property
    def cooled(self) -> HostCache | None:
        """Treatment of the volume before each run that empties caches; None: none."""
        active = (HostCache.REWRITTEN, HostCache.REOPENED)
        return self.host_cache if self.host_cache in active and not self.bypasses else None

    @property
    def bypasses(self) -> bool:
        """Whether the cache mode bypasses the host's cache."""
        in_arc = self.disk.primarycache in (None, PrimaryCache.ALL)
        return self.disk.cache.direct and not (self.host_cache is HostCache.ARC and in_arc)

    @property
    def _treated(self) -> dict[str, str]:
        """Cache treatment that affects results and is not the default; without page cache none."""
        default = self.bypasses or self.host_cache is HostCache.DROPPED
        return {} if default else {"host_cache": str(self.host_cache)}

    @property
    def _foreign(self) -> dict[str, str]:
        return self.machine.foreign if self.disk.in_vm else {}

    @cached_property
    def slug(self) -> str:
        """`storage.bus.format.cache`, then `.key-value` for each non-default option."""
        disk = self.disk
        head = [self.storage, disk.bus, disk.format, disk.cache]
        system = [("os", self.machine.os)] if self._foreign else []
        different = [*disk.differences(), *self.layout.differences(), *system]
        tail = [f"{key}-{value}" for key, value in different]
        return ".".join([*head, *tail])

    @cached_property
    def host_slug(self) -> str:
        """Slug of the host case on this storage, with the same options of device and pool."""
        tail = [f".{key}-{value}" for key, value in self.disk.differences(HOST_OPTIONS)]
        return "".join([f"{self.storage}.host.raw.none", *tail])

    @cached_property
    def volume(self) -> str:
        """Key of the volume that it needs; scenarios with equal keys share one."""
        own = [f"{key}-{value}" for key, value in self.disk.differences(VOLUME_OPTIONS)]
        return ".".join([self.storage, self.disk.format, *own])

    def labels(self) -> dict[str, str]:
        """Return the labels of every result of this scenario."""
        return {
            "node": self.node,
            "storage": self.storage,
            "bus": str(self.disk.bus),
            "cache": str(self.disk.cache),
            "format": str(self.disk.format),
            "scenario": self.slug,
        }

    def meaning(self) -> dict[str, str]:
        """Return all options that the slug stands for, as text, for info metrics and records."""
        options = {**asdict(self.disk), **asdict(self.layout)}
        return {
            **{key: option_text(value) for key, value in options.items()},
            "memory_bytes": str(self.machine.memory_bytes),
            "cpus": str(self.machine.cpus),
            "volume_bytes": str(self.volume_bytes),
            **self.machine.foreign,
            **self._treated,
            **({"storage_identity": self.identity} if self.identity else {}),
        }

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all options: results are comparable only if it is equal.

        Options at their defaults are left out, so that a new option of a later pvebench does not
        end the history of scenarios without it.
        """
        disk = self.disk
        named = {"bus": disk.bus, "format": disk.format, "cache": disk.cache}
        sizes = [self.volume_bytes, self.machine.memory_bytes, self.machine.cpus]
        layout = asdict(self.layout) if self.layout.on_filesystem else {}
        for default in ("fill_passes", "fill_compress"):
            layout.pop(default, None)
        meaning = [self.node, self.storage, named, dict(disk.differences()), layout, sizes]
        meaning += [self.layout.filled] if self.layout.filled else []
        meaning += [self._treated] if self._treated else []
        meaning += [self._foreign] if self._foreign else []
        meaning += [{"storage_identity": self.identity}] if self.identity else []
        text = json.dumps(meaning, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
