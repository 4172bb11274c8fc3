"""`pvebench setup`: settings, a check, and the time until the first results.

Every question has an option, so that scripts can answer; with --yes nothing is asked. It can be run
again: existing things stay.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from pvebench.cli.doctor import findings_of, show_findings
from pvebench.cli.options import PATH, pack_file
from pvebench.cli.setup.cluster import NODE_EXPORTER, ClusterAnswers, set_up_cluster
from pvebench.cli.setup.local import LocalAnswers, default_packs, set_up_here
from pvebench.cli.setup.questions import Questions
from pvebench.config import load_settings
from pvebench.model.units import show_bytes, show_seconds
from pvebench.scheduler.order import make_plan
from pvebench.service.selection import assignments, intervals_of
from pvebench.verdicts.ranking import LEAST_RUNS
from pvebench.verdicts.summary import LEAST_JUDGED

CLUSTER = "proxmox"


@click.command()
@click.argument("what", type=click.Choice([CLUSTER, "qemu", "host"]), required=False)
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
@click.option("--pack", "packs", multiple=True, help="Pack to measure; default: quick.")
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
        kinds = (CLUSTER, "qemu", "host")
        what = CLUSTER if options["host"] else ask.one_of("What to measure", kinds, "the kind")
    for pack in packs:
        pack_file(Path(pack), options["config"])  # rejects unknown names before any change
    local = ("label", "state", "listen")
    if what == CLUSTER:
        cluster = {key: value for key, value in options.items() if key not in local}
        set_up_cluster(ClusterAnswers(**cluster, packs=tuple(default_packs(packs))), ask)
    else:
        answers = {key: options[key] for key in (*local, "config", "storages", "replace")}
        set_up_here(LocalAnswers(what=what, **answers), ask, default_packs(packs))
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
        defaults = {"state": None, "node": None, "driver": None, "packs": ()}
        show_findings(list(findings_of({"config": config, **defaults})))
    click.echo(f"Next: pvebench serve --config {config}")


def _estimates(config: Path) -> list[str]:
    """Return the expected times of cycles and verdicts, for the slowest node."""
    assigned = assignments(load_settings(config))
    plans = [
        (entry.node, make_plan(entry.matrix, seed=entry.pack.seed, conduct=entry.pack.conduct))
        for entry in assigned
    ]
    seconds: Counter[str] = Counter()
    for node, plan in plans:
        seconds[node] += plan.seconds  # type: ignore[assignment] # a Counter adds floats as well
    cycle = max(seconds.values())
    every = max([cycle, *intervals_of(assigned).values()])

    def after(runs: int) -> str:
        return show_seconds(cycle + (runs - 1) * every)

    cases = sum(len(plan.cases) for _, plan in plans)
    written = show_bytes(sum(plan.bytes_written for _, plan in plans))
    return [
        f"Cycle: {cases} cases, about {show_seconds(cycle)}, at most {written} written",
        f"After about {after(LEAST_RUNS)} ({LEAST_RUNS} runs per case): significant differences "
        "between configurations",
        f"After about {after(LEAST_JUDGED)} ({LEAST_JUDGED} runs per case): first verdicts",
    ]
