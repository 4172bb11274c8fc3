"""API: response types, and the responses.

Times are ISO 8601 in UTC, numbers in base units; docs/api.md describes each key. A field takes the
attribute of its name (or its `validation_alias`) from the values of the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from pvebench import __version__
from pvebench.model.definition import Definition
from pvebench.model.status import State, WorkerStatus
from pvebench.report.value_text import environments, in_order, iso, without_secrets
from pvebench.store.live_results import MAIN_METRICS, Trend, View, read_trends
from pvebench.store.records import StoredRun
from pvebench.store.store import Store
from pvebench.verdicts.fastest_text import LEAST_JUDGED, milestones
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import verdicts_data
from pvebench.web.views.pages import CHART_RUNS, LISTED_RUNS
from pvebench.web.views.tables import is_stale, numbers_of

# --- Response types.

Time = Annotated[datetime, PlainSerializer(iso, return_type=str)]
ExactTime = Annotated[datetime, PlainSerializer(datetime.isoformat, return_type=str)]
Text = Annotated[str, BeforeValidator(without_secrets)]  # from outside
Facts = Annotated[dict[str, str], BeforeValidator(dict)]


class ApiModel(BaseModel):
    """A response, or a part of one."""

    model_config = ConfigDict(from_attributes=True, serialize_by_alias=True)


class CaseName(ApiModel):
    """Key and name of a case."""

    case_key: str = Field(validation_alias="key")
    case: str = Field(validation_alias="slug")


class Upcoming(CaseName):
    """A due case and its expected start."""

    expected_start: Time


class Cycle(ApiModel):
    """One pass over a pack's due cases."""

    number: int
    pack: str
    tier: str
    planned: int
    done: int
    failed: int
    started: Time
    expected_end: Time


class Hold(ApiModel):
    """Reason why the next case has not started."""

    kind: str
    reason: Text


class Worker(ApiModel):
    """Status of a worker."""

    node: str
    state: str
    case: CaseName | None
    phase: str | None
    phase_elapsed_seconds: float
    phase_expected_seconds: float | None
    cycle: Cycle | None
    upcoming: list[Upcoming]
    next_due: Time | None
    fault: Text
    hold: Hold | None
    pending: Facts


class Head(ApiModel):
    """Time of the instance, and whether its results are simulated."""

    now: Time
    simulated: bool


class Status(Head):
    """`/api/v1/status`."""

    version: str
    workers: list[Worker]
    faults: dict[str, Text]
    first_verdicts: Time | None


class Value(ApiModel):
    """The number of a case that the ranking uses, with its spread over recent runs."""

    direction: str
    metric: str
    unit: str
    value: float
    spread_ratio: float | None = Field(validation_alias="spread")
    spread_runs: int = Field(validation_alias="runs")


class Result(ApiModel):
    """Outcome of a case's latest run, and its latest successful run."""

    case_key: str
    case: str = Field(validation_alias="name")
    title: str
    labels: Facts
    in_packs: bool
    scale: float
    interval_seconds: float | None
    outcome: str | None
    reason: Text
    last_run: int | None
    run: int | None
    finished: Time | None
    age_seconds: float | None
    values: list[Value]
    stale: bool


class Results(Head):
    """`/api/v1/results`."""

    results: list[Result]


class Sample(ApiModel):
    """A value of a run."""

    metric: str
    direction: Annotated[str, BeforeValidator(lambda direction: direction or "")]
    part: str
    value: float
    unit: str


class Run(ApiModel):
    """A finished run."""

    run: int = Field(validation_alias="number")
    uid: str
    case_key: str
    cycle: str
    pass_number: int = Field(serialization_alias="pass")
    environment: str
    node: str
    scenario: str
    workload: str
    started: ExactTime
    finished: ExactTime
    outcome: str
    reason: Text
    samples: list[Sample]


class Runs(ApiModel):
    """`/api/v1/runs`."""

    runs: list[Run]


class RunDetails(Run):
    """`/api/v1/runs/<number>`."""

    definition: Annotated[dict[str, Any], BeforeValidator(Definition.as_data)]
    environment_facts: Facts
    evidence: dict[str, str]


class HistoryPoint(ApiModel):
    """A successful run in a case's history."""

    run: int
    finished: Time
    metric: str
    direction: str
    value: float
    unit: str
    environment: str


class CaseDetails(Head, Result):
    """`/api/v1/cases/<case_key>`."""

    definition: Annotated[dict[str, Any], BeforeValidator(Definition.as_data)]
    samples: list[Sample]
    history: list[HistoryPoint]
    environments: dict[str, dict[str, str]]
    runs: list[Run]


class ErrorDetails(ApiModel):
    """The error, and the action for the client."""

    happened: str
    next_step: str


class Error(ApiModel):
    """Response to a rejected request."""

    error: ErrorDetails


