"""Reading a stored run's raw output again: a parser's mistake is mended without measuring again.

Of a run's samples some come from the tool's output, some from the host and the hypervisor, and
some are worked out from both. The first are read again, the second stay, the third are worked out
again where the first have changed; where they have not, the run stays as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pvebench.errors import PvebenchError
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.plausibility import PlausibilityCheck
from pvebench.model.run import Outcome, Sample, rates
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.workload import Case, Caveat, Direction, Workload
from pvebench.runner.outcome import Circumstances, judge, slopes
from pvebench.store import Store, StoredRun
from pvebench.store.current import HOST_ROW_AGE
from pvebench.workloads import TOOLS

MEASURED: Final = frozenset(
    {
        "boot_time",
        "disk_margin",
        "disk_wear",
        "disturbed",
        "guest_cpu_wait",
        "host_bytes",
        "host_context_switches",
        "vm_exits",
        "host_cpu",
        "host_pressure",
        "md_sync",
        "network_limit",
        "network_round_trip",
        "qemu_bytes",
        "qemu_operations",
        "steady_range",
        "steady_slope",
        "steady_time",
        "storage_used",
        "window",
        "zfs_cache",
        "zfs_fragmentation",
        "zfs_scan",
    }
)
"""Metrics that were measured beside the tool: its output says nothing of them."""
WORKED_OUT: Final = frozenset(
    {"device_share", "flush_share", "guest_to_host", "network_share", "implausibility"}
)
"""Metrics that follow from the tool's and the measured ones. All others are the tool's."""
_SAME: Final = 1e-9
"""Relative difference that comes of working a number out another way."""


class Unreadable(Exception):
    """The raw output cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Correction:
    """One sample before and after; None: it was not there, it is no longer there."""

    metric: str
    direction: Direction | None
    part: str
    old: Sample | None
    new: Sample | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """What a run is after its output was read again.

    Attributes:
        changes: empty: all is as it was.
        clear: it is implausible for reasons that are gone. It stays so: how noisy its pack lets a
            run be is not kept with it.
    """

    run: StoredRun
    changes: tuple[Correction, ...] = ()
    outcome: Outcome
    reason: str
    clear: bool = False


class Rereader:
    """Reads runs of a store again; changes nothing.

    Args:
        tool: only of this tool; None: all.
    """

    def __init__(self, store: Store, tool: str | None) -> None:
        self._store = store
        self._tool = tool
        self._host: dict[int, Mapping[Direction, float]] = {}

    def wants(self, run: StoredRun) -> bool:
        """Return whether the run is of the chosen tool."""
        return self._tool is None or run.definition.tool == self._tool

    def reread(self, run: StoredRun, evidence: Mapping[str, str]) -> Reread:
        """Return what today's parser makes of a run.

        Args:
            evidence: of the run, with its `output`.

        Raises:
            Unreadable: the parser refuses the output.
        """
        case, told = read_output(run, evidence)
        known = [one for one in run.samples if one.metric not in MEASURED | WORKED_OUT]
        changes = _differences(known, told)
        host = self._host_rates(case, run)
        if not changes and not _compared_otherwise(run, host):
            return Reread(run=run, outcome=run.outcome, reason=run.reason)
        measured = [one for one in run.samples if one.metric in MEASURED]
        judgement = judge(case, [*measured, *told], _around(run, evidence, host))
        worked_out = [one for one in run.samples if one.metric in WORKED_OUT]
        changes += _differences(worked_out, judgement.samples)
        outcome, reason = run.outcome, run.reason
        if judgement.implausibilities:
            outcome, reason = Outcome.IMPLAUSIBLE, judgement.reason
        return Reread(
            run=run,
            changes=tuple(changes),
            outcome=outcome,
            reason=reason,
            clear=outcome is Outcome.IMPLAUSIBLE and not judgement.implausibilities,
        )

    def _host_rates(self, case: Case, run: StoredRun) -> Mapping[Direction, float]:
        """Return the rates of the host's run that this one was compared with, as read today."""
        if not any(one.metric == "guest_to_host" for one in run.samples):
            return {}
        host = self._store.mending.newest_good(
            (run.node, case.scenario.host_slug, run.workload),
            run.definition.device_conditions,
            before=run,
            age=HOST_ROW_AGE,
        )
        if host is None:
            return {}
        if host.number not in self._host:
            evidence = self._store.evidence(host.number) if self.wants(host) else {}
            self._host[host.number] = rates(_present(host, evidence))
        return self._host[host.number]


