"""What is read of others: one function each, from bytes to nothing or one of our own errors.

A target returns if the bytes were understood, and raises PvebenchError if they were refused. All
else that it raises is a fault of ours: a traceback, an error without bound, a published number
that is not in the input.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fuzz.by_shell import container, container_seeds, node_request, node_request_seeds
from fuzz.by_ssh import node, node_seeds
from fuzz.fleet import fleet_answer, fleet_push, fleet_seeds, run_file, run_file_seeds
from fuzz.numbers_in import NumbersIn, check_traced
from fuzz.outside import (
    agent,
    agent_seeds,
    any_of,
    database,
    database_seeds,
    http,
    http_seeds,
    journal,
    journal_seeds,
    lock,
    proxmox,
    proxmox_seeds,
    qmp,
    qmp_seeds,
)
from pvebench.config import load_pack, load_settings
from pvebench.errors import PvebenchError
from pvebench.model.run_metrics import JUDGED
from pvebench.model.workload import Workload
from pvebench.workloads import TOOLS
from pvebench_lab.cli.judge import read_history
from pvebench_lab.references.columns import ColumnMapping
from pvebench_lab.references.library import read_file
from testing.packs import tool_workload

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
FOUND = Path(__file__).parent / "found"
LONGEST_ERROR = 20_000
"""Characters."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader.

    Attributes:
        seeds: real input.
        runs: how many inputs it gets in every run of the tests.
    """

    read: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    runs: int

    def __call__(self, content: bytes) -> bool:
        """Return whether the input was understood; anything but our own errors comes through."""
        try:
            self.read(content)
        except PvebenchError as error:
            said = str(error)
        else:
            return True
        assert len(said) < LONGEST_ERROR, "the error has no bound"
        assert said.strip(), "the error says nothing"
        assert said.replace("\n", "").isprintable(), "a terminal would obey the error"
        return False


def files(*patterns: str, under: Path = GOLDEN) -> list[bytes]:
    """Return what the files have, smallest first."""
    found = sorted({path for pattern in patterns for path in under.glob(pattern)})
    assert found, patterns
    return sorted((path.read_bytes() for path in found), key=len)


@functools.cache
def _directory() -> Path:
    """Return a directory in RAM, gone with the process."""
    kept = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _file(name: str, content: bytes) -> Path:
    path = _directory() / name
    path.write_bytes(content)
    return path


# --- what tools print ---

_TOOLS: dict[str, list[Workload]] = {
    "fio": [
        tool_workload("fio", {"bs": "4k", **options}, ramp_seconds=0.5, runtime_seconds=2)
        for options in (
            {"rw": "randread", "iodepth": 32},
            {"rw": "randrw", "iodepth": 4, "rwmixread": 75},
            {"rw": "randwrite", "fsync": 1},
        )
    ],
    "ioping": [tool_workload("ioping", {"count": 10})],
    "sysbench": [tool_workload("sysbench", {"mode": "rndrw", "size": "256M"})],
    "bonnie++": [tool_workload("bonnie++", {"size": "64M"})],
    "hdparm": [tool_workload("hdparm", {})],
    "dd": [tool_workload("dd", {"rw": "read"})],
}


def _tool(name: str) -> Callable[[bytes], None]:
    def read(content: bytes) -> None:
        output = content.decode("utf-8", "replace")

        def parse(workload: Workload) -> None:
            parsed = TOOLS[name].parse(workload, output, {})
            check_traced(workload, output, parsed)

        any_of(functools.partial(parse, workload) for workload in _TOOLS[name])

    return read


def _fio_log(content: bytes) -> None:
    log = content.decode("utf-8", "replace")
    room, workload = TOOLS["fio"], _TOOLS["fio"][1]
    parsed = room.parse(workload, _mixed(), {"fio_iops.log": log})
    there = sum(
        int(number)
        for line in log.splitlines()
        for number in line.split(", ")[1:2]
        if number.isdecimal() and len(number) < 16
    )
    for steps in parsed.intervals.values():
        assert len(steps) < 100, "more intervals than the window has"
        assert sum(steps) <= there * (1 + 1e-9), "more I/O than was logged"


@functools.cache
def _mixed() -> str:
    return (GOLDEN / "fio" / "mixed.json").read_text("utf-8")


# --- files of people ---


def _pack(content: bytes) -> None:
    load_pack(_file("pack.yaml", content))


def _settings(content: bytes) -> None:
    load_settings(_file("settings.yaml", content))


_COLUMNS = ColumnMapping(
    {"rw": "rw", "iops": "iops", "bs": "bs", "latency_mean": "ms"}, {"latency_mean": "ms"}
)


def _imported(content: bytes) -> None:
    series = read_file(_file("table.csv", content), name="x", date="2026", mapped=_COLUMNS)
    _check_rows(content, series.contradictions(), [row.values for row in series.rows])


def _known_form(content: bytes) -> None:
    series = read_file(_file("known.csv", content), name="x", date="2026")
    _check_rows(content, series.contradictions(), [])
    values = [value for row in series.rows for value in row.values.values()]
    assert all(math.isfinite(value) and value >= 0 for value in values)


def _check_rows(content: bytes, told: object, rows: list[dict[tuple[str, str], float]]) -> None:
    assert len(repr(told)) < 1000 * (len(content) + 1)
    plain = content.decode("utf-8-sig")
    for character in " \u00a0\u202f'\u2019":
        plain = plain.replace(character, "")
    # Grouped either way, in thousands (k) or not: one of them must be it.
    texts = (plain, plain.replace(",", ""), plain.replace(".", ""))
    there = [NumbersIn(text) for text in texts]
    for (metric, _), value in ((key, value) for row in rows for key, value in row.items()):
        scaled = value * 1e3 if metric == "clat_mean" else value
        shown = (scaled, scaled / 1e3, scaled / 1e6)
        assert any(one in numbers for one in shown for numbers in there), f"{value} is not there"


def _judged(content: bytes) -> None:
    path = _file("history.csv", content)
    material = read_history(path, JUDGED["throughput"])
    there = NumbersIn(content.decode("utf-8-sig"))
    for history in material.histories:
        assert all(point.value in there for point in history.points), "a value is not there"


def _histories() -> list[bytes]:
    lines = [f"{3600 * n},{100 + n % 7}.5,e{n // 8},c{n % 2}\n" for n in range(24)]
    return [
        ("time,value,environment,case\n" + "".join(lines)).encode(),
        b"value,time\n5,2026-03-01T12:00:00Z\n6e3,2026-03-01T13:00:00+02:00\n",
    ]


def _tables() -> list[bytes]:
    return [
        b'rw,bs,iops,ms\nread,4k,1000,0.5\nwrite,64k,"1,234.5",2\n',
        b"rw;bs;iops;ms\nrandread;4k;15,5k;0,25\nrandwrite;4k;1.234,5;3\n",
        b"rw\tbs\tiops\tms\nread\t4k\t1 234\t0.5\nread\t4k\t-\t0.5\n",
    ]


def _named_tables() -> list[bytes]:
    return [
        b"rw,bs,iodepth,iops\nrandread,4k,1,1000\nrandwrite,4k,8,900.5\n",
        b'direction;bs;bandwidth\nread;1M;"1.234,5"\n',
    ]


SETTINGS = b"""\
node: lab
driver: simulated
state: /tmp/x
packs: [quick.yaml]
storages:
  local: {kind: dir, path: /srv}
