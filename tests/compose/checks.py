"""What is looked at once the stack runs: one sentence each, with WRONG before what is not so."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from project import Project, health, labelled, wait_for

from pvebench.store.store import Store
from pvebench_fleet.fleet_log import FleetLog
from pvebench_fleet.push import HubAddress, sending
from pvebench_lab.simulated.demo_year import YEAR
from testing.demo_year import assignments
from testing.hub_sites import filled_store
from testing.packs import ROOT

HEALTHY_SECONDS: Final = 240.0
FLOW_SECONDS: Final = 900.0
"""The lab boots a VM under emulation, fills a volume and measures before there is a number."""
MEASURED: Final = {
    "pvebench",
    "prometheus",
    "grafana",
    "grafana-password",
    "node_exporter",
    "alertmanager",
}
DEMO: Final = {"demo-fill", "demo-pvebench", "demo-prometheus", "demo-grafana", "grafana-password"}
HUB: Final = {
    "hub-passwords",
    "hub-postgres",
    "hub-admin",
    "hub-prune",
    "hub",
    "hub-judge",
    "hub-pages",
}
DEMO_DAYS: Final = 40


def said(sentence: str, wrong: object) -> str:
    """Return the sentence, or what contradicts it."""
    return f"WRONG: {sentence}: {wrong}" if wrong else sentence


def measured(project: Project) -> Iterator[str]:
    """The stack with every optional part, measuring in its lab."""
    project.settle("node", "alerting")
    before = listeners()
    project.up()
    yield all_healthy(project, MEASURED)
    yield all_targets_up(project)
    yield nothing_listens_beyond_loopback(project, before)
    yield from containers_are_kept_small(project)
    yield grafana_has_what_it_needs(project, anonymous=False)
    yield results_arrive(project)
    yield from a_restart_keeps_everything(project)
    yield anonymous_viewing_is_a_switch(project)
    project.down("--volumes")
    yield said("nothing is left behind", project.left_behind())


def all_healthy(project: Project, services: set[str]) -> str:
    """Every container runs, and is healthy where it has a check; those that end have ended well."""

    def look() -> bool:
        found = health(project.containers())
        return set(found) == services and set(found.values()) <= {"healthy", "running", "done"}

    wait_for("all containers are healthy", look, seconds=HEALTHY_SECONDS)
    return f"all {len(services)} containers are healthy"


def all_targets_up(project: Project) -> str:
    """Prometheus scrapes the exporter and node_exporter, and knows the Alertmanager."""

    def look() -> dict[str, str]:
        active = project.get("PROMETHEUS_PORT", "/api/v1/targets")["data"]["activeTargets"]
        found = {one["labels"]["job"]: one["health"] for one in active}
        return found if set(found.values()) == {"up"} else {}

    jobs = wait_for("all targets are up", look, seconds=90)
    known = project.get("PROMETHEUS_PORT", "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    wrong = {"jobs": sorted(jobs), "alertmanagers": known}
    right = set(jobs) == {"pvebench", "node"} and len(known) == 1
    return said("Prometheus' targets are up, and it knows the Alertmanager", not right and wrong)


def listeners() -> set[tuple[str, int]]:
    """Return (address, port) of every TCP socket that listens on this host."""
    found = set()
    for name, any_address in (("tcp", "00000000"), ("tcp6", "0" * 32)):
        for line in Path(f"/proc/net/{name}").read_text("utf-8").splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":
                address, port = local.split(":")
                found.add(("any" if address == any_address else address, int(port, 16)))
    return found


def nothing_listens_beyond_loopback(project: Project, before: set[tuple[str, int]]) -> str:
    """Neither on this host nor in what the engine was told."""
    loopback = {"0100007F", "0" * 24 + "01000000"}
    beyond: set[Any] = {one for one in listeners() - before if one[0] not in loopback}
    # Other programs of this host come and go; those of the stack have the ports it was given.
    beyond = {one for one in beyond if one[1] in project.ports.values()}
    for service, one in project.containers().items():
        if one["HostConfig"]["NetworkMode"] == "host":
            beyond.add(f"{service} has the host's network")
        for bindings in (one["NetworkSettings"]["Ports"] or {}).values():
            for binding in bindings or []:
                if binding["HostIp"] != "127.0.0.1":
                    beyond.add((service, binding["HostIp"], binding["HostPort"]))
    return said("nothing listens beyond loopback", beyond)


def containers_are_kept_small(project: Project) -> Iterator[str]:
    """No root, no writable root file system, no capabilities, no secrets where anybody looks."""
    found = project.containers()
    running = {name: one for name, one in found.items() if one["State"]["Running"]}
    roots = [name for name, one in running.items() if 0 in user_ids(project, one["Id"])]
    yield said("no process in a container is root", roots)
    open_ones = [
        name
        for name, one in found.items()
        if not one["HostConfig"]["ReadonlyRootfs"]
        or one["HostConfig"]["CapDrop"] != ["ALL"]
        or one["HostConfig"]["Privileged"]
        or "seccomp=unconfined" in one["HostConfig"]["SecurityOpt"]
    ]
    yield said("every root file system is read-only, every capability dropped", open_ones)
    unbounded = [
        name
        for name, one in found.items()
        if not one["HostConfig"]["Memory"] or not one["HostConfig"]["PidsLimit"]
    ]
    yield said("every container's memory and processes are bounded", unbounded)
    told = [
        (name, secret)
        for name, one in found.items()
        for secret, text in project.secrets.items()
        if text in json.dumps(one)
    ]
    yield said("no secret stands in a container's settings", told)


def user_ids(project: Project, container: str) -> set[int]:
    """Return the users of a container's processes."""
    text = project.docker("top", container, "-eo", "uid,pid,comm")
    return {int(line.split()[0]) for line in text.splitlines()[1:]}


