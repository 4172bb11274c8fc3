"""Parsing of stored raw output, to correct a parser's error without new runs.

A run's samples come from the tool's output, from the host and the hypervisor, or are derived from
both. The first are parsed again, the second stay, the third are derived again if the first have
changed. Otherwise the run stays as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_args, get_type_hints

from pvebench.errors import PvebenchError
from pvebench.model.consistency import PlausibilityCheck
from pvebench.model.definition import Definition
from pvebench.model.disk import Disk, HostCache
from pvebench.model.figure import Source
from pvebench.model.run import Outcome, Sample
from pvebench.model.run_metrics import (
    DEVICE_SHARE,
    FIGURES,
    GUEST_TO_HOST,
    IMPLAUSIBILITY,
    of_source,
    rates,
)
from pvebench.model.scenario import Layout, Machine, Scenario
from pvebench.model.workload import Case, Caveat, Direction, Workload
from pvebench.runner.plausibility import check_run
from pvebench.runner.steady import slopes
from pvebench.store.live_results import HOST_RUN_AGE
from pvebench.store.records import StoredRun
from pvebench.store.store import Store
from pvebench.workloads import TOOLS

T = TypeVar("T", Disk, Layout, Machine)
_SAME: Final = 1e-9
"""Relative difference of numbers that are computed in another way."""


class UnreadableOutput(Exception):
    """Raw output that cannot be parsed; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Correction:
    """One sample before and after; None: no such sample."""

    metric: str
    direction: str
    part: str
    old: Sample | None
    new: Sample | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReparsedRun:
    """A run after its output was parsed again.

    Attributes:
        changes: empty: nothing changed.
        clear: the run is implausible, but no check fails anymore. The outcome stays, because the
            noise limit of its pack is not stored with the run.
    """

    run: StoredRun
    changes: tuple[Correction, ...] = ()
    outcome: Outcome
    reason: str
    clear: bool = False


class Reparser:
    """Parser of stored runs; changes nothing.

    Args:
        tool: only runs of this tool; None: all.
    """

    def __init__(self, store: Store, tool: str | None) -> None:
        self._store = store
        self._tool = tool
        self._host: dict[int, Mapping[Direction, float]] = {}

    def wants(self, run: StoredRun) -> bool:
        """Return whether the run is of the selected tool."""
        return self._tool is None or run.definition.tool == self._tool

    def parse_again(self, run: StoredRun, evidence: Mapping[str, str]) -> ReparsedRun:
        """Return the run as the current parser reads it.

        Args:
            evidence: the run's evidence, with its `output`.

        Raises:
            UnreadableOutput: the parser rejects the output.
        """
        case, parsed = read_output(run, evidence)
        samples = _of(Source.TOOL, run)
        changes = _differences(samples, parsed)
        host = self._host_rates(case, run)
        if not changes and not _compared_otherwise(run, host):
            return ReparsedRun(run=run, outcome=run.outcome, reason=run.reason)
        measured = _of(Source.HOST, run)
        failed = {sample.part for sample in IMPLAUSIBILITY.of(run.samples)}
        end = json.loads(evidence.get("host", "{}")).get("end", {})
        plausibility = check_run(
            case,
            [*measured, *parsed],
            host_cpus=int(end.get("host", {}).get("cpus", 0)),
            local=bool(DEVICE_SHARE.of(run.samples)),
            filled=PlausibilityCheck.NOT_FILLED not in failed,
            host=host,
            simulated=self._store.simulated,
        )
        derived = _of(Source.DERIVED, run)
        changes += _differences(derived, plausibility.samples)
        outcome, reason = run.outcome, run.reason
        if plausibility.implausibilities:
            outcome, reason = Outcome.IMPLAUSIBLE, plausibility.reason
        return ReparsedRun(
            run=run,
            changes=tuple(changes),
            outcome=outcome,
            reason=reason,
            clear=outcome is Outcome.IMPLAUSIBLE and not plausibility.implausibilities,
        )

    def _host_rates(self, case: Case, run: StoredRun) -> Mapping[Direction, float]:
        """Return the rates of the host case that this run was compared with, as parsed now."""
        if not GUEST_TO_HOST.of(run.samples):
            return {}
        host = self._store.newest_good_run(
            (run.node, case.scenario.host_slug, run.workload),
            run.definition.device_conditions,
            before=run,
            age=HOST_RUN_AGE,
        )
        if host is None:
            return {}
        if host.number not in self._host:
            evidence = self._store.evidence(host.number) if self.wants(host) else {}
            self._host[host.number] = rates(_current_samples(host, evidence))
        return self._host[host.number]


