"""The OpenAPI document of the API, made from the shapes that its answers have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from pvebench import __version__
from pvebench.model.run import Outcome

# --- What the API answers, key by key: what `api` fills in, and what the OpenAPI document is
# made of.
#
# Times are ISO 8601 in UTC, numbers in base units; docs/api.md says what each key means.


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


DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 500
REFERENCE: Final = "#/components/schemas/{model}"
_REFUSED: Final[Mapping[str, str]] = {
    "400": "A parameter is wrong.",
    "401": "A login is wanted: basic_auth_users of the web configuration file.",
    "404": "There is no such thing.",
    "421": "Asked by a host name that is not pvebench's.",
    "429": "Asked too often.",
    "503": "pvebench is starting, in plain text.",
}

Data = dict[str, Any]


def _path(name: str, schema: Data, about: str) -> Data:
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": about}


def _query(name: str, schema: Data, about: str) -> Data:
    return {"name": name, "in": "query", "schema": schema, "description": about}


_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
_OUTCOME: Final = {"type": "string", "enum": [str(one) for one in Outcome]}

PATHS: Final[Mapping[str, tuple[Any, str, tuple[Data, ...]]]] = {
    "/api/v1/status": (Status, "What each worker does", ()),
    "/api/v1/results": (Results, "The latest of every case", ()),
    "/api/v1/cases/{case_key}": (
        CaseDetails,
        "One case with its definition, samples, history and runs",
        # It has slashes of its own, and they may come as they are.
        (_path("case_key", {"type": "string", "minLength": 1}, "As in /api/v1/results."),),
    ),
    "/api/v1/verdict": (Verdict, "Whether anything got slower", ()),
    "/api/v1/runs": (
        Runs,
        "Runs with their samples, newest first",
        (
            _query("limit", _LIMIT, "How many at most."),
            _query("outcome", _OUTCOME, "Only those that ended so."),
            _query("case", {"type": "string"}, "Only those of this case_key."),
        ),
    ),
    "/api/v1/runs/{number}": (
        RunDetails,
        "One run with its samples, definition, environment and evidence",
        (_path("number", _NUMBER, "As in /api/v1/runs."),),
    ),
}
"""Address -> shape of its answer, what it is, parameters."""


@cache
def document() -> Data:
    """Return the document (OpenAPI 3.1)."""
    inputs = [
        (shape, "serialization", TypeAdapter[Any](shape))
        for shape in (*(shape for shape, _, _ in PATHS.values()), Error)
    ]
    made, rest = TypeAdapter.json_schemas(inputs, ref_template=REFERENCE)  # type: ignore[arg-type] # a list of literals
    schemas = {shape.__name__: made[shape, "serialization"] for shape, _, _ in inputs}
    named = {name: schema for name, schema in schemas.items() if "$ref" not in schema}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pvebench",
            "version": __version__,
            "summary": "What pvebench does, and what it has measured; nothing can be changed.",
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
                for status, text in _REFUSED.items()
                if status != "404" or any(one["in"] == "path" for one in parameters)
            },
        },
    }


def _json_of(name: str) -> Data:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(model=name)}}}