def grafana_has_what_it_needs(
    project: Project, *, anonymous: bool, port: str = "GRAFANA_PORT"
) -> str:
    """Dashboards, data source and password are there; the stand-in tells, the real one is asked."""
    if "grafana" not in " ".join(project.images.stand_ins):
        return real_grafana(project, anonymous=anonymous, port=port)
    found = wait_for("Grafana is healthy", lambda: healthy_grafana(project, port), seconds=60)
    files = len(list((ROOT / "grafana" / "dashboards").glob("*.json")))
    right = {
        "database": "ok",
        "dashboards": files,
        "prometheus": True,
        "anonymous": anonymous,
        "provisioned": ["dashboards", "datasources"],
        "password": True,
    }
    sentence = f"Grafana (a stand-in) can use its mounts and password, anonymous={anonymous}"
    return said(sentence, found != right and found)


def healthy_grafana(project: Project, port: str) -> Any:
    """Return what the stand-in says while all is well."""
    found = project.get(port, "/api/health")
    return found if found.get("database") == "ok" else None


def real_grafana(project: Project, *, anonymous: bool, port: str) -> str:
    """Ask a real one for its dashboards, without and with the password."""
    found = [
        project.get(port, "/api/search", login=login, type="dash-db")
        for login in (None, ("admin", project.password()))
    ]
    shown, logged_in = (isinstance(one, list) and len(one) > 0 for one in found)
    right = shown == anonymous and logged_in
    return said(
        f"Grafana shows its dashboards to who logs in, anonymous={anonymous}", not right and found
    )


def results_arrive(project: Project) -> str:
    """The lab measures, and what it measures is in Prometheus."""
    found = wait_for(
        "results are in Prometheus",
        lambda: project.query("pvebench_iops > 0"),
        seconds=FLOW_SECONDS,
    )
    scenario = min(labelled(found, "scenario"))
    return f"results are in Prometheus: {scenario} {float(found[0]['value'][1]):.0f} IOPS"


def a_restart_keeps_everything(project: Project) -> Iterator[str]:
    """Containers are thrown away and made anew; runs and samples are as before."""
    runs = len(stored_runs(project))
    moment = time.time()
    told = labelled(project.query("pvebench_iops", time=moment), "workload")
    project.down()
    project.up()
    yield all_healthy(project, MEASURED)
    kept = stored_runs(project)
    yield said(f"a restart keeps the store ({runs} results)", len(kept) < runs and kept)
    now = labelled(project.query("pvebench_iops", time=moment), "workload")
    yield said("a restart keeps Prometheus' data", not told or told - now)


def stored_runs(project: Project) -> list[str]:
    """Return the cases that have a result in the store."""
    found = project.get("EXPORTER_PORT", "/api/v1/results")["results"]
    return [one["case"] for one in found if one["run"] is not None]


def anonymous_viewing_is_a_switch(project: Project) -> str:
    """GRAFANA_ANONYMOUS=true in .env is all it takes."""
    project.settle("node", "alerting", GRAFANA_ANONYMOUS="true")
    project.up()
    return grafana_has_what_it_needs(project, anonymous=True)


