"""Files of runs, format `pvebench-runs/1`: a run with its environment and definition, for others.

Lines are those of a push to the hub. Foreign files are not trusted: lines, sizes and types have
limits, texts are sanitized, and digests of environments and keys are computed again. The
fingerprint of a definition is that of the site that measured it.
"""

from __future__ import annotations

import gzip
import hmac
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, NoReturn, cast

from pvebench import __version__
from pvebench.config import shipped_packs
from pvebench.errors import ConfigError, Problem
from pvebench.files import open_regular
from pvebench.log import log
from pvebench.model.definition import Definition
from pvebench.model.disk import Cache, Disk, HostCache
from pvebench.model.environment import FACT_NAMES, Environment
from pvebench.model.run import Sample, Unit
from pvebench.model.run_metrics import impossible_number
from pvebench.model.scenario import Layout
from pvebench.model.workload import Direction, case_key
from pvebench.sanitize import printable
from pvebench.store.records import StoredRun
from pvebench_fleet import FleetMessageInvalid
from pvebench_fleet.fleet_log import MAX_LINE_BYTES, Entry, lines_of
from pvebench_fleet.imported import ImportedRun
from pvebench_fleet.wire import (
    CycleLine,
    DefinitionLine,
    EnvironmentLine,
    RunLine,
    RunsHead,
    Shape,
    read_file_line,
)

MAX_FILE_BYTES: Final = 4 * 1024**3
"""Maximum size of a file, uncompressed: some years of a site."""
MAX_OTHER_BYTES: Final = 64 * 1024**2
"""Maximum size of all lines but runs, which stay in memory: thousands of cases have 10 MB."""
SMALLEST: Final = 1e-18
"""Smallest value but 0; ratios of smaller ones would not be finite."""
_GZIP: Final = ".gz"


# --- Writing.


def write_runs(
    file: IO[bytes],
    stored: Iterable[Entry],
    *,
    simulated: bool,
    pseudonyms: Callable[[Entry], Entry] | None = None,
) -> int:
    """Write stored runs as `FleetLog.stored` yields them; return their number.

    Args:
        pseudonyms: replaces names in the data of a line; None: names stay.
    """
    anonymous = pseudonyms is not None
    head = RunsHead(version=__version__, simulated=simulated, anonymous=anonymous)
    file.write(head.model_dump_json().encode() + b"\n")
    known, lost, count = set[str](), set[str](), 0
    for entry in stored:
        shown = pseudonyms(entry) if pseudonyms else entry
        used = set(known)
        lines = lines_of(shown, used)
        try:
            _check(shown.data or {}, lines, lost)
        except FleetMessageInvalid as error:
            log.warning("left out of the export", kind=entry.kind, reason=error.reason)
            lost |= _names(shown.data or {})
            continue
        known = used
        file.writelines(line + b"\n" for line in lines)
        count += entry.kind == "run"
    return count


def _check(data: Mapping[str, Any], lines: Sequence[bytes], lost: set[str]) -> None:
    """Raise FleetMessageInvalid for text with NUL, which SQLite accepts, and runs that need it."""
    if not lost.isdisjoint(data.get(name, "") for name in ("environment", "cycle", "case")):
        raise FleetMessageInvalid("it refers to a line that was left out")
    for line in lines:
        read_file_line(line)


def _names(data: Mapping[str, Any]) -> set[str]:
    return {data[name] for name in ("digest", "key", "uid") if name in data}


