"""`pvebench setup`: interactive creation of settings, followed by a check.

Every question has an option, so scripts can answer; `--yes` asks nothing. A second run keeps
existing files.
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
@click.argument("what", type=click.Choice([CLUSTER, "lab", "host"]), required=False)
@click.option("--config", type=PATH, default=Path("pvebench.yaml"), show_default=True)
@click.option("--host", help="Address of any node of the cluster.")
@click.option("--port", default=8006, show_default=True)
@click.option("--fingerprint", default="", help="SHA-256 of the certificate: pvenode cert info.")
@click.option("--ca-file", type=PATH, help="Authority instead: /etc/pve/pve-root-ca.pem of a node.")
@click.option("--user", default="root@pam", show_default=True, help="Admin; the password is asked.")
@click.option("--node", "nodes", multiple=True, help="Node to measure; may be repeated.")
@click.option(
    "--storage",
    "storages",
    multiple=True,
    help="Storage of the cluster; or directory here, also as NAME=DIRECTORY; may be repeated.",
)
@click.option("--iso-storage", help="Storage for the guest's image, some 50 MB.")
@click.option("--pool", default="pvebench", show_default=True, help="Pool that VMs are made in.")
@click.option("--token-file", default="token", show_default=True, help="Beside the settings.")
@click.option("--node-exporter", help=f"Such as {NODE_EXPORTER}; empty: there is none.")
@click.option("--with-scrub-guard", "scrub_guard", is_flag=True, help="See proxmox init.")
@click.option("--new-token", is_flag=True, help="Make the token anew; the old one ends.")
@click.option("--label", help="Name of this machine in results, of lab and host.")
@click.option("--state", type=PATH, help="Directory of results, of lab and host.")
@click.option("--listen", help="Address of the pages, of lab and host.")
@click.option("--pack", "packs", multiple=True, help="What to measure; default: quick.")
@click.option("--replace", is_flag=True, help="Write over settings that say something else.")
@click.option("--check/--no-check", "checked", default=True, help="Check them afterwards.")
@click.option("--yes", is_flag=True, help="Ask nothing: take what is found.")
def setup(what: str | None, checked: bool, packs: tuple[str, ...], **given: Any) -> None:
    """Ask what shall be measured, show what is there, write settings, check them.

    proxmox: a cluster, through its API. lab: VMs of this machine's own QEMU. host: no VM, only what
    the host itself reaches.
    """
    ask = Questions(given["yes"])
    if what is None:
        kinds = (CLUSTER, "lab", "host")
        what = CLUSTER if given["host"] else ask.one_of("What is measured", kinds, "which")
    for pack in packs:
        pack_file(Path(pack), given["config"])  # a misspelt name is told before anything is made
    own = ("label", "state", "listen")
    if what == CLUSTER:
        rest = {key: value for key, value in given.items() if key not in own}
        set_up_cluster(ClusterAnswers(**rest, packs=tuple(default_packs(packs))), ask)
    else:
        here = {key: given[key] for key in (*own, "config", "storages", "replace")}
        set_up_here(LocalAnswers(what=what, **here), ask, default_packs(packs))
    _conclude(given["config"], checked=checked)


def _conclude(config: Path, *, checked: bool) -> None:
    """Say what a cycle takes and when answers come; check; say what comes next.

    Raises:
        MachineError: something is missing.
    """
    for line in _expected(config):
        click.echo(line)
    if checked:
        click.echo("checked:")
        nothing = {"state": None, "node": None, "driver": None, "packs": ()}
        show_findings(list(findings_of({"config": config, **nothing})))
    click.echo(f"next: pvebench serve --config {config}")


def _expected(config: Path) -> list[str]:
    """Return what is expected of cycles and verdicts, of the node that takes longest."""
    given = assignments(load_settings(config))
    plans = [
        (one.node, make_plan(one.matrix, seed=one.pack.seed, conduct=one.pack.conduct))
        for one in given
    ]
    seconds: Counter[str] = Counter()
    for node, plan in plans:
        seconds[node] += plan.seconds  # type: ignore[assignment] # a Counter adds floats as well
    cycle = max(seconds.values())
    every = max([cycle, *intervals_of(given).values()])

    def after(runs: int) -> str:
        return show_seconds(cycle + (runs - 1) * every)

    cases = sum(len(plan.cases) for _, plan in plans)
    written = show_bytes(sum(plan.bytes_written for _, plan in plans))
    return [
        f"a cycle: {cases} cases, about {show_seconds(cycle)}, at most {written} written",
        f"after about {after(LEAST_RUNS)}, {LEAST_RUNS} runs of each: whether settings differ by "
        "more than noise",
        f"after about {after(LEAST_JUDGED)}, {LEAST_JUDGED} runs: the first verdict on a change is "
        "possible",
    ]
