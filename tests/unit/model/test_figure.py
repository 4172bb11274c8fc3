"""Ranges of all samples of all tools, with each number of real output replaced by others."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest

from fuzz.targets import _TOOLS, files
from pvebench.errors import OutputUnreadable, PvebenchError
from pvebench.model.figure import MAX_VALUES, Figure
from pvebench.model.run import Unit
from pvebench.model.run_metrics import FIGURES
from pvebench.workloads import TOOLS, Parsed

OUTPUTS = {
    "fio": "fio/*.json",
    "ioping": "ioping/*",
    "sysbench": "sysbench/*.txt",
    "bonnie++": "bonnie/*.csv",
    "hdparm": "hdparm/*.txt",
    "dd": "dd/*.txt",
}
HUGE = {"1e300": 1e300, "9" * 19: 1e19}
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
MAX_PLACES = 60
"""Replaced numbers of each output; all of a long JSON would take minutes."""
LIMIT = 1e18
"""No unit has larger values."""


def mutated(output: str) -> Iterator[str]:
    places = list(NUMBER.finditer(output))
    chosen = {match[0]: match for match in places[:: len(places) // MAX_PLACES + 1]}
    context = [
        match for match in places if re.search(r'"(ctx|usr_cpu)" : $', output[: match.start()])
    ]
    for match in (*chosen.values(), *context):
        for text in HUGE:
            yield output[: match.start()] + text + output[match.end() :]


def test_every_tool_with_output_is_tested() -> None:
    assert set(OUTPUTS) == {name for name, tool in TOOLS.items() if tool.program}


def parsed(tool: str, output: str) -> list[Parsed]:
    """Return what the output means for each workload that accepts it."""
    accepted = []
    for workload in _TOOLS[tool]:
        with contextlib.suppress(PvebenchError):
            accepted.append(TOOLS[tool].parse(workload, output, {}))
    return accepted


@pytest.mark.parametrize("tool", OUTPUTS)
def test_no_sample_is_beyond_its_range_whatever_the_output_says(tool: str) -> None:
    outputs = [content.decode("utf-8", "replace") for content in files(OUTPUTS[tool])]
    understood = [output for output in outputs if parsed(tool, output)][:3]
    assert understood
    refused = 0
    for output in (other for text in understood for other in mutated(text)):
        results = parsed(tool, output)
        refused += not results
        samples = [one for result in results for one in result.samples]
        assert all(0 <= one.value <= LIMIT for one in samples), output
    assert refused


def test_every_unit_has_a_range() -> None:
    assert set(MAX_VALUES) == set(Unit)
    assert max(figure.most for figure in FIGURES.values()) <= LIMIT


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_a_value_beyond_its_range_is_refused(figure: Figure) -> None:
    Parsed(samples=(figure.sample(figure.most),))
    with pytest.raises(OutputUnreadable, match="exceeds the limit of any machine"):
        Parsed(samples=(figure.sample(figure.most * 1.01),))


def test_an_interval_beyond_the_range_of_iops_is_refused() -> None:
    with pytest.raises(OutputUnreadable, match="exceeds the limit of any machine"):
        Parsed(samples=(), intervals={"read": (1.0, 1e13)})
