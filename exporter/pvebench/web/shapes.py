"""What the API answers, key by key: what `api` fills in, and what the OpenAPI document is made of.

Times are ISO 8601 in UTC, numbers in base units; docs/api.md says what each key means.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class CaseName(TypedDict):
    """Which case."""

    case_key: str
    case: str


class Upcoming(CaseName):
    """A case that is due, and when it will probably begin."""

    expected_start: str


class Cycle(TypedDict):
    """One pass over a pack's due cases."""

    number: int
    pack: str
    tier: str
    planned: int
    done: int
    failed: int
    started: str
    expected_end: str


class Hold(TypedDict):
    """What the next case waits for."""

    kind: str
    reason: str


class Worker(TypedDict):
    """What one worker does."""

    node: str
    state: str
    case: CaseName | None
    phase: str | None
    phase_elapsed_seconds: float
    phase_expected_seconds: float | None
    cycle: Cycle | None
    upcoming: list[Upcoming]
    next_due: str | None
    fault: str
    hold: Hold | None
    pending: dict[str, str]


class Head(TypedDict):
    """The instance's time, and whether its numbers are invented."""

    now: str
    simulated: bool


class Status(Head):
    """`/api/v1/status`."""

    version: str
    workers: list[Worker]


class Value(TypedDict):
    """One number of a case's last good run, with its spread over the last ones."""

    direction: str
    metric: str
    unit: str
    value: float
    spread_ratio: float | None
    spread_runs: int


class Latest(TypedDict):
    """How the last attempt of a case ended, and its last good run."""

    outcome: str | None
    reason: str
    last_run: int | None
    run: int | None
    finished: str | None
    age_seconds: float | None
    values: list[Value]


class Result(CaseName, Latest):
    """The latest of a case."""

    title: str
    labels: dict[str, str]
    in_packs: bool
    scale: float
    interval_seconds: float | None
    stale: bool


class Results(Head):
    """`/api/v1/results`."""

    results: list[Result]


class Sample(TypedDict):
    """One number of a run."""

    metric: str
    direction: str
    part: str
    value: float
    unit: str


Run = TypedDict(
    "Run",
    {
        "run": int,
        "uid": str,
        "case_key": str,
        "cycle": str,
        "pass": int,  # a word of Python, so not a class
        "environment": str,
        "node": str,
        "scenario": str,
        "workload": str,
        "started": str,
        "finished": str,
        "outcome": str,
        "reason": str,
        "samples": list[Sample],
    },
)


class Runs(TypedDict):
    """`/api/v1/runs`."""

    runs: list[Run]


class RunDetails(Run):
    """`/api/v1/runs/<number>`."""

    definition: dict[str, Any]
    environment_facts: dict[str, str]
    evidence: dict[str, str]


class Point(TypedDict):
    """A good run in a case's history."""

    run: int
    finished: str
    metric: str
    direction: str
    value: float
    unit: str
    environment: str


class CaseDetails(Head, Result):
    """`/api/v1/cases/<case_key>`."""

    definition: dict[str, Any]
    samples: list[Sample]
    history: list[Point]
    environments: dict[str, dict[str, str]]
    runs: list[Run]


class What(TypedDict):
    """What is wrong, and what to do."""

    happened: str
    next_step: str


class Error(TypedDict):
    """The answer to what is refused."""

    error: What


class Verdict(Head):
    """`/api/v1/verdict`: what `pvebench verdict --format json` prints; see docs/verdict.md."""

    run: int
    failed: bool
    regression: bool
    counts: dict[str, int]
    changes: list[dict[str, Any]]
    verdicts: list[dict[str, Any]]
    levels: list[dict[str, Any]]
    definition_changes: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
