"""PromQL expressions; metric, label and record names are checked during the build."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from pvebench.metrics import catalog as m

RULES: Final = Path(__file__).resolve().parents[2] / "prometheus" / "rules"
SAME_CASE: Final = "job, instance, node, scenario, workload"
SAME_RESULT: Final = f"{SAME_CASE}, direction"


def series(metric: m.Metric, /, **matchers: str) -> str:
    """Return a selector on `metric`; each matcher's value is a regular expression.

    Raises:
        KeyError: the metric has no such label, so the panel would stay empty.
    """
    assert m.CATALOG[metric.name] is metric  # noqa: S101 # metrics outside the catalog are a mistake
    for label in matchers:
        if label not in metric.labels:
            raise KeyError(f"{metric.name} has no label {label}")
    return f"{metric.exposed}{_braces(matchers)}"


def recorded(name: str, /, **matchers: str) -> str:
    """Return a selector on a recording rule's series.

    Raises:
        KeyError: no rule records that name.
    """
    if name not in _records():
        raise KeyError(f"no rule in {RULES.name}/ records {name}")
    return f"{name}{_braces(matchers)}"


@cache
def _records() -> frozenset[str]:
    texts = [path.read_text("utf-8") for path in RULES.glob("*.yml")]
    return frozenset(name for text in texts for name in re.findall(r"record: (\S+)", text))


def _braces(matchers: dict[str, str]) -> str:
    if not matchers:
        return ""
    return "{" + ",".join(f'{label}=~"{value}"' for label, value in matchers.items()) + "}"


def filter_workloads(expression: str, **matchers: str) -> str:
    """Keep results of workloads with this definition, such as `rw` or `block_size_bytes`."""
    on_labels = "job, instance, workload, direction"
    definition = f"group by ({on_labels}) ({series(m.WORKLOAD_INFO, **matchers)})"
    return f"{expression} * on ({on_labels}) group_left () {definition}"


def count_or_zero(condition: str, population: str) -> str:
    """Count the series that meet a condition: 0 if none does, no result without a population."""
    return f"count({condition}) or 0 * count({population})"


def if_empty(expression: str) -> str:
    """Return one series without labels if an expression has no result.

    A panel of names shows no values, and therefore no text for a missing value either.
    """
    return f"vector(1) unless on () ({expression})"


def changes_of(node: str) -> str:
    """Return the open changes of a node, each once: its sentence changes with its runs."""
    changes = series(m.CHANGE_INFO, node=node_list_pattern(node))
    return f"topk by (job, instance, change) (1, {changes})"


def node_list_pattern(nodes: str) -> str:
    """Return a pattern for labels that list several nodes, one of which matches `nodes`.

    It also matches truncated lists (`a, b and 5 more`) and empty ones, which may include them.
    """
    return f".*({nodes}).*|.* more|"


def with_descriptions(
    expression: str, *, workload: bool = True, scenario: str = "configuration"
) -> str:
    """Add the workload's label `description` and a label of the scenario.

    Labels at the end of the range apply to all of it: earlier they may have been unknown.

    Args:
        scenario: `configuration`, `disk` (all of it except the cache mode), or empty.
    """
    if workload:
        on_labels = "job, instance, workload"
        info = f"topk by ({on_labels}) (1, {series(m.WORKLOAD_INFO)} @ end())"
        expression = f"{expression} * on ({on_labels}) group_left (description) {info}"
    if scenario:
        on_labels = "job, instance, node, scenario"
        info = f"topk by ({on_labels}) (1, {series(m.SCENARIO_INFO)} @ end())"
        expression = f"{expression} * on ({on_labels}) group_left ({scenario}) {info}"
    return expression


def plus(expression: str) -> str:
    """Keep improvements, in percent."""
    return f"100 * (({expression}) >= 0)"


def minus(expression: str) -> str:
    """Keep regressions, in percent and without their sign."""
    return f"-100 * (({expression}) < 0)"
