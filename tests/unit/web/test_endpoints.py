"""The OpenAPI document, held against the running API by schemathesis and jsonschema."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from starlette.routing import Route

from pvebench.web.endpoints import PATHS, document
from testing import http_client
from testing.faulty_node import Fault
from testing.simulated_site import app_of, served
from testing.simulations import Simulation, simulate

EXAMPLES = 25
"""Of each kind and address; enough for every parameter to be left out, right and wrong."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """Some good runs, a failed one, and cases that were never tried."""
    simulation = simulate(tmp_path_factory.mktemp("openapi"), cycles=1)
    for _ in range(8):
        simulation.worker.step()
    simulation.world.faults._rates[Fault.TOOL_FAILS] = 1.0
    simulation.worker.step()
    return simulation


@pytest.fixture(scope="module")
def address(measured: Simulation) -> Iterator[str]:
    with served(app_of(measured)) as where:
        yield where


@pytest.mark.parametrize(
    ("path", "mode"),
    [(path, GenerationMode.POSITIVE) for path in PATHS]
    # Only these two have parameters that can be wrong; others are refused in test_web_api.
    + [(path, GenerationMode.NEGATIVE) for path in ("/api/v1/runs", "/api/v1/runs/{number}")],
)
def test_schemathesis_finds_nothing_that_is_not_as_documented(
    address: str, path: str, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json")
    asked = schema[path]["GET"].as_strategy(generation_mode=mode)

    @given(case=asked)
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: schemathesis.Case) -> None:
        case.call_and_validate(timeout=60)

    holds()


def closed(schema: Any) -> Any:
    """Return a schema that allows no key which it does not name."""
    found = copy.deepcopy(schema)
    for shape in found.values():
        shape["additionalProperties"] = False
    return found


def addresses(measured: Simulation) -> Iterator[tuple[str, str]]:
    for path in PATHS:
        if "{case_key}" in path:
            for key in measured.store.cases():
                yield path, path.format(case_key=key)
        elif "{number}" in path:
            for run in measured.store.runs(limit=500):
                yield path, path.format(number=run.number)
        else:
            yield path, path


def test_every_answer_has_the_keys_of_its_shape_and_no_others(
    address: str, measured: Simulation
) -> None:
    schemas = closed(document()["components"]["schemas"])
    asked = 0
    for path, where in addresses(measured):
        name = PATHS[path].shape.__name__
        answer = http_client.get(address + where, timeout=60)
        assert answer.status_code == 200
        expected = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        jsonschema.validate(answer.json(), expected, cls=jsonschema.Draft202012Validator)
        asked += 1
    assert asked > 15


def test_every_address_of_the_api_is_in_the_document(measured: Simulation) -> None:
    routes = {
        route.path.replace(":path", "")
        for route in app_of(measured).routes
        if isinstance(route, Route) and route.path.startswith("/api/")
    }
    assert routes == {*PATHS, "/api/v1/openapi.json"}
    assert set(document()["paths"]) == set(PATHS)