def demo(project: Project) -> Iterator[str]:
    """The simulated year beside the stack, cut to its last weeks."""
    project.settle("demo", DEMO_DAYS=str(DEMO_DAYS))
    before = listeners()
    project.up("demo-grafana")
    yield all_healthy(project, DEMO)
    yield nothing_listens_beyond_loopback(project, before)
    yield from containers_are_kept_small(project)
    yield grafana_has_what_it_needs(project, anonymous=False, port="DEMO_GRAFANA_PORT")
    yield the_past_is_there(project)
    yield verdicts_are_there(project)
    project.down()
    project.up("demo-grafana")
    yield all_healthy(project, DEMO)
    yield the_past_is_there(project)


def the_past_is_there(project: Project) -> str:
    """Prometheus knows what was simulated weeks ago, and goes on with the same series."""
    port = "DEMO_PROMETHEUS_PORT"
    long_ago = time.time() - (DEMO_DAYS - 3) * 86400
    past = labelled(project.query("pvebench_iops", port=port, time=long_ago), "scenario")
    wait_for(
        "the demo is scraped",
        lambda: project.query('up{job="pvebench"} == 1', port=port),
        seconds=90,
    )
    same = project.query(f"pvebench_iops and pvebench_iops offset {DEMO_DAYS - 3}d", port=port)
    wrong = not past or not same
    return said(f"{len(past)} simulated scenarios have {DEMO_DAYS} days of past", wrong)


def verdicts_are_there(project: Project) -> str:
    """What the simulated updates did is judged."""
    expression = "sum(node_storage:pvebench_change_state:count_regressed)"
    found = wait_for(
        "the demo is judged",
        lambda: project.query(expression, port="DEMO_PROMETHEUS_PORT"),
        seconds=180,
    )
    return f"verdicts are in Prometheus: {found[0]['value'][1]} slower"


def fleet(project: Project) -> Iterator[str]:
    """The hub of a fleet: a site sends its runs, the page shows them, a restart keeps them."""
    project.settle("hub")
    before = listeners()
    project.up(*sorted(HUB - {"hub-passwords", "hub-postgres", "hub-admin"}))
    yield all_healthy(project, HUB)
    yield nothing_listens_beyond_loopback(project, before)
    yield from containers_are_kept_small(project)
    token = project.compose("run", "--rm", "-T", "hub-admin", "sites", "add", "lab").split()[-1]
    yield from a_site_sends(project, token)
    project.down()
    project.up(*sorted(HUB - {"hub-passwords", "hub-postgres", "hub-admin"}))
    yield all_healthy(project, HUB)
    yield the_page_shows(project, "lab")
    project.down("--volumes")
    yield said("nothing is left behind", project.left_behind())


def a_site_sends(project: Project, token: str) -> Iterator[str]:
    """Everything that a simulated site has stored."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "token").write_text(token)
        (directory / "token").chmod(0o600)
        story = replace(YEAR, days=12.0)
        plan = assignments("randread-4k-qd1")[:3]
        store = filled_store(directory, plan, story, end=time.time())
        runs = store.totals().runs
        url = f"http://127.0.0.1:{project.ports['HUB_PORT']}"
        with sending(HubAddress(url=url, token_file=directory / "token"), store):
            wait_for("the hub has all", lambda: is_sent(store), seconds=120)
        store.close()
    shown = wait_for("nodes are judged", lambda: judged(project), seconds=120)
    yield said(f"the hub has {runs} runs of the site, and judged them", shown != runs and shown)
    yield the_page_shows(project, "lab")


def is_sent(store: Store) -> bool:
    """Whether the hub has acknowledged all lines of a site."""
    state = FleetLog(store.engine).state()
    return state is not None and 0 < state.newest == state.acked


def judged(project: Project) -> int:
    """Return the number of received runs once none of them waits for its judging."""
    text = project.text("HUB_PAGES_PORT", "/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
    waiting = [float(one) for name, one in values.items() if "_unjudged_runs" in name]
    received = [float(one) for name, one in values.items() if "_runs_received" in name]
    return int(sum(received)) if waiting and not sum(waiting) else 0


def the_page_shows(project: Project, site: str) -> str:
    """Return whether the page of the fleet has a site."""
    text = project.text("HUB_PAGES_PORT", "/")
    return said(f"the page shows site {site}", f"<td>{site}</td>" not in text and text[-500:])


PARTS: Final[dict[str, Callable[[Project], Iterator[str]]]] = {
    "measured": measured,
    "demo": demo,
    "fleet": fleet,
}
