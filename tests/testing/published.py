"""Tables of docs/published.md, and of its report: which parts of the published packs have run.

`python -m testing.published` updates them from the packs, the published tables and `WHERE`.
What `WHERE` says of a place is what that place's target runs: it takes its rows from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.config import Pack, load_pack
from pvebench.drivers.storages import KINDS
from pvebench.model.disk import Bus
from pvebench.model.units import show_bytes, show_seconds
from pvebench.model.workload import Case
from pvebench.scheduler.plan import expand, make_plan
from pvebench_lab.references.library import published
from testing.packs import ROOT

PAGE: Final = ROOT / "docs" / "published.md"
REPORT: Final = ROOT / "bench" / "reports" / "published.md"
PACKS: Final = (
    "bus-format-2012",
    "cache-bus-format-2017",
    "lvmcache-2019",
    "media-sweep-2018",
    "raid-2017",
    "shared-storage-2021",
    "zfs-mdadm-2016",
)
LAB: Final = "lab"
CEPH: Final = "Ceph on one machine"
HOST_VM: Final = "host in a VM"
HOST_PROCESS: Final = "host in a process"
OVER_NBD: Final = "lab, storage in a VM"
PLACES: Final = {
    LAB: "`make e2e-published`",
    CEPH: "`make e2e-ceph`",
    HOST_VM: "`make e2e-host`",
    HOST_PROCESS: "`make e2e-host-process`",
    OVER_NBD: "`make e2e-zfs`",
}
"""Where rows run -> the target that runs every one of them."""
NOT_YET: Final = "not run: "
"""Before a place whose target nobody has let run the row so far, or before what lacks."""
_NEVER: Final = "never: "
SCALES: Final = {"cache-bus-format-2017": 0.0125, "raid-2017": 0.05, "zfs-mdadm-2016": 0.05}
"""Of packs whose volumes would be too small for a file system, or too large, at `SCALE`."""
SCALE: Final = 0.012
"""Factor of sizes and times, where a row is only to be run."""

WHERE: Final[Mapping[tuple[str, str, str], str]] = {
    ("bus-format-2012", "local", "guest"): LAB,
    ("bus-format-2012", "local", "host"): LAB,
    ("cache-bus-format-2017", "local", "guest"): LAB,
    ("cache-bus-format-2017", "local", "host"): LAB,
    ("lvmcache-2019", "lvm-off", "guest"): HOST_PROCESS,
    ("lvmcache-2019", "lvm-off", "host"): HOST_VM,
    ("lvmcache-2019", "lvm-writethrough", "guest"): HOST_PROCESS,
    ("lvmcache-2019", "lvm-writethrough", "host"): HOST_VM,
    ("lvmcache-2019", "lvm-writeback", "guest"): HOST_PROCESS,
    ("lvmcache-2019", "lvm-writeback", "host"): HOST_VM,
    ("media-sweep-2018", "local", "guest"): LAB,
    ("media-sweep-2018", "local", "host"): LAB,
    ("media-sweep-2018", "passthrough", "guest"): LAB,
    ("media-sweep-2018", "passthrough", "host"): LAB,
    ("media-sweep-2018", "lvm", "guest"): HOST_PROCESS,
    ("media-sweep-2018", "lvm", "host"): HOST_VM,
    ("raid-2017", "local", "guest"): LAB,
    ("raid-2017", "local", "host"): LAB,
    ("raid-2017", "raid0", "guest"): HOST_PROCESS,
    ("raid-2017", "raid0", "host"): HOST_VM,
    ("raid-2017", "raid1", "guest"): HOST_PROCESS,
    ("raid-2017", "raid1", "host"): HOST_VM,
    ("shared-storage-2021", "local", "guest"): LAB,
    ("shared-storage-2021", "local", "host"): LAB,
    ("shared-storage-2021", "local", "container"): LAB,
    ("shared-storage-2021", "cifs", "container"): HOST_VM,
    ("shared-storage-2021", "cifs", "guest"): HOST_PROCESS,
    ("shared-storage-2021", "cifs", "host"): HOST_VM,
    ("shared-storage-2021", "ceph-ssd", "guest"): CEPH,
    ("shared-storage-2021", "ceph-hdd", "guest"): (
        f"{_NEVER}no hard disks available; same as `ceph-ssd`"
    ),
    ("zfs-mdadm-2016", "zvol", "guest"): OVER_NBD,
    ("zfs-mdadm-2016", "zvol", "host"): HOST_VM,
    ("zfs-mdadm-2016", "zfs-ssd-cache", "guest"): OVER_NBD,
    ("zfs-mdadm-2016", "zfs-ssd-cache", "host"): HOST_VM,
    ("zfs-mdadm-2016", "md-raid10", "guest"): HOST_PROCESS,
    ("zfs-mdadm-2016", "md-raid10", "host"): HOST_VM,
    ("zfs-mdadm-2016", "single-ssd", "guest"): LAB,
    ("zfs-mdadm-2016", "single-ssd", "host"): LAB,
}
"""(pack, storage, guest, host or container) -> where it ran, or why it never did."""

KIND_OF: Final = {"ceph-ssd": ("rbd",), "ceph-hdd": ("rbd",), "passthrough": ("block",)}
"""Storage of a pack -> kinds that it may be; others are a directory, or a device below a file."""
_EITHER: Final = ("dir", "loop")
SIDES: Final = {Bus.HOST: "host", Bus.LXC: "container"}
"""Bus -> the side of a row that is no guest's."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a published pack asks for on one storage: with guests, on the host, in a container."""

    pack: str
    storage: str
    side: str
    cases: tuple[Case, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """As in `WHERE`."""
        return self.pack, self.storage, self.side

    @property
    def place(self) -> str:
        """Where it runs, or is to run; empty: nowhere."""
        place = WHERE[self.key].removeprefix(NOT_YET)
        return place if place in PLACES else ""

    @property
    def tools(self) -> str:
        """The tools that run there."""
        return ", ".join(sorted({case.workload.tool for case in self.cases}))

    def sample(self) -> list[Case]:
        """Return cases in which each scenario and each workload of the row is at least once."""
        cases = self.cases
        scenarios = list(dict.fromkeys(case.scenario.slug for case in cases))
        workloads = list(dict.fromkeys(case.workload.slug for case in cases))
        known = {(case.scenario.slug, case.workload.slug): case for case in cases}
        selected: dict[str, Case] = {}
        for number in range(max(len(scenarios), len(workloads))):
            pair = scenarios[number % len(scenarios)], workloads[number % len(workloads)]
            if pair in known:
                selected[known[pair].slug] = known[pair]
        for case in cases:
            met = {one.scenario.slug for one in selected.values()}
            ran = {one.workload.slug for one in selected.values()}
            if case.scenario.slug not in met or case.workload.slug not in ran:
                selected[case.slug] = case
        return list(selected.values())


def scale_of(name: str) -> float:
    """Return the factor of a pack's sizes and times, where its rows are only to be run."""
    return SCALES.get(name, SCALE)


def small(row: Row) -> list[str]:
    """Return the words of `pvebench run` for one cycle of the sample of a row of `small_rows`."""
    only = [word for case in row.sample() for word in ("--only", case.slug)]
    return ["--cycles", "1", "--scale", str(scale_of(row.pack)), *only]


def load(name: str, scale: float = 1.0) -> Pack:
    return load_pack(ROOT / "scenarios" / f"{name}.yaml", scale=scale)


def all_cases(pack: Pack) -> list[Case]:
    """Return every case of a pack that can be on some kind of its storages."""
    found: dict[str, Case] = {}
    names = [str(name) for name in pack.axes["storage"]]
    for number in range(2):
        kinds = {name: KIND_OF.get(name, _EITHER) for name in names}
        storages = {
            name: KINDS[kinds[name][min(number, len(kinds[name]) - 1)]].holds for name in names
        }
        for case in expand(pack, node="lab", storages=storages).cases:
            found.setdefault(case.slug, case)
    return list(found.values())


def rows(scale: Callable[[str], float] = lambda _: 1.0) -> list[Row]:
    """Return every row of every published pack; `scale` of its name multiplies sizes and times."""
    cases_of: dict[tuple[str, str, str], list[Case]] = {}
    for name in PACKS:
        for case in all_cases(load(name, scale(name))):
            side = SIDES.get(case.scenario.disk.bus, "guest")
            cases_of.setdefault((name, case.scenario.storage, side), []).append(case)
    return [Row(*key, tuple(cases)) for key, cases in cases_of.items()]


def small_rows(place: str, parts: Sequence[str] = ()) -> list[Row]:
    """Return the rows that run in a place, small; with names of packs or storages, only theirs."""
    return [
        row
        for row in rows(scale_of)
        if row.place == place and (not parts or {row.pack, row.storage} & {*parts})
    ]


def where_table() -> str:
    lines = ["| Pack | Storage | Runs in | Tools | Cases | Tested |", "|---|---|---|---|---|---|"]
    for row in rows():
        place = WHERE[row.key]
        lines.append(
            f"| `{row.pack}` | {row.storage} | {row.side} | {row.tools} | {len(row.cases)} "
            f"| {place} |"
        )
    return "\n".join(lines)


def planned_table() -> str:
    """What each pack costs at its published size, if all its storages were directories."""
    lines = ["| Pack | Cases | Duration | Written at most |", "|---|---|---|---|"]
    for name in PACKS:
        pack = load(name)
        storages = {str(one): KINDS["dir"].holds for one in pack.axes["storage"]}
        plan = make_plan(expand(pack, node="lab", storages=storages), seed=pack.seed)
        lines.append(
            f"| `{name}` | {len(plan.cases)} | {show_seconds(plan.seconds)} "
            f"| {show_bytes(plan.bytes_written)} |"
        )
    return "\n".join(lines)


def beside_table() -> str:
    lines = [
        "| Pack | Published table | Published rows | Matched rows | Matched cases |",
        "|---|---|---|---|---|",
    ]
    for name in PACKS:
        pack = load(name)
        if not pack.published:
            lines.append(f"| `{name}` | charts without numbers | 0 | 0 | 0 |")
            continue
        series = published(pack.published)
        beside = [series.matching(known_of(case)) for case in all_cases(pack)]
        found = [row for row in beside if row is not None]
        lines.append(
            f"| `{name}` | `{series.name}` | {len(series.rows)} "
            f"| {len({row.line for row in found})} | {len(found)} |"
        )
    return "\n".join(lines)


def known_of(case: Case) -> dict[str, str | int | bool]:
    """Return what a row of results says of its case, as the tables do."""
    scenario, workload = case.scenario, case.workload
    return {**scenario.meaning(), **scenario.labels(), "tool": workload.tool, **workload.parameters}


SECTIONS: Final = {"where": where_table, "planned": planned_table, "beside": beside_table}
PAGES: Final = {"where": REPORT, "planned": PAGE, "beside": REPORT}
"""Section -> the page that contains it."""


def marked(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=\n<!-- /{name} -->)", re.DOTALL)


def section(name: str) -> tuple[str, str]:
    """Return (present, expected) text of a table."""
    match = marked(name).search(PAGES[name].read_text("utf-8"))
    return match.group() if match else "", SECTIONS[name]()


def update(name: str) -> None:
    """Write a table to its page."""
    path, (_, expected) = PAGES[name], section(name)
    text = marked(name).sub(lambda _: expected, path.read_text("utf-8"))
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    for title in SECTIONS:
        update(title)
