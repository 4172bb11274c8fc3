"""The OpenAPI document of the API, made from the shapes that its answers have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from pvebench import __version__
from pvebench.model.run import Outcome
from pvebench.web import shapes

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
    "/api/v1/status": (shapes.Status, "What each worker does", ()),
    "/api/v1/results": (shapes.Results, "The latest of every case", ()),
    "/api/v1/cases/{case_key}": (
        shapes.CaseDetails,
        "One case with its definition, samples, history and runs",
        # It has slashes of its own, and they may come as they are.
        (_path("case_key", {"type": "string", "minLength": 1}, "As in /api/v1/results."),),
    ),
    "/api/v1/verdict": (shapes.Verdict, "Whether anything got slower", ()),
    "/api/v1/runs": (
        shapes.Runs,
        "Runs with their samples, newest first",
        (
            _query("limit", _LIMIT, "How many at most."),
            _query("outcome", _OUTCOME, "Only those that ended so."),
            _query("case", {"type": "string"}, "Only those of this case_key."),
        ),
    ),
    "/api/v1/runs/{number}": (
        shapes.RunDetails,
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
        for shape in (*(shape for shape, _, _ in PATHS.values()), shapes.Error)
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