def _around(
    run: StoredRun, evidence: Mapping[str, str], host: Mapping[Direction, float]
) -> Circumstances:
    """Return what the run was judged by, as far as the run itself still tells."""
    doubts = {one.part for one in run.samples if one.metric == "implausibility"}
    return Circumstances(
        host_cpus=_host_cpus(evidence),
        local=any(one.metric == "device_share" for one in run.samples),
        filled=PlausibilityCheck.NOT_FILLED not in doubts,
        host=host,
    )


def _compared_otherwise(run: StoredRun, host: Mapping[Direction, float]) -> bool:
    """Return whether the host's run is read otherwise today than when `run` was made."""
    guest = rates(run.samples)
    return any(
        not math.isclose(one.value, guest[one.direction] / host[one.direction], rel_tol=_SAME)
        for one in run.samples
        if one.metric == "guest_to_host" and one.direction in guest and host.get(one.direction)
    )


def read_output(run: StoredRun, evidence: Mapping[str, str]) -> tuple[Case, list[Sample]]:
    """Return the samples that are the tool's own, as today's parser reads them.

    Raises:
        Unreadable: it refuses the output, or stumbles over it.
    """
    logs = {name: text for name, text in evidence.items() if name.endswith(".log")}
    try:
        case = _case(run)
        room = TOOLS[case.workload.tool]
        parsed = room.parse(case.workload, evidence["output"], logs)
    except PvebenchError as error:
        raise Unreadable(error.reason) from error
    except Exception as error:
        # A definition of an older pvebench, or our own mistake: one run pays for it.
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    return case, [*parsed.samples, *slopes(parsed)]


def can_be_read(run: StoredRun, evidence: Mapping[str, str]) -> bool:
    """Return whether today's parser reads the output of a run that failed."""
    try:
        return bool(read_output(run, evidence)[1])
    except Unreadable:
        return False


def _present(run: StoredRun, evidence: Mapping[str, str]) -> Iterable[Sample]:
    try:
        return read_output(run, evidence)[1] if "output" in evidence else run.samples
    except Unreadable:
        return run.samples


def _differences(old: Iterable[Sample], new: Iterable[Sample]) -> list[Correction]:
    before = {(one.metric, one.direction, one.part): one for one in old}
    after = {(one.metric, one.direction, one.part): one for one in new}
    return [
        Correction(*key, before.get(key), after.get(key))
        for key in {**before, **after}
        if not _same(before.get(key), after.get(key))
    ]


def _same(old: Sample | None, new: Sample | None) -> bool:
    if old is None or new is None:
        return old is new
    return old.unit is new.unit and math.isclose(old.value, new.value, rel_tol=_SAME)


def _host_cpus(evidence: Mapping[str, str]) -> int:
    return int(json.loads(evidence.get("host", "{}")).get("end", {}).get("host", {}).get("cpus", 0))


def _case(run: StoredRun) -> Case:
    """Return the case of a run, as far as parsers and the rules of honesty look at it."""
    told, options = run.definition, run.definition.options
    drive_cache, read_ahead = options.get("drive_cache"), options.get("read_ahead")
    disk = Disk(
        bus=Bus(told.bus),
        format=Format(told.format),
        cache=Cache(told.cache),
        drive_cache=drive_cache == "1" if drive_cache else None,
        read_ahead=int(read_ahead) if read_ahead else None,
        scheduler=options.get("scheduler") or None,
    )
    return Case(
        scenario=Scenario(
            node=told.node,
            storage=told.storage,
            disk=disk,
            machine=Machine(memory_bytes=int(options["memory_bytes"]), cpus=int(options["cpus"])),
            volume_bytes=int(options["volume_bytes"]),
        ),
        workload=Workload(
            slug=told.workload,
            tool=told.tool,
            title=told.title,
            parameters=told.parameters,
            directions=told.directions,
            ramp_seconds=told.ramp_seconds,
            runtime_seconds=told.runtime_seconds,
            caveats=tuple(map(Caveat, told.caveats)),
        ),
    )
