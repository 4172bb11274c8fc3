"""Driver `host`: host cases without a VM, on this machine or one reached by ssh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self

from pydantic import model_validator

from pvebench.drivers.driver import Driver, MeasuredStorage, budget_of
from pvebench.drivers.ssh import SshSettings
from pvebench.drivers.storages.directory import path_of
from pvebench.drivers.storages.storage_settings import (
    LocalSettings,
    cached_storages,
    local_storages,
    require_paths,
    spaces_of,
    wear_of,
)
from pvebench.model.rules import Rows
from pvebench.model.storage_use import Wear

_BY_SSH: Final = frozenset({"dir"})
_NOT_FIOS: Final = frozenset(":;#\n")
"""Characters that fio's `filename` cannot contain: `:` separates files, the others end it."""


class HostSettings(LocalSettings):
    """Settings of driver `host`.

    Attributes:
        ssh: another machine to measure; None: this one. `storages` are those of that machine, and
            `node` is its name.
    """

    ssh: SshSettings | None = None

    @model_validator(mode="after")
    def _another_machines(self) -> Self:
        if self.ssh is None:
            return self
        if "node" not in self.model_fields_set:
            raise ValueError("ssh: set `node` too, the name of that machine in all results")
        if not self.storages:
            raise ValueError("ssh: set `storages` too, the measured storages of that machine")
        for name, entry in self.storages.items():
            if entry.kind not in _BY_SSH:
                raise ValueError(f"storage {name}: kind {entry.kind} is not supported by ssh")
            if entry.faults:
                raise ValueError(f"storage {name}: faults are not supported by ssh")
            path = path_of(entry)
            if path is None or not path.is_absolute():
                raise ValueError(f"storage {name}: a path on another machine must begin with /")
            if set(str(path)) & _NOT_FIOS:
                raise ValueError(f"storage {name}: fio allows no path with : ; # or a line break")
        return self


def _storages(settings: HostSettings, node: str | None) -> Mapping[str, MeasuredStorage]:
    if settings.ssh is None:
        return cached_storages(settings, node)
    by_ssh = "containers on a machine reached by ssh are not supported"
    return {
        name: replace(
            storage,
            holds=replace(storage.holds, no_container=by_ssh),
            # The size is that of a path on this machine.
            budget_bytes=budget_of(settings.storages[name].write_budget, None),
        )
        for name, storage in local_storages(settings, node).items()
    }


def _wear(settings: HostSettings) -> Mapping[tuple[str, str], Wear | str]:
    if settings.ssh is None:
        return wear_of(settings)
    from pvebench_lab.host.remote_host import wear  # noqa: PLC0415 # imports asyncssh

    return {(settings.node, name): one for name, one in wear(settings, settings.ssh).items()}


DRIVER: Final = Driver(
    settings=HostSettings,
    engine="pvebench_lab.host.host_engine",
    storages=_storages,
    wear=_wear,
    spaces=lambda settings: spaces_of(settings) if settings.ssh is None else {},
    require=lambda settings: require_paths(settings) if settings.ssh is None else None,
    rows=Rows.HOST,
)