class Verdict(Head):
    """`/api/v1/verdict`: output of `pvebench verdict --format json`; see docs/verdict.md."""

    run: int
    failed: bool
    state: str
    headline: str
    regression: bool
    counts: dict[str, int]
    changes: list[dict[str, Any]]
    verdicts: list[dict[str, Any]]
    levels: list[dict[str, Any]]
    outages: list[dict[str, Any]]
    definition_changes: list[dict[str, Any]]
    decisions: list[dict[str, Any]]


# --- Responses. Pure, except for reading the store.

Model = TypeVar("Model", bound=ApiModel)
Data = dict[str, Any]


@cache
def _attributes(shape: type[ApiModel]) -> dict[str, str]:
    """Return field -> attribute that it is taken from."""
    return {name: str(field.validation_alias or name) for name, field in shape.model_fields.items()}


def _response(shape: type[Model], source: object, **values: Any) -> Model:
    """Return a response with `values`, and all other fields from the attributes of `source`."""
    names = _attributes(shape)
    data = {names[n]: values[n] if n in values else getattr(source, names[n]) for n in names}
    return shape.model_validate(data)


def status_data(
    statuses: Sequence[WorkerStatus], content: View, now: datetime, faults: Mapping[str, str]
) -> Status:
    """Return `/api/v1/status`; `faults`: part of this process -> its fault, empty: none."""
    ahead = milestones(content, statuses, now)
    waiting = {f"worker {one.node}": one.fault for one in statuses if one.state is State.ERROR}
    return _response(
        Status,
        content,
        now=now,
        version=__version__,
        workers=[_worker(status, now) for status in statuses],
        faults=waiting | {part: text for part, text in faults.items() if text},
        first_verdicts=next(
            (milestone.at for milestone in ahead if milestone.runs == LEAST_JUDGED), None
        ),
    )


def _worker(status: WorkerStatus, now: datetime) -> Worker:
    return _response(
        Worker,
        status,
        phase_elapsed_seconds=round(max(0.0, (now - status.since).total_seconds()), 1),
        phase_expected_seconds=status.phase_seconds or None,
        upcoming=[
            _response(Upcoming, case, expected_start=start)
            for case, start in zip(status.upcoming, status.expected_starts(now), strict=True)
        ],
    )


def results_data(content: View, now: datetime) -> Results:
    """Return `/api/v1/results`: every case of the current packs, and every older one."""
    keys = sorted({*content.planned, *content.cases})
    results = [_result(Result, content, key, now) for key in keys]
    return _response(Results, content, now=now, results=results)


def _result(shape: type[Model], content: View, key: str, at: datetime, **values: Any) -> Model:
    """Return the latest result of a case, which must be planned or have a record."""
    planned, state = content.planned.get(key), content.cases.get(key)
    good = state.good if state else None
    return _response(
        shape,
        planned.definition if planned else content.cases[key].definition,
        case_key=key,
        in_packs=planned is not None,
        interval_seconds=planned.every_seconds if planned else None,
        outcome=state.last.outcome if state else None,
        reason=state.last.reason if state else "",
        last_run=state.last.number if state else None,
        run=good.number if good else None,
        finished=good.finished if good else None,
        age_seconds=round((at - good.finished).total_seconds(), 1) if good else None,
        values=numbers_of(content.trends.get(key)) if state else (),
        stale=state is not None and is_stale(planned, state, at),
        **values,
    )


def case_data(store: Store, content: View, key: str, now: datetime) -> CaseDetails | None:
    """Return `/api/v1/cases/<key>`; None if the case is neither planned nor ever run."""
    definition, state = content.definition(key), content.cases.get(key)
    if definition is None:
        return None
    trend = read_trends(store, {key: definition}, limit=CHART_RUNS).get(key, Trend())
    known, used = environments(store), {point.environment for point in trend.points}
    return _result(
        CaseDetails,
        content,
        key,
        now,
        now=now,
        simulated=content.simulated,
        definition=definition,
        samples=state.good.samples if state and state.good else (),
        history=[
            _response(HistoryPoint, point, metric=trend.metric, unit=MAIN_METRICS[trend.metric])
            for point in trend.points
        ],
        environments={digest: known[digest] for digest in sorted(used & known.keys())},
        runs=store.runs(limit=LISTED_RUNS, case_key=key),
    )


def verdict_data(verdicts: Verdicts, content: View, now: datetime) -> Verdict:
    """Return `/api/v1/verdict`."""
    return _response(Verdict, content, now=now, **verdicts_data(verdicts))


def run_details(store: Store, run: StoredRun) -> RunDetails:
    """Return `/api/v1/runs/<number>`, with definition, environment and evidence."""
    facts = environments(store).get(run.environment, {})
    evidence = dict(in_order(store.evidence(run.number)))
    return _response(RunDetails, run, environment_facts=facts, evidence=evidence)


def run_data(run: StoredRun) -> Data:
    """Return a run as plain data."""
    return Run.model_validate(run).model_dump(mode="json")
