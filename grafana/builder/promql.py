"""Selectors whose names are checked while the dashboards are built."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from pvebench.metrics.catalog import CATALOG, CHANGE_INFO, SCENARIO_INFO, WORKLOAD_INFO, Metric

RULES: Final = Path(__file__).resolve().parents[2] / "prometheus" / "rules"
SAME_CASE: Final = "job, instance, node, scenario, workload"
SAME_RESULT: Final = f"{SAME_CASE}, direction"


def series(metric: Metric, /, **matchers: str) -> str:
    """Return a selector on `metric`; each matcher's value is a regular expression.

    Raises:
        KeyError: the catalogue's metric has no such label, so the panel would stay empty.
    """
    assert CATALOG[metric.name] is metric  # noqa: S101 # a metric from elsewhere is a mistake
    for label in matchers:
        if label not in metric.labels:
            raise KeyError(f"{metric.name} has no label {label}")
    return f"{metric.exposed}{_inside(matchers)}"


def recorded(name: str, /, **matchers: str) -> str:
    """Return a selector on a recording rule's series.

    Raises:
        KeyError: no rule records that name.
    """
    if name not in _records():
        raise KeyError(f"no rule in {RULES.name}/ records {name}")
    return f"{name}{_inside(matchers)}"


@cache
def _records() -> frozenset[str]:
    texts = [path.read_text("utf-8") for path in RULES.glob("*.yml")]
    return frozenset(name for text in texts for name in re.findall(r"record: (\S+)", text))


def _inside(matchers: dict[str, str]) -> str:
    if not matchers:
        return ""
    return "{" + ",".join(f'{label}=~"{value}"' for label, value in matchers.items()) + "}"


def of_workloads(expression: str, **matchers: str) -> str:
    """Keep the results of workloads with this definition, such as `rw` or `block_size_bytes`."""
    of_one = "job, instance, workload, direction"
    definition = f"group by ({of_one}) ({series(WORKLOAD_INFO, **matchers)})"
    return f"{expression} * on ({of_one}) group_left () {definition}"


def counted(condition: str, all_of_them: str) -> str:
    """Return how many meet a condition: 0 when none does, nothing when there are none at all."""
    return f"count({condition}) or 0 * count({all_of_them})"


def none_of(expression: str) -> str:
    """Return one series without labels where an expression has none.

    A panel of names shows no value, so not what stands for a missing one either.
    """
    return f"vector(1) unless on () ({expression})"


def changes_of(node: str) -> str:
    """Return the open changes of a node, each once: its sentence changes with its runs."""
    told = series(CHANGE_INFO, node=listed(node))
    return f"topk by (job, instance, change) (1, {told})"


def listed(nodes: str) -> str:
    """Return a pattern for labels that name several nodes, of which one matches `nodes`.

    What counts the rest (`a, b and 5 more`) or names no node may be meant, so it is kept.
    """
    return f".*({nodes}).*|.* more|"


def in_words(expression: str, *, workload: bool = True, scenario: str = "configuration") -> str:
    """Add what people say beside the slugs: `words` of the workload, and of the scenario a label.

    Those of the end of the range hold for all of it: in the past they may have been unknown.

    Args:
        scenario: `setting`, `disk` (all of it but the cache mode), or nothing.
    """
    if workload:
        of_one = "job, instance, workload"
        info = f"topk by ({of_one}) (1, {series(WORKLOAD_INFO)} @ end())"
        expression = f"{expression} * on ({of_one}) group_left (description) {info}"
    if scenario:
        of_one = "job, instance, node, scenario"
        info = f"topk by ({of_one}) (1, {series(SCENARIO_INFO)} @ end())"
        expression = f"{expression} * on ({of_one}) group_left ({scenario}) {info}"
    return expression


def plus(expression: str) -> str:
    """Keep the changes for the better, in per cent."""
    return f"100 * (({expression}) >= 0)"


def minus(expression: str) -> str:
    """Keep the changes for the worse, in per cent and without their sign."""
    return f"-100 * (({expression}) < 0)"