@contextmanager
def opened_for_writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, with gzip by its name. Raises OSError."""
    with path.open("wb") as raw:
        if path.suffix != _GZIP:
            yield raw
            return
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
            yield cast(IO[bytes], packed)


# --- Reading.


@contextmanager
def opened(path: Path, rename: Mapping[str, str]) -> Iterator[RunsFile]:
    """Open a file of runs; `rename`: name of a node in the file -> its name here.

    Raises:
        ConfigError: it is unreadable, not a regular file, or its head is invalid. Reading the runs
            raises it too, with file, line and column.
    """
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(open_regular(path))
        except (OSError, ValueError) as error:  # a NUL in the name
            raise _error(path, 0, 0, f"cannot be read: {error}") from error
        packed = gzip.GzipFile(fileobj=raw, mode="rb") if path.suffix == _GZIP else raw
        yield RunsFile(path, cast(IO[bytes], packed), rename)


def _error(path: Path, line: int, column: int, message: str) -> ConfigError:
    return ConfigError([Problem(str(path), line, column, message)])


class RunsFile:
    """An open file of runs.

    Attributes:
        head: its first line.
    """

    def __init__(self, path: Path, file: IO[bytes], rename: Mapping[str, str]) -> None:
        self._path, self._file, self._rename = path, file, rename
        self._shapes: dict[str, list[Callable[[float], Sample]]] = {}
        self._environments: dict[str, Environment] = {}
        self._cycles: dict[str, dict[str, Any]] = {}
        self._definitions: dict[str, Definition] = {}
        self._nodes: dict[str, str] = {}
        self._line = self._other_bytes = 0
        self._lines = self._read_lines()
        head = self._parsed(next(self._lines, b""))
        if not isinstance(head, RunsHead):
            self._fail(f"the first line is not the head of a file of runs, but {head.kind!r}")
        self.head = head

    def runs(self) -> Iterator[ImportedRun]:
        """Yield the runs in the order of the file."""
        for text in self._lines:
            line = self._parsed(text)
            if isinstance(line, RunLine):
                yield self._run(line)
                continue
            self._other_bytes += len(text)
            if self._other_bytes > MAX_OTHER_BYTES:
                self._fail(f"more than {MAX_OTHER_BYTES} bytes of lines that are no runs")
            self._keep(line)
        if unused := self._rename.keys() - self._nodes.values():
            raise _error(self._path, 0, 0, f"no runs of node {min(unused)!r}")

    def _fail(self, message: str, column: int = 1) -> NoReturn:
        raise _error(self._path, self._line, column, message)

    def _read_lines(self) -> Iterator[bytes]:
        size = 0
        try:
            while text := self._file.readline(MAX_LINE_BYTES + 1):
                self._line += 1
                size += len(text)
                if len(text) > MAX_LINE_BYTES:
                    self._fail(f"line longer than {MAX_LINE_BYTES} bytes")
                if size > MAX_FILE_BYTES:
                    self._fail(f"file larger than {MAX_FILE_BYTES} bytes, uncompressed")
                yield text
        except (OSError, EOFError, zlib.error) as error:
            self._line += 1
            self._fail(f"cannot be read: {error}")

    def _parsed(self, text: bytes) -> Any:
        try:
            return read_file_line(text)
        except FleetMessageInvalid as error:
            self._fail(error.reason, error.column)

    def _keep(self, line: Any) -> None:
        match line:
            case Shape():
                self._shapes[line.shape] = self._shape(line)
            case EnvironmentLine():
                facts = {_shown(name): _shown(text) for name, text in line.facts.items()}
                node = self._node(line.node)
                simulated = self.head.simulated
                environment = Environment(node=node, facts=facts, simulated=simulated)
                self._environments[line.digest] = environment
            case CycleLine():
                row = line.model_dump(exclude={"kind", "seq"})
                texts = {name: _shown(row[name]) for name in ("uid", "pack", "tier")}
                self._cycles[line.uid] = {**row, **texts, "node": self._node(line.node)}
            case DefinitionLine():
                data = _shown(line.definition.as_data())
                data["labels"]["node"] = self._node(data["labels"]["node"])
                self._definitions[line.key] = definition = Definition.from_data(data)
                try:
                    _check_options(definition)
                except ValueError as error:
                    self._fail(f"definition: {error}")
            case _:
                self._fail("a second head; import files one by one")

    def _node(self, name: str) -> str:
        shown = self._rename.get(name) or printable(name)
        if self._nodes.setdefault(shown, name) != name:
            self._fail(f"nodes {self._nodes[shown]!r} and {name!r} would both be {shown!r}")
        return shown

    def _shape(self, line: Shape) -> list[Callable[[float], Sample]]:
        """Return a maker of each sample; raises ConfigError."""
        if len({number[:3] for number in line.numbers}) < len(line.numbers):
            self._fail("numbers: a number occurs twice")
        try:
            return [_maker(*number) for number in line.numbers]
        except ValueError as error:
            self._fail(f"numbers: {error}")

    def _run(self, line: RunLine) -> ImportedRun:
        try:
            shape, definition = self._shapes[line.shape], self._definitions[line.case]
            environment, cycle = self._environments[line.environment], self._cycles[line.cycle]
        except KeyError as error:
            self._fail(f"no earlier line has {str(error.args[0])[:100]!r}, which the run refers to")
        if len(shape) != len(line.values):
            self._fail(f"{len(line.values)} values, but its shape has {len(shape)}")
        samples = tuple(make(value) for make, value in zip(shape, line.values, strict=True))
        if reason := impossible_number((sample.metric for sample in samples), line.values):
            self._fail(reason)
        if definition.node != environment.node:
            self._fail("its case and environment are of different nodes")
        run = StoredRun(
            number=line.number,
            uid=_shown(line.uid),
            case_key=case_key(definition.node, definition.name, definition.fingerprint),
            node=definition.node,
            scenario=definition.scenario,
            workload=definition.workload,
            definition=definition,
            cycle=cycle["uid"],
            environment=environment.digest,
            started=datetime.fromtimestamp(line.started, UTC),
            finished=datetime.fromtimestamp(line.finished, UTC),
            outcome=line.outcome,
            reason=_shown(line.reason),
            pass_number=line.pass_number,
            samples=samples,
        )
        return ImportedRun(run=run, environment=environment, cycle=cycle, revision=line.revision)


def _check_options(definition: Definition) -> None:
    """Raise ValueError for options of which readers need the meaning."""
    options, parameters = definition.options, definition.parameters
    Cache(options.get("cache", ""))
    HostCache(options.get("host_cache", HostCache.DROPPED))
    for name in ("bus", "format", "aio", "iothread", "scsihw"):
        if not options.get(name):
            raise ValueError(f"{name} is missing")
    for name in ("bs", "iodepth", "numjobs"):
        if not 0 <= int(parameters.get(name, 1)) <= 2**40:
            raise ValueError(f"{name} out of range")


def _maker(metric: str, direction: str, part: str, unit: str) -> Callable[[float], Sample]:
    way, base = Direction(direction) if direction else None, Unit(unit)
    name, of = _shown(metric), _shown(part)
    return lambda value: Sample(name, way, value if abs(value) >= SMALLEST else 0.0, base, of)


def _shown(data: Any) -> Any:
    """Return text, or all text of plain data, as it may be shown."""
    match data:
        case str():
            return printable(data)
        case dict():
            return {_shown(key): _shown(value) for key, value in data.items()}
        case list():
            return [_shown(value) for value in data]
        case _:
            return data


# --- Pseudonyms

OPTIONS: Final = frozenset(
    {
        *(option.name for kind in (Disk, Layout) for option in fields(kind)),
        *("memory_bytes", "cpus", "volume_bytes", "host_cache"),
    }
) - {"file_name"}
_IDENTITY: Final = "storage_identity"


class Pseudonyms:
    """Replaces names in lines, which come in the order of `FleetLog.stored`."""

    def __init__(self, *, simulated: bool) -> None:
        self._simulated = simulated
        self._key = secrets.token_bytes(32)
        self._names: dict[tuple[str, str], str] = {}
        self._digests: dict[str, str] = {}
        self._cases: dict[str, str] = {}
        self._replace: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "environment": self._environment,
            "cycle": self._cycle,
            "definition": self._definition,
            "run": self._run,
        }

    def replaced(self, entry: Entry) -> Entry:
        """Return a line without names."""
        data = None if entry.data is None else self._replace[entry.kind](dict(entry.data))
        return Entry(entry.seq, entry.kind, data)

    def _name(self, kind: str, name: str) -> str:
        """Return `node1` for the first node, and so on."""
        number = sum(known == kind for known, _ in self._names) + 1
        return self._names.setdefault((kind, name), f"{kind}{number}")

    def _digest(self, text: str) -> str:
        """Return a digest that cannot be compared with guessed names: a key is part of it."""
        return hmac.digest(self._key, text.encode(), "sha256").hex()[:16]

    def _environment(self, data: dict[str, Any]) -> dict[str, Any]:
        environment = Environment(
            node=self._name("node", data["node"]),
            facts={name: text for name, text in data["facts"].items() if name in FACT_NAMES},
            simulated=self._simulated,
        )
        self._digests[data["digest"]] = environment.digest
        return {
            "digest": environment.digest,
            "node": environment.node,
            "slug": environment.slug,
            "facts": dict(environment.facts),
        }

    def _cycle(self, data: dict[str, Any]) -> dict[str, Any]:
        pack = data["pack"]
        shown = pack if pack in shipped_packs() else self._name("pack", pack)
        return {**data, "node": self._name("node", data["node"]), "pack": shown}

    def _definition(self, data: dict[str, Any]) -> dict[str, Any]:
        definition: dict[str, Any] = data["definition"]
        labels = definition["labels"]
        node = self._name("node", labels["node"])
        storage = self._name("storage", labels["storage"])
        _, dot, rest = labels["scenario"].partition(f"{labels['storage']}.")
        scenario = f"{storage}.{rest}" if dot else self._digest(labels["scenario"])
        fingerprint = self._digest(definition["fingerprint"])
        key = f"{node}/{scenario}/{definition['workload']['slug']}/{fingerprint}"
        self._cases[data["key"]] = key
        names = {"node": node, "storage": storage, "scenario": scenario}
        changed = {
            "labels": {**labels, **names},
            "scenario": self._options(definition["scenario"]),
            "fingerprint": fingerprint,
        }
        return {**data, "key": key, "definition": {**definition, **changed}}

    def _options(self, options: Mapping[str, str]) -> dict[str, str]:
        shown = {name: text for name, text in options.items() if name in OPTIONS}
        if _IDENTITY in options:
            shown[_IDENTITY] = self._digest(options[_IDENTITY])
        return shown

    def _run(self, data: dict[str, Any]) -> dict[str, Any]:
        # A reason quotes programs, with paths and addresses.
        return {
            **data,
            "case": self._cases[data["case"]],
            "environment": self._digests[data["environment"]],
            "reason": "",
        }
