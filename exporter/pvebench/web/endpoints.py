"""Endpoints of web UI and API, and the OpenAPI document. None of them waits for a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Final

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from pvebench import __version__
from pvebench.advice.recommendation_text import NOTHING, UNASSESSED
from pvebench.model.run import Outcome
from pvebench.model.status import WorkerStatus
from pvebench.store.live_results import LiveResults, View
from pvebench.store.records import StoredRun
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import COLUMNS, verdict_row, verdict_sign
from pvebench.verdicts.ranking import of_storage, shown_definitions
from pvebench.web import api
from pvebench.web.responses import KINDS, STATIC, Refused, ResponseCache, query_parameters, render
from pvebench.web.views import case_url
from pvebench.web.views.pages import advice_blocks, case_view, index_view, run_view

FRESH_SECONDS: Final = 2
"""Maximum age of a cached page, regardless of the number of clients."""
_NUMBER: Final = re.compile("[0-9]{1,18}")
"""Number of a run; SQLite integers have 63 bits."""
_UNCHANGING: Final = {"cache-control": "public, max-age=31536000, immutable"}
_NEVER_KEPT: Final = {"cache-control": "no-cache"}


@dataclass(frozen=True)
class Pages:
    """Endpoints of the results.

    Attributes:
        statuses: returns the status of each worker.
        now: clock of the workers' times.
        verdicts: returns the latest verdicts.
        note: returns a text about simulated results, for the page at `/`.
    """

    results: LiveResults
    statuses: Callable[[], list[WorkerStatus]]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    verdicts: Callable[[], Verdicts] = Verdicts
    note: Callable[[], str] = str
    _texts: ResponseCache = field(default_factory=ResponseCache, init=False)

    def routes(self) -> list[Route]:
        """Return the routes, which allow only GET and HEAD."""
        return [
            Route("/", self.index),
            Route("/cases/{key:path}", self.case),
            Route("/runs/{number}", self.run),
            Route("/advice", self.advice),
            Route("/static/{name}", self.static),
            # Browsers request it for pages that cannot name an icon, such as /metrics.
            Route("/favicon.ico", self.icon),
            Route("/api/v1/openapi.json", self.openapi),
            *(self._api_route(path, operation) for path, operation in PATHS.items()),
        ]

    def _api_route(self, path: str, operation: Operation) -> Route:
        """Return the route of an operation, which rejects parameters that it does not have."""
        names = [entry["name"] for entry in operation.parameters if entry["in"] == "query"]

        def endpoint(request: Request) -> Response:
            query_parameters(request, names)
            return _json(operation.answer(self, request))

        return Route(path.replace("{case_key}", "{case_key:path}"), endpoint)

    def _once(self, name: str, make: Callable[[View, list[WorkerStatus], datetime], str]) -> str:
        content, statuses, now = self.results.now, self.statuses(), self.now()
        verdicts, fresh = self.verdicts(), int(now.timestamp() // FRESH_SECONDS)
        verdict_key = verdicts.version, verdicts.failed, verdicts.decisions
        key = (content.version, verdict_key, statuses, fresh, self.note())
        return self._texts.get(name, key, lambda: make(content, statuses, now))

    def _storage(self, parameters: Mapping[str, str]) -> str:
        storage = parameters.get("storage", "")
        if storage and storage not in of_storage(shown_definitions(self.results.now)):
            raise Refused(404, f"no cases on storage {storage!r}", "select a storage at /")
        return storage

    def index(self, request: Request) -> Response:
        """Serve `/`."""
        storage = self._storage(query_parameters(request, ("storage",)))

        def make(content: View, statuses: list[WorkerStatus], now: datetime) -> str:
            page = index_view(content, statuses, now, self.verdicts(), storage)
            kept = {"simulated": page.simulated, "note": self.note(), "here": "/"}
            return render("index.html", page=page, **kept)

        # Bounded by the number of storages; other values are rejected.
        return _html(self._once(f"/?{storage}", make))

    def advice(self, request: Request) -> Response:
        """Serve `/advice`."""
        query_parameters(request, ())

        def make(content: View, _: list[WorkerStatus], __: datetime) -> str:
            blocks = advice_blocks(content, self.results.store, self.verdicts())
            texts = {"unassessed": UNASSESSED, "nothing": NOTHING, "here": "/advice"}
            return render("advice.html", blocks=blocks, simulated=content.simulated, **texts)

        return _html(self._once("/advice", make))

    def case(self, request: Request) -> Response:
        """Serve `/cases/<key>`."""
        key, content = request.path_params["key"], self.results.now
        page = case_view(self.results.store, content, key, self.now())
        if page is None:
            raise _no_case(key)
        rows = [
            (verdict_sign(verdict.state), verdict_row(verdict))
            for verdict in self.verdicts().of_case(key)
        ]
        values = {
            "url": case_url(key),
            "simulated": content.simulated,
            "here": "",
            "judged": rows,
            "columns": COLUMNS,
        }
        return _html(render("case.html", page=page, **values))

    def run(self, request: Request) -> Response:
        """Serve `/runs/<number>`."""
        page = run_view(self.results.store, self._run(request))
        simulated = self.results.now.simulated
        return _html(render("run.html", page=page, simulated=simulated, here=""))

    def static(self, request: Request) -> Response:
        """Serve `/static/<name>`; clients can cache it, since its URL changes with its content."""
        name = request.path_params["name"]
        if name not in STATIC:
            raise Refused(404, f"file {name!r} not found", "start at /")
        kind = KINDS[name.rpartition(".")[2]]
        return Response(STATIC[name], media_type=kind, headers=_UNCHANGING)

    def icon(self, _: Request) -> Response:
        """Serve `/favicon.ico`."""
        return Response(STATIC["pvebench.svg"], media_type=KINDS["svg"], headers=_NEVER_KEPT)

    def openapi(self, request: Request) -> Response:
        """Serve `/api/v1/openapi.json`."""
        query_parameters(request, ())
        return _json(json.dumps(document()))

    def status_data(self, _: Request) -> str:
        """Return the status of each worker."""
        content, store = self.results.now, self.results.store
        faults = store.faults | store.outbox.faults
        data = api.status_data(self.statuses(), content, self.now(), faults)
        return data.model_dump_json()

    def results_data(self, _: Request) -> str:
        """Return the latest result of every case."""
        return self._data("results", api.results_data)

    def _data(self, name: str, make: Callable[[View, datetime], api.ApiModel]) -> str:
        def text(content: View, _: list[WorkerStatus], now: datetime) -> str:
            return make(content, now).model_dump_json()

        return self._once(name, text)

    def case_data(self, request: Request) -> str:
        """Return a case with its history and runs."""
        key = request.path_params["case_key"]
        data = api.case_data(self.results.store, self.results.now, key, self.now())
        if data is None:
            raise _no_case(key)
        return data.model_dump_json()

    def verdict_data(self, _: Request) -> str:
        """Return verdicts and changes."""
        return self._data("verdict", lambda view, now: api.verdict_data(self.verdicts(), view, now))

    def runs_data(self, request: Request) -> str:
        """Return runs, newest first."""
        parameters = request.query_params
        runs = self.results.store.runs(
            limit=_limit(parameters.get("limit")),
            outcome=_outcome(parameters.get("outcome")),
            case_key=parameters.get("case"),
        )
        return api.Runs.model_validate({"runs": runs}).model_dump_json()

    def run_data(self, request: Request) -> str:
        """Return a run."""
        return api.run_details(self.results.store, self._run(request)).model_dump_json()

    def _run(self, request: Request) -> StoredRun:
        """Return the run that a path names. Raises Refused."""
        text = str(request.path_params["number"])
        run = self.results.store.run(int(text)) if _NUMBER.fullmatch(text) else None
        if run is None:
            step = "see /api/v1/runs for runs; keep_runs removes old ones"
            raise Refused(404, f"run {text} not found", step)
        return run


def _html(text: str) -> Response:
    return HTMLResponse(text, headers=_NEVER_KEPT)


def _json(text: str) -> Response:
    return Response(text, media_type="application/json", headers=_NEVER_KEPT)


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= MAX_LIMIT:
        raise Refused(400, f"invalid limit={text!r}", f"set an integer from 1 to {MAX_LIMIT}")
    return int(text)


def _outcome(text: str | None) -> Outcome | None:
    if text is None:
        return None
    try:
        return Outcome(text)
    except ValueError as error:
        known = ", ".join(Outcome)
        raise Refused(400, f"unknown outcome {text!r}", f"use one of {known}") from error


def _no_case(key: str) -> Refused:
    step = "see /api/v1/results for keys; a key changes with the definition of its case"
    return Refused(404, f"case {key!r} not found", step)


# --- Paths of the API, and the OpenAPI document made from them.

Data = api.Data
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
_RUN: Final = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
_OUTCOME: Final = {"type": "string", "enum": [str(outcome) for outcome in Outcome]}


@dataclass(frozen=True, slots=True)
class Operation:
    """A path of the API: the response, its type, a summary, and the parameters."""

    answer: Callable[[Pages, Request], str]
    shape: type[api.ApiModel]
    summary: str
    parameters: tuple[Data, ...] = ()


PATHS: Final[Mapping[str, Operation]] = {
    "/api/v1/status": Operation(Pages.status_data, api.Status, "Status of each worker"),
    "/api/v1/results": Operation(Pages.results_data, api.Results, "Latest result of every case"),
    "/api/v1/cases/{case_key}": Operation(
        Pages.case_data,
        api.CaseDetails,
        "A case with its definition, samples, history and runs",
        (_parameter("path", "case_key", _KEY, "As in /api/v1/results."),),
    ),
    "/api/v1/verdict": Operation(Pages.verdict_data, api.Verdict, "Verdicts and changes"),
    "/api/v1/runs": Operation(
        Pages.runs_data,
        api.Runs,
        "Runs with their samples, newest first",
        (
            _parameter("query", "limit", _LIMIT, "Maximum number of runs."),
            _parameter("query", "outcome", _OUTCOME, "Only runs with this outcome."),
            _parameter("query", "case", {"type": "string"}, "Only runs of this case_key."),
        ),
    ),
    "/api/v1/runs/{number}": Operation(
        Pages.run_data,
        api.RunDetails,
        "A run with its samples, definition, environment and evidence",
        (_parameter("path", "number", _RUN, "As in /api/v1/runs."),),
    ),
}


@cache
def document() -> Data:
    """Return the OpenAPI 3.1 document."""
    shapes = (*(operation.shape for operation in PATHS.values()), api.Error)
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
        "paths": {path: {"get": _operation_data(operation)} for path, operation in PATHS.items()},
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"login": {"type": "http", "scheme": "basic"}},
        },
        # Without users in the web configuration file there is no login.
        "security": [{}, {"login": []}],
    }


def _operation_data(operation: Operation) -> Data:
    name, about = operation.shape.__name__, operation.summary
    return {
        "operationId": name[0].lower() + name[1:],
        "summary": about,
        "parameters": list(operation.parameters),
        "responses": {
            "200": {"description": about, "content": _json_of(name)},
            "503": {
                "description": "pvebench is starting (plain text).",
                "content": {"text/plain": {}},
            },
            **{
                status: {"description": text, "content": _json_of("Error")}
                for status, text in _ERRORS.items()
                if status != "404"
                or any(parameter["required"] for parameter in operation.parameters)
            },
        },
    }


def _json_of(name: str) -> Data:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(model=name)}}}
