"""`pvebench check`: is everything here that a run needs?"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from pvebench.cli.choice import assignments, volume_bytes
from pvebench.cli.instance import kvm_memory, networks_of
from pvebench.cli.options import json_option, read_settings, settings_options
from pvebench.config import Settings
from pvebench.drivers.host import SystemClock
from pvebench.drivers.qemu.accel import remembered_fault
from pvebench.drivers.qemu.volumes import RESERVE_BYTES
from pvebench.errors import MachineError, NotWritable, PvebenchError
from pvebench.guest import default_directory, load_image
from pvebench.model.units import show_bytes
from pvebench.plan import Assignment, make_plan

TOOLS: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "fincore": "util-linux-extra",
}
"""Program -> Debian package."""

Finding = tuple[str, bool, str]
"""What was checked, whether it is fine, and what was found."""


@click.command()
@settings_options
@json_option
def check(as_json: bool, scale: float, **options: Any) -> None:
    """Check settings, packs, tools, space and accelerator; change nothing."""
    findings = list(_findings(options, scale))
    if as_json:
        rows = [{"check": name, "ok": good, "found": text} for name, good, text in findings]
        click.echo(json.dumps(rows, indent=2))
    else:
        for name, good, text in findings:
            click.echo(f"{'ok  ' if good else 'FAIL'}  {name}: {text}")
    bad = [name for name, good, _ in findings if not good]
    if bad:
        raise MachineError(f"{len(bad)} of {len(findings)} checks failed: {', '.join(bad)}")


def _findings(options: dict[str, Any], scale: float) -> Iterator[Finding]:
    # Settings and packs raise their own, better message: nothing below means much without them.
    settings = read_settings(**options)
    yield "settings", True, f"node {settings.node}, driver {settings.driver}"
    given = assignments(settings, scale=scale)
    for entry in given:
        made = make_plan(entry.matrix, seed=entry.pack.seed)
        yield f"pack {entry.pack.name}", True, f"{len(made.cases)} cases on {entry.node}"
    yield _attempt("state", lambda: _state(settings))
    if settings.driver == "proxmox":
        # Imported only when it is used: the library behind it takes its time.
        yield from import_module("pvebench.cli.cluster").check_cluster(
            settings, given, SystemClock()
        )
    if settings.driver in ("qemu", "host"):
        yield from _networks(settings)
        yield from _hdparm(given)
    if settings.driver == "qemu":
        yield from _tools()
        yield from _space(settings, given)
        image = settings.guest_image or default_directory()
        yield _attempt("guest image", lambda: f"{load_image(image).digest[:12]} in {image}")
        yield _accelerator(settings)


def _attempt(name: str, look: Callable[[], str]) -> Finding:
    try:
        return name, True, look()
    except PvebenchError as error:
        return name, False, str(error)


def _state(settings: Settings) -> str:
    # Looked at, not made: as root it would then belong to root.
    there = _existing(settings.state)
    if not os.access(there, os.W_OK | os.X_OK):
        raise NotWritable(
            f"state directory {settings.state}: {there} cannot be written",
            next_step="mend its permissions, or name another one with --state",
        )
    return str(settings.state) + ("" if there == settings.state else " (will be made)")


def _tools() -> Iterator[Finding]:
    for tool, package in TOOLS.items():
        where = shutil.which(tool)
        yield tool, where is not None, where or f"not installed: apt-get install {package}"


def _networks(settings: Settings) -> Iterator[Finding]:
    """Yield whether each server answers of which a round trip is to be measured."""
    for name, link in networks_of(settings).items():
        if not link.server:
            continue
        where, seconds = f"{link.server}:{link.port}", link.round_trip()
        if seconds is None:
            yield f"network {name}", False, f"{where} does not answer: there is no round trip"
        else:
            yield f"network {name}", True, f"{where} answers within {seconds * 1e3:.3f} ms"


def _hdparm(given: list[Assignment]) -> Iterator[Finding]:
    cases = [case for entry in given for case in entry.matrix.cases]
    if any(case.scenario.disk.drive_cache is not None for case in cases):
        where = shutil.which("hdparm")
        missing = "not installed, but drive_cache needs it: apt-get install hdparm"
        yield "hdparm", where is not None, where or missing


def _space(settings: Settings, given: list[Assignment]) -> Iterator[Finding]:
    needs = volume_bytes(given)
    for name, storage in settings.storages_in_force().items():
        if storage.path is None or storage.kind == "block":
            continue
        need = needs.get(name, 0) + RESERVE_BYTES
        free = shutil.disk_usage(_existing(storage.path)).free
        text = f"{show_bytes(free)} free in {storage.path}, {show_bytes(need)} needed"
        yield f"storage {name}", free >= need, text


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())


def _accelerator(settings: Settings) -> Finding:
    device = Path("/dev/kvm")
    usable = os.access(device, os.R_OK | os.W_OK)
    if settings.accelerator == "tcg" or not usable:
        why = "set so" if settings.accelerator == "tcg" else f"{device} cannot be used"
        return "accelerator", settings.accelerator != "kvm", f"tcg ({why}); results carry accel=tcg"
    fault = remembered_fault(kvm_memory())
    if fault is None:
        return "accelerator", True, f"{device} is there, to be proved by the first run"
    if not fault:
        return "accelerator", True, "kvm, proved by a guest"
    return "accelerator", settings.accelerator != "kvm", f"tcg ({fault}); results carry accel=tcg"
