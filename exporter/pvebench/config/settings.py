"""Settings: how this instance runs. What it measures is in packs."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, StrictInt, ValidationError, field_validator

from pvebench.config.document import read_document, validate
from pvebench.config.fields import Duration, FilePath, Listen, Slug, Strict
from pvebench.errors import ConfigError, Problem


def default_state() -> Path:
    """Return `$XDG_STATE_HOME/pvebench`, or `~/.local/state/pvebench`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "pvebench"


def default_node() -> str:
    """Return this machine's short host name, as Proxmox names its nodes."""
    return socket.gethostname().partition(".")[0].lower() or "localhost"


class StorageSettings(Strict):
    """One storage of the lab.

    Attributes:
        kind: `dir`: a directory on any host file system.
        path: the directory; test volumes are made below it.
    """

    kind: Literal["dir"] = "dir"
    path: FilePath


class SimulationSettings(Strict):
    """The simulated driver. `seed` decides every number it invents."""

    seed: StrictInt = 1


class Settings(Strict):
    """How this instance runs.

    Attributes:
        node: the label `node` of every result.
        driver: what runs the guest: real QEMU here, or a simulation.
        state: directory of results, locks and sockets; one instance at a time.
        packs: pack files to run.
        listen: address of /metrics and the status page.
        storages: id -> storage. Empty: one directory storage `local` below `state`.
        guest_image: directory of the guest image. None: the cache directory.
        accelerator: `auto` uses KVM only after a guest has proved that it boots under it.
        max_age: results older than this (seconds) leave /metrics.
    """

    node: Slug = Field(default_factory=default_node)
    driver: Literal["qemu", "simulated"] = "qemu"
    state: FilePath = Field(default_factory=default_state)
    packs: tuple[FilePath, ...] = ()
    listen: Listen = "127.0.0.1:9620"
    storages: dict[Slug, StorageSettings] = Field(default_factory=dict)
    guest_image: FilePath | None = None
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    max_age: Duration = 14 * 86400.0
    simulation: SimulationSettings = SimulationSettings()

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
            return Settings.model_validate({**dict(self), **changes})
        except ValidationError as error:
            problems = [
                Problem("command line", 0, 0, f"--{fault['loc'][0]}: {fault['ctx']['error']}")
                for fault in error.errors()
            ]
            raise ConfigError(problems) from error

    def storage_paths(self) -> dict[str, StorageSettings]:
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
    storages = {
        name: storage.model_copy(update={"path": base / storage.path})
        for name, storage in settings.storages.items()
    }
    image = settings.guest_image
    return settings.model_copy(
        update={
            "state": base / settings.state,
            "packs": tuple(base / pack for pack in settings.packs),
            "storages": storages,
            "guest_image": base / image if image else None,
        }
    )
