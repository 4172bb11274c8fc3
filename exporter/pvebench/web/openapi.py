"""OpenAPI document, made from the response types. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from pydantic.json_schema import models_json_schema

from pvebench import __version__
from pvebench.model.run import Outcome
from pvebench.web.api import (
    ApiModel,
    CaseDetails,
    Changes,
    Data,
    Error,
    Results,
    RunDetails,
    Runs,
    Status,
    Verdict,
)

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 500
REFERENCE: Final = "#/components/schemas/{model}"
_ERRORS: Final[Mapping[str, str]] = {
    "400": "Invalid parameter.",
    "401": "Authentication required: basic_auth_users of the web configuration file.",
    "404": "Not found.",
    "421": "Host name not allowed.",
    "429": "Too many requests.",
}


def _parameter(place: str, name: str, schema: Data, about: str) -> Data:
    required = place == "path"
    return {"name": name, "in": place, "required": required, "schema": schema, "description": about}


_KEY: Final = {"type": "string", "minLength": 1}  # its slashes need no quoting
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
CHANGE_STATES: Final = ("open", "closed")
_STATE: Final = {"type": "string", "enum": [*CHANGE_STATES]}
_OUTCOME: Final = {"type": "string", "enum": [str(outcome) for outcome in Outcome]}

PATHS: Final[Mapping[str, tuple[type[ApiModel], str, tuple[Data, ...]]]] = {
    "/api/v1/status": (Status, "Status of each worker", ()),
    "/api/v1/results": (Results, "Latest result of every case", ()),
    "/api/v1/cases/{case_key}": (
        CaseDetails,
        "A case with its definition, samples, history and runs",
        (_parameter("path", "case_key", _KEY, "As in /api/v1/results."),),
    ),
    "/api/v1/verdict": (Verdict, "Verdicts and changes", ()),
    "/api/v1/changes": (
        Changes,
        "Open and closed changes",
        (_parameter("query", "state", _STATE, "Only open or only closed changes."),),
    ),
    "/api/v1/runs": (
        Runs,
        "Runs with their samples, newest first",
        (
            _parameter("query", "limit", _LIMIT, "Maximum number of runs."),
            _parameter("query", "outcome", _OUTCOME, "Only runs with this outcome."),
            _parameter("query", "case", {"type": "string"}, "Only runs of this case_key."),
        ),
    ),
    "/api/v1/runs/{number}": (
        RunDetails,
        "A run with its samples, definition, environment and evidence",
        (_parameter("path", "number", _NUMBER, "As in /api/v1/runs."),),
    ),
}
"""Path -> response type, summary, parameters."""


@cache
def document() -> Data:
    """Return the OpenAPI 3.1 document."""
    shapes = (*(shape for shape, _, _ in PATHS.values()), Error)
    inputs = [(shape, "serialization") for shape in shapes]
    _, definitions = models_json_schema(inputs, ref_template=REFERENCE)  # type: ignore[arg-type] # a list of literals
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
            "schemas": definitions["$defs"],
            "securitySchemes": {"login": {"type": "http", "scheme": "basic"}},
        },
        # Without users in the web configuration file there is no login.
        "security": [{}, {"login": []}],
    }


def _operation(shape: type[ApiModel], about: str, parameters: tuple[Data, ...]) -> Data:
    return {
        "operationId": shape.__name__[0].lower() + shape.__name__[1:],
        "summary": about,
        "parameters": list(parameters),
        "responses": {
            "200": {"description": about, "content": _json_of(shape.__name__)},
            "503": {
                "description": "pvebench is starting (plain text).",
                "content": {"text/plain": {}},
            },
            **{
                status: {"description": text, "content": _json_of("Error")}
                for status, text in _ERRORS.items()
                if status != "404" or any(parameter["required"] for parameter in parameters)
            },
        },
    }


def _json_of(name: str) -> Data:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(model=name)}}}