def _of(source: Source, run: StoredRun) -> list[Sample]:
    """Return the samples of a source; a name that is no figure came from a parser's mistake."""
    names, tool = of_source(source), source is Source.TOOL
    return [s for s in run.samples if s.metric in names or (tool and s.metric not in FIGURES)]


def _compared_otherwise(run: StoredRun, host: Mapping[Direction, float]) -> bool:
    """Return whether the host case has other rates now than when `run` was compared with it."""
    guest = rates(run.samples)
    return any(
        not math.isclose(s.value, guest[s.direction] / host[s.direction], rel_tol=_SAME)
        for s in GUEST_TO_HOST.of(run.samples)
        if s.direction in guest and host.get(s.direction)
    )


def read_output(run: StoredRun, evidence: Mapping[str, str]) -> tuple[Case, list[Sample]]:
    """Return the samples of the tool's output, as the current parser reads them.

    Raises:
        UnreadableOutput: the parser rejects the output or fails.
    """
    logs = {name: text for name, text in evidence.items() if name.endswith(".log")}
    try:
        case = restored_case(run.definition)
        tool = TOOLS[case.workload.tool]
        parsed = tool.parse(case.workload, evidence["output"], logs)
    except PvebenchError as error:
        raise UnreadableOutput(error.reason) from error
    except Exception as error:
        # An unknown definition or an error of the parser: only this run is skipped.
        raise UnreadableOutput(f"{type(error).__name__}: {error}") from error
    return case, [*parsed.samples, *slopes(parsed)]


def can_be_read(run: StoredRun, evidence: Mapping[str, str]) -> bool:
    """Return whether the current parser can read the output of a failed run."""
    try:
        return bool(read_output(run, evidence)[1])
    except UnreadableOutput:
        return False


def _current_samples(run: StoredRun, evidence: Mapping[str, str]) -> Iterable[Sample]:
    try:
        return read_output(run, evidence)[1] if "output" in evidence else run.samples
    except UnreadableOutput:
        return run.samples


def _differences(old: Iterable[Sample], new: Iterable[Sample]) -> list[Correction]:
    before = {sample.key: sample for sample in old}
    after = {sample.key: sample for sample in new}
    return [
        Correction(*key, before.get(key), after.get(key))
        for key in {**before, **after}
        if not _same(before.get(key), after.get(key))
    ]


def _same(old: Sample | None, new: Sample | None) -> bool:
    if old is None or new is None:
        return old is new
    return old.unit is new.unit and math.isclose(old.value, new.value, rel_tol=_SAME)


def _from_text(of: type[T], options: Mapping[str, str]) -> T:
    """Return a disk, layout or VM from its options, which are all in `Scenario.meaning`."""
    hints = get_type_hints(of)
    return of(**{name: _value(hints[name], options[name]) for name in hints.keys() & options})


def _value(hint: Any, text: str) -> Any:
    """Return a value of which `option_text` is the text."""
    kind, *optional = get_args(hint) or (hint,)
    if optional and not text:
        return None
    return text == "1" if kind is bool else kind(text)


def restored_case(definition: Definition) -> Case:
    """Return the case of a definition, as far as parsers and plausibility checks need it."""
    options = definition.options
    return Case(
        scenario=Scenario(
            node=definition.node,
            storage=definition.storage,
            disk=_from_text(Disk, options),
            layout=_from_text(Layout, options),
            host_cache=HostCache(options.get("host_cache", HostCache.DROPPED)),
            identity=options.get("storage_identity", ""),
            machine=_from_text(Machine, options),
            volume_bytes=int(options["volume_bytes"]),
        ),
        workload=Workload(
            slug=definition.workload,
            tool=definition.tool,
            title=definition.title,
            parameters=definition.parameters,
            directions=definition.directions,
            ramp_seconds=definition.ramp_seconds,
            runtime_seconds=definition.runtime_seconds,
            caveats=tuple(map(Caveat, definition.caveats)),
        ),
    )
