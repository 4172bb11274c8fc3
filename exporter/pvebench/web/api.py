"""API responses as plain data: UTC, base units. Pure, except for reading the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pvebench import __version__
from pvebench.model.status import WorkerStatus
from pvebench.model.workload import Case
from pvebench.report.text import environments, in_order, iso, without_secrets
from pvebench.store import CaseRecord, Store, StoredRun
from pvebench.store.current import MAIN_METRICS, Trend, View, read_trends
from pvebench.web import api_schema
from pvebench.web.views.details import CHART_RUNS, LISTED_RUNS
from pvebench.web.views.tables import Number, is_stale, numbers_of
from pvebench.web.views.workers import expected_starts


def status_data(
    statuses: Sequence[WorkerStatus], content: View, now: datetime
) -> api_schema.Status:
    """Return `/api/v1/status`."""
    workers = [_worker_data(status, now) for status in statuses]
    return {**_head(content, now), "version": __version__, "workers": workers}


def _head(content: View, now: datetime) -> api_schema.Head:
    return {"now": iso(now), "simulated": content.simulated}


def _worker_data(status: WorkerStatus, now: datetime) -> api_schema.Worker:
    cycle, starts = status.cycle, expected_starts(status, now)
    return {
        "node": status.node,
        "state": str(status.state),
        "case": None if status.case is None else _case_name(status.case),
        "phase": None if status.phase is None else str(status.phase),
        "phase_elapsed_seconds": round(max(0.0, (now - status.since).total_seconds()), 1),
        "phase_expected_seconds": status.phase_seconds or None,
        "cycle": None
        if cycle is None
        else {
            "number": cycle.number,
            "pack": cycle.pack,
            "tier": cycle.tier,
            "planned": cycle.planned,
            "done": cycle.done,
            "failed": cycle.failed,
            "started": iso(cycle.started),
            "expected_end": iso(cycle.expected_end),
        },
        "upcoming": [
            {**_case_name(case), "expected_start": iso(at)}
            for case, at in zip(status.upcoming, starts, strict=True)
        ],
        "next_due": None if status.next_due is None else iso(status.next_due),
        "fault": without_secrets(status.fault),
        "hold": None
        if status.hold is None
        else {"kind": str(status.hold.kind), "reason": without_secrets(status.hold.reason)},
        "pending": dict(status.pending),
    }


def _case_name(case: Case) -> api_schema.CaseName:
    return {"case_key": case.key, "case": case.slug}


def results_data(content: View, now: datetime) -> api_schema.Results:
    """Return `/api/v1/results`: every case of the current packs, and every older one."""
    keys = sorted({*content.planned, *content.cases})
    return {**_head(content, now), "results": [result_data(content, key, now) for key in keys]}


def result_data(content: View, key: str, now: datetime) -> api_schema.Result:
    """Return the latest result of one case, which must be planned or have a record."""
    planned, state = content.planned.get(key), content.cases.get(key)
    definition = planned.definition if planned else content.cases[key].definition
    return {
        "case_key": key,
        "case": definition.name,
        "title": definition.title,
        "labels": dict(definition.labels),
        "in_packs": planned is not None,
        "scale": definition.scale,
        "interval_seconds": planned.every_seconds if planned else None,
        **_latest_data(state, content.trends.get(key), now),
        "stale": state is not None and is_stale(planned, state, now),
    }


def _latest_data(state: CaseRecord | None, trend: Trend | None, now: datetime) -> api_schema.Latest:
    if state is None:
        return {
            "outcome": None,
            "reason": "",
            "last_run": None,
            "run": None,
            "finished": None,
            "age_seconds": None,
            "values": [],
        }
    good = state.good
    return {
        "outcome": str(state.last.outcome),
        "reason": without_secrets(state.last.reason),
        "last_run": state.last.number,
        "run": None if good is None else good.number,
        "finished": None if good is None else iso(good.finished),
        "age_seconds": None if good is None else round((now - good.finished).total_seconds(), 1),
        "values": [_number_data(number) for number in numbers_of(trend)],
    }


def _number_data(number: Number) -> api_schema.Value:
    return {
        "direction": str(number.direction),
        "metric": number.metric,
        "unit": str(number.unit),
        "value": number.value,
        "spread_ratio": number.spread,
        "spread_runs": number.runs,
    }


def case_data(
    store: Store, content: View, key: str, now: datetime
) -> api_schema.CaseDetails | None:
    """Return `/api/v1/cases/<key>`; None if the case is neither planned nor ever run."""
    definition, state = content.definition(key), content.cases.get(key)
    if definition is None:
        return None
    trend = read_trends(store, {key: definition}, limit=CHART_RUNS).get(key, Trend())
    good = None if state is None else state.good
    known = environments(store)
    used = {point.environment for point in trend.points}
    return {
        **_head(content, now),
        **result_data(content, key, now),
        "definition": definition.as_data(),
        "samples": [] if good is None else _samples_data(good),
        "history": [
            {
                "run": point.run,
                "finished": iso(point.finished),
                "metric": trend.metric,
                "direction": str(point.direction),
                "value": point.value,
                "unit": str(MAIN_METRICS[trend.metric]),
                "environment": point.environment,
            }
            for point in trend.points
        ],
        "environments": {digest: known[digest] for digest in sorted(used & known.keys())},
        "runs": [run_data(run) for run in store.runs(limit=LISTED_RUNS, case_key=key)],
    }


def run_data(run: StoredRun) -> api_schema.Run:
    """Return a run as plain data."""
    return {
        "run": run.number,
        "uid": run.uid,
        "case_key": run.case_key,
        "cycle": run.cycle,
        "pass": run.pass_number,
        "environment": run.environment,
        "node": run.node,
        "scenario": run.scenario,
        "workload": run.workload,
        "started": run.started.isoformat(),
        "finished": run.finished.isoformat(),
        "outcome": str(run.outcome),
        "reason": without_secrets(run.reason),
        "samples": _samples_data(run),
    }


def _samples_data(run: StoredRun) -> list[api_schema.Sample]:
    return [
        {
            "metric": sample.metric,
            "direction": str(sample.direction or ""),
            "part": sample.part,
            "value": sample.value,
            "unit": str(sample.unit),
        }
        for sample in run.samples
    ]


def run_details(store: Store, number: int) -> api_schema.RunDetails | None:
    """Return `/api/v1/runs/<number>`, with definition, environment and evidence."""
    run = store.run(number)
    if run is None:
        return None
    facts: Mapping[str, str] = environments(store).get(run.environment, {})
    return {
        **run_data(run),
        "definition": run.definition.as_data(),
        "environment_facts": dict(facts),
        "evidence": dict(in_order(store.evidence(number))),
    }
