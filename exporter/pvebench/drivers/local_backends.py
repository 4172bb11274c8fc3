"""Backends on this machine that plug-ins add: the host itself, and containers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.drivers.backend_router import BackendRouter, LocalBackend
from pvebench.drivers.driver import DriverContext, Finding
from pvebench.drivers.storages.contract import Storage
from pvebench.drivers.storages.storage_settings import LocalSettings
from pvebench.model.disk import Bus
from pvebench.model.ports import Hypervisor
from pvebench.model.workload import Case
from pvebench.plugins import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendKind:
    """Backend of the cases of one bus.

    Attributes:
        make: returns the backend, on the volumes of the VM; nothing is created yet.
        check: yields whether its requirements are met by this machine; changes nothing.
        facts: returns facts of the machine, for the environment of all cases.
    """

    bus: Bus
    make: Callable[[LocalSettings, DriverContext, dict[str, Storage]], LocalBackend]
    check: Callable[[LocalSettings, Sequence[Case]], Iterator[Finding]]
    facts: Callable[[], Mapping[str, str]]


BACKENDS: Final = Registry[BackendKind](
    "backends", lambda plugin: isinstance(plugin, BackendKind), {}
)
"""Name -> kind of backend beside the VM."""


def local_router(
    vm: Hypervisor,
    backends: Mapping[Bus, LocalBackend],
    kinds: Sequence[BackendKind],
    more_facts: Callable[[], Mapping[str, str]] = dict,
) -> BackendRouter[LocalBackend]:
    """Return the router to a VM and these backends of this machine.

    Args:
        kinds: those whose facts the environment has.
        more_facts: returns facts that can change meanwhile.
    """
    fixed = {name: fact for kind in kinds for name, fact in kind.facts().items()}

    def facts() -> dict[str, str]:
        return {**fixed, **more_facts()}

    if Bus.HOST not in backends:
        return BackendRouter(vm, backends, facts=facts)
    return BackendRouter(vm, backends, tune=backends[Bus.HOST].tune, facts=facts)


def container_of(backends: Mapping[Bus, LocalBackend]) -> int | None:
    """Return the first process of the running container; None: none runs."""
    return backends[Bus.LXC].pid if Bus.LXC in backends else None
