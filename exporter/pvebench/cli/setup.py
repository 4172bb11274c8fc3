"""`pvebench setup`: settings, a check, and the time until the first results.

Every question has an option, so that scripts can answer; with --yes nothing is asked. It can be run
again: existing things stay.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click

from pvebench.cli.options import DEFAULT_PACK, PATH, pack_file, show_findings
from pvebench.cli.proxmox import NODE_EXPORTER, set_up_cluster
from pvebench.cli.questions import Questions, write_settings
from pvebench.config import Settings, load_settings
from pvebench.diagnostics.check import findings
from pvebench.drivers import DRIVERS
from pvebench.errors import NotWritable
from pvebench.files import mounts
from pvebench.model.storage_use import cost_lines
from pvebench.model.units import show_bytes, show_seconds
from pvebench.scheduler.plan import make_plan
from pvebench.service.startup import assignments, intervals_of, paced
from pvebench.verdicts.fastest_text import LEAST_JUDGED
from pvebench.verdicts.ranking import LEAST_RUNS

CLUSTER = "proxmox"
KINDS: Final = tuple(name for name in (CLUSTER, "qemu", "host") if name in DRIVERS.names)
"""What can be set up: drivers that measure, of the installed packages."""
CLUSTER_PACK: Final = "upgrade-watch"
"""Default pack of a cluster: one disk every 30 minutes, for the wear of its drives."""


@click.command()
@click.argument("what", type=click.Choice(KINDS), required=False)
@click.option("--config", type=PATH, default=Path("pvebench.yaml"), show_default=True)
@click.option("--host", help="Address of any cluster node.")
@click.option("--port", default=8006, show_default=True)
@click.option(
    "--fingerprint", default="", help="SHA-256 of the certificate, see pvenode cert info."
)
@click.option("--ca-file", type=PATH, help="CA file instead: /etc/pve/pve-root-ca.pem of a node.")
@click.option(
    "--user",
    default="root@pam",
    show_default=True,
    help="Administrator; you are asked for the password.",
)
@click.option("--node", "nodes", multiple=True, help="Node to measure; can be repeated.")
@click.option(
    "--storage",
    "storages",
    multiple=True,
    help="Cluster storage, or local directory, also as NAME=DIRECTORY; can be repeated.",
)
@click.option("--iso-storage", help="Storage for the guest image, about 50 MB.")
@click.option("--pool", default="pvebench", show_default=True, help="Pool for VMs.")
@click.option(
    "--token-file", default="token", show_default=True, help="Token file, next to the settings."
)
@click.option("--node-exporter", help=f"URL, such as {NODE_EXPORTER}; empty: none.")
@click.option(
    "--with-scrub-guard", "scrub_guard", is_flag=True, help="See `pvebench proxmox init --help`."
)
@click.option("--new-token", is_flag=True, help="Create a new token; the old one becomes invalid.")
@click.option("--label", help="Name of this machine in results (qemu and host).")
@click.option("--state", type=PATH, help="State directory (qemu and host).")
@click.option("--listen", help="Address of the web UI and /metrics (qemu and host).")
@click.option(
    "--pack",
    "packs",
    multiple=True,
    help=f"Pack to measure; default: quick, for proxmox {CLUSTER_PACK}.",
)
@click.option("--replace", is_flag=True, help="Overwrite existing settings.")
@click.option("--check/--no-check", "checked", default=True, help="Check the settings afterwards.")
@click.option("--yes", is_flag=True, help="Ask nothing; use the defaults.")
def setup(what: str | None, checked: bool, packs: tuple[str, ...], **options: Any) -> None:
    """Create settings interactively.

    proxmox: a cluster, through its API. qemu: VMs in this machine's QEMU. host: no VM, only this
    machine's own throughput.
    """
    ask = Questions(options["yes"])
    if what is None:
        what = CLUSTER if options["host"] else ask.choose("What to measure", KINDS, "the kind")
    for pack in packs:
        pack_file(Path(pack), options["config"])  # rejects unknown names before any change
    answers = SimpleNamespace(**options)
    if what == CLUSTER:
        answers.packs = packs or (CLUSTER_PACK,)
        set_up_cluster(answers, ask)
    else:
        set_up_here(what, answers, ask, packs or (str(DEFAULT_PACK),))
    _conclude(options["config"], checked=checked)


def _conclude(config: Path, *, checked: bool) -> None:
    """Show the duration of a cycle and the first results, check, and show the next command.

    Raises:
        MachineError: a check failed.
    """
    for line in _estimates(config):
        click.echo(line)
    if checked:
        click.echo("Checks:")
        show_findings(findings(load_settings(config)))
    click.echo(f"Next: pvebench serve --config {config}")


def _estimates(config: Path) -> list[str]:
    """Return the expected times of cycles and verdicts, for the slowest node."""
    settings = load_settings(config)
    kept = paced(settings, assignments(settings))
    assigned, costs = kept.assignments, kept.costs
    plans = [
        (entry.node, make_plan(entry.matrix, seed=entry.pack.seed, conduct=entry.pack.conduct))
        for entry in assigned
    ]
    seconds: Counter[str] = Counter()
    for node, plan in plans:
        seconds[node] += plan.seconds  # type: ignore[assignment] # a Counter adds floats as well
    cycle = max(seconds.values())
    every = max([cycle, *intervals_of(assigned).values()])

    limited = any(cost.longer and not cost.measured for cost in costs)

    def after(runs: int) -> str:
        limit = "at most" if limited else "about"
        return f"After {limit} {show_seconds(cycle + (runs - 1) * every)} ({runs} runs per case)"

    cases = sum(len(plan.cases) for _, plan in plans)
    return [
        f"Cycle: {cases} cases, about {show_seconds(cycle)}",
        *cost_lines(costs),
        f"{after(LEAST_RUNS)}: significant differences between configurations",
        f"{after(LEAST_JUDGED)}: first verdicts",
    ]


_LOCAL: Final = "local"
"""Default storage name of packs."""


def set_up_here(
    driver: str, answers: SimpleNamespace, ask: Questions, packs: Sequence[str]
) -> None:
    """Show file systems for volumes, and write settings for one or more directories.

    Args:
        answers: options of `pvebench setup` by name; missing ones are asked for or get defaults.
    """
    for point, kind in local_file_systems().items():
        usage = shutil.disk_usage(point)
        space = f"{show_bytes(usage.free)} of {show_bytes(usage.total)} free"
        click.echo(f"  {point:24} {kind:8} {space}")
    state = (answers.state or Settings().state).absolute()
    chosen = answers.storages or ask.names(
        "Directories on the disks to measure", [str(state / "storage")], "--storage"
    )
    storages = _storages(chosen)
    label = answers.label or ask.text("Name of this machine in results", Settings().node, "--label")
    listen = answers.listen or Settings().listen
    ask.agree(f"Write {answers.config}?")
    _make_paths(storages, state)
    values = {
        "driver": driver,
        "node": label,
        "state": str(state),
        "packs": list(packs),
        "listen": listen,
        "storages": {name: {"kind": "dir", "path": str(path)} for name, path in storages.items()},
    }
    write_settings(answers.config, values, replace=answers.replace)


def _make_paths(storages: dict[str, Path], state: Path) -> None:
    """Create missing directories, since a run creates none. Raises NotWritable."""
    for path in storages.values():
        if path.is_dir() or path == state / "storage":
            continue  # a run creates the latter, as its own user
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise NotWritable(f"cannot create {path}: {error.strerror}") from error
        click.echo(f"  Created {path}")


def local_file_systems() -> dict[str, str]:
    """Return writable mount point -> type of file systems on local disks; no server is queried.

    A single mounted file, as in containers, cannot hold volumes.
    """
    return {
        mount.point: mount.type
        for mount in mounts()
        if (mount.source.startswith("/dev/") or mount.type == "zfs")
        and mount.point.isprintable()
        and os.access(mount.point, os.W_OK)
        and Path(mount.point).is_dir()
    }


def _storages(directories: Sequence[str]) -> dict[str, Path]:
    """Return name -> directory; without a name the first is `local`, others use the directory name.

    Without a `local`, the first is renamed to it: packs without a storage measure `local`.
    """
    storages: dict[str, Path] = {}
    for text in directories:
        name, separator, path = text.partition("=")
        directory = Path(path if separator else text).expanduser().absolute()
        if not separator:
            name = _LOCAL if _LOCAL not in storages else directory.name.lower()
        if name in storages:
            raise click.UsageError(f"duplicate storage name {name}; use NAME=DIRECTORY")
        storages[name] = directory
    if storages and _LOCAL not in storages:
        first = next(iter(storages))
        click.echo(f"  {first} is named {_LOCAL}: packs without a storage measure {_LOCAL}")
        storages = {_LOCAL if name == first else name: path for name, path in storages.items()}
    return storages