quiet_hours: ["22:00-06:00"]
keep_runs: 30d
"""

TARGETS: dict[str, Target] = {
    "packs": Target(_pack, lambda: files("scenarios/quick.yaml", under=ROOT), 30),
    "settings": Target(_settings, lambda: [SETTINGS], 80),
    "fio": Target(_tool("fio"), lambda: files("fio/*.json"), 300),
    "fio_log": Target(_fio_log, lambda: files("fio/*.log"), 100),
    "ioping": Target(_tool("ioping"), lambda: files("ioping/*"), 200),
    "sysbench": Target(_tool("sysbench"), lambda: files("sysbench/*.txt"), 300),
    "bonnie": Target(_tool("bonnie++"), lambda: files("bonnie/*.csv"), 300),
    "hdparm": Target(_tool("hdparm"), lambda: files("hdparm/*.txt"), 300),
    "dd": Target(_tool("dd"), lambda: files("dd/*.txt"), 300),
    "import": Target(_imported, _tables, 300),
    "import_known": Target(_known_form, _named_tables, 200),
    "judge": Target(_judged, _histories, 200),
    "agent": Target(agent, agent_seeds, 200),
    "qmp": Target(qmp, qmp_seeds, 25),
    "proxmox": Target(proxmox, proxmox_seeds, 200),
    "node": Target(node, node_seeds, 200),
    "node_request": Target(node_request, node_request_seeds, 30),
    "container": Target(container, container_seeds, 12),
    "http": Target(http, http_seeds, 60),
    "fleet_push": Target(fleet_push, fleet_seeds, 200),
    "fleet_answer": Target(fleet_answer, fleet_seeds, 200),
    "run_file": Target(
        lambda content: run_file(_file("runs.ndjson", content)), run_file_seeds, 200
    ),
    "journal": Target(journal, journal_seeds, 300),
    "lock": Target(lock, lambda: [b"4711\n", b"", b"4711 a.service"], 100),
    "database": Target(database, database_seeds, 6),
}


def found(name: str) -> Iterator[Path]:
    """Yield the inputs that once broke a target."""
    yield from sorted((FOUND / name).glob("*"))
