"""Response types of the API, and the OpenAPI document made from them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from pvebench import __version__
from pvebench.model.run import Outcome

# --- Response types.
#
# Times are ISO 8601 in UTC, numbers in base units; docs/api.md describes each key.


class CaseName(TypedDict):
    """Key and name of a case."""

    case_key: str
    case: str


class Upcoming(CaseName):
    """A due case and its expected start."""

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
    """Reason why the next case has not started."""

    kind: str
    reason: str


class Worker(TypedDict):
    """Status of a worker."""

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
    """Time of the instance, and whether its results are simulated."""

    now: str
    simulated: bool


class Status(Head):
    """`/api/v1/status`."""

    version: str
    workers: list[Worker]


class Value(TypedDict):
    """A value of a case's latest successful run, with its spread over recent runs."""

    direction: str
    metric: str
    unit: str
    value: float
    spread_ratio: float | None
    spread_runs: int


class Latest(TypedDict):
    """Outcome of a case's latest run, and its latest successful run."""

    outcome: str | None
    reason: str
    last_run: int | None
    run: int | None
    finished: str | None
    age_seconds: float | None
    values: list[Value]


class Result(CaseName, Latest):
    """Latest result of a case."""

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
    """A value of a run."""

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
        "pass": int,  # a keyword of Python, so not a class
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
    """A successful run in a case's history."""

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


class ErrorDetails(TypedDict):
    """The error, and the action for the client."""

    happened: str
    next_step: str


class Error(TypedDict):
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
    definition_changes: list[dict[str, Any]]
    decisions: list[dict[str, Any]]


DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 500
REFERENCE: Final = "#/components/schemas/{model}"
_ERRORS: Final[Mapping[str, str]] = {
    "400": "Invalid parameter.",
    "401": "Authentication required: basic_auth_users of the web configuration file.",
    "404": "Not found.",
    "421": "Host name not allowed.",
    "429": "Too many requests.",
    "503": "pvebench is starting (plain text).",
}

Data = dict[str, Any]


def _path(name: str, schema: Data, about: str) -> Data:
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": about}


def _query(name: str, schema: Data, about: str) -> Data:
    return {"name": name, "in": "query", "schema": schema, "description": about}


_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
_OUTCOME: Final = {"type": "string", "enum": [str(outcome) for outcome in Outcome]}

PATHS: Final[Mapping[str, tuple[Any, str, tuple[Data, ...]]]] = {
    "/api/v1/status": (Status, "Status of each worker", ()),
    "/api/v1/results": (Results, "Latest result of every case", ()),
    "/api/v1/cases/{case_key}": (
        CaseDetails,
        "A case with its definition, samples, history and runs",
        # It contains slashes, which need no quoting.
        (_path("case_key", {"type": "string", "minLength": 1}, "As in /api/v1/results."),),
    ),
    "/api/v1/verdict": (Verdict, "Verdicts and changes", ()),
    "/api/v1/runs": (
        Runs,
        "Runs with their samples, newest first",
        (
            _query("limit", _LIMIT, "Maximum number of runs."),
            _query("outcome", _OUTCOME, "Only runs with this outcome."),
            _query("case", {"type": "string"}, "Only runs of this case_key."),
        ),
    ),
    "/api/v1/runs/{number}": (
        RunDetails,
        "A run with its samples, definition, environment and evidence",
        (_path("number", _NUMBER, "As in /api/v1/runs."),),
    ),
}
"""Path -> response type, summary, parameters."""


@cache
def document() -> Data:
    """Return the OpenAPI 3.1 document."""
    inputs = [
        (shape, "serialization", TypeAdapter[Any](shape))
        for shape in (*(shape for shape, _, _ in PATHS.values()), Error)
    ]
    models, rest = TypeAdapter.json_schemas(inputs, ref_template=REFERENCE)  # type: ignore[arg-type] # a list of literals
    schemas = {shape.__name__: models[shape, "serialization"] for shape, _, _ in inputs}
    named = {name: schema for name, schema in schemas.items() if "$ref" not in schema}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pvebench",
            "version": __version__,
            "summary": "Status and results of pvebench. Read-only.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            path: {"get": _operation(shape, about, parameters)}
            for path, (shape, about, parameters) in PATHS.items()
        },
        "components": {
            "schemas": rest.get("$defs", {}) | named,
            "securitySchemes": {"login": {"type": "http", "scheme": "basic"}},
        },
        # Without users in the web configuration file there is no login.
        "security": [{}, {"login": []}],
    }


def _operation(shape: Any, about: str, parameters: tuple[Data, ...]) -> Data:
    return {
        "operationId": shape.__name__[0].lower() + shape.__name__[1:],
        "summary": about,
        "parameters": list(parameters),
        "responses": {
            "200": {"description": about, "content": _json_of(shape.__name__)},
            **{
                status: {
                    "description": text,
                    "content": {"text/plain": {}} if status == "503" else _json_of("Error"),
                }
                for status, text in _ERRORS.items()
                if status != "404" or any(parameter["in"] == "path" for parameter in parameters)
            },
        },
    }


def _json_of(name: str) -> Data:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(model=name)}}}
