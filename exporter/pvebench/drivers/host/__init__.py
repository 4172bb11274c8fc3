"""Driver for cases without a VM, on this machine or over SSH: counters, devices, tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self

from pydantic import model_validator

from pvebench.drivers.driver import Driver, MeasuredStorage
from pvebench.drivers.ssh import SshSettings
from pvebench.drivers.storages.settings import LocalSettings, local_storages, require_paths
from pvebench.model.rules import Rows

_BY_SSH: Final = frozenset({"dir"})
_NOT_FIOS: Final = frozenset(":;#\n")
"""In a job's filename the first parts files, the others end it."""


class HostSettings(LocalSettings):
    """What the driver of the host's own rows is told.

    Attributes:
        ssh: another machine whose own rows are measured; None: this one. `storages` are that
            machine's then, and `node` is its name.
    """

    ssh: SshSettings | None = None

    @model_validator(mode="after")
    def _another_machines(self) -> Self:
        if self.ssh is None:
            return self
        if "node" not in self.model_fields_set:
            raise ValueError("ssh: give `node` too, the name of that machine in all results")
        if not self.storages:
            raise ValueError("ssh: give `storages` too: what of that machine is measured")
        for name, entry in self.storages.items():
            if entry.kind not in _BY_SSH:
                raise ValueError(f"storage {name}: kind {entry.kind} cannot be had by ssh")
            if entry.faults:
                raise ValueError(f"storage {name}: faults are made on this machine, not by ssh")
            if entry.path is None or not entry.path.is_absolute():
                raise ValueError(f"storage {name}: a path on another machine begins with /")
            if set(str(entry.path)) & _NOT_FIOS:
                raise ValueError(f"storage {name}: fio takes no path with : ; # or a line break")
        return self


def _storages(settings: HostSettings, node: str | None) -> Mapping[str, MeasuredStorage]:
    found = local_storages(settings, node)
    if settings.ssh is None:
        return found
    by_ssh = "containers on a machine reached by ssh: not yet"
    return {
        name: replace(one, holds=replace(one.holds, no_container=by_ssh))
        for name, one in found.items()
    }


def _require(settings: HostSettings) -> None:
    if settings.ssh is None:
        require_paths(settings)


DRIVER: Final = Driver(
    settings=HostSettings,
    engine="pvebench.drivers.host.this_host",
    storages=_storages,
    require=_require,
    rows=Rows.HOST,
)
