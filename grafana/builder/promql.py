"""PromQL expressions; metric, label and record names are checked during the build."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f
from pvebench.model.figure import Metric
from pvebench.model.run_metrics import JUDGED

RULES: Final = Path(__file__).resolve().parents[2] / "prometheus" / "rules"
SAME_CASE: Final = "job, instance, node, scenario, workload"
SAME_RESULT: Final = f"{SAME_CASE}, direction"
CASE_KEYS: Final = "node, storage, scenario, workload"
RESULT_KEYS: Final = f"{CASE_KEYS}, direction"


ANSWERS: Final = m.EXPOSITION_TIMESTAMP.exposed
RECENT: Final = f"last_over_time({ANSWERS}[3m])"
"""Exporters that answer; at a scrape per minute, one or two failed ones don't count."""
HELD: Final = "$held"
MORE_IS_BETTER: Final = "|".join(one.name for one in JUDGED.values() if one.more_is_better)
"""Metrics whose change is after / before - 1; of all others it is 1 - after / before."""
LARGE_BLOCKS: Final = "|6553[6-9]|655[4-9].|65[6-9]..|6[6-9]...|[7-9]....|.{6,}"
SMALL_BLOCKS: Final = ".{1,4}|[1-5]....|6[0-4]...|65[0-4]..|655[0-2].|6553[0-5]"
"""Sizes in bytes whose rate is shown in bytes, and in operations, as by `main_metric`."""
MAX_SERIES: Final = 10
"""Maximum number of lines in a chart of cases."""
FACTOR_CODE: Final = 1_000_000
REGION_STEP: Final = 3600
"""Seconds between the times of a region."""
LAST_ANSWER: Final = f"instance:{ANSWERS}:last"
"""Unix time of the last answer of every exporter in 30 days; a rule records it."""
_PRESENT: Final = f"{ANSWERS}|{LAST_ANSWER}|pvebench_(?:current_run|scheduler)_"
"""Metrics of the present, which no earlier value replaces."""
_SELECTOR: Final = re.compile(
    rf"\b(?!{_PRESENT})((?>(?:\w+:)?pvebench_\w+(?::\w+)?"
    r'(?:\{(?:"(?:[^"\\]|\\.)*"|[^"}])*\})?(?:\[[^\]]*\])?))(?!\s*(?:@|offset))'
)
"""An instant or range selector without a moment of its own."""


def series(metric: Metric, /, **matchers: str) -> str:
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


def max_by(keys: str, metric: Metric, /, **matchers: str) -> str:
    """Return a metric by labels, of all exporters."""
    return f"max by ({keys}) ({series(metric, **matchers)})"


def silent() -> str:
    """Return the exporters that have stopped answering: the Unix time of their last answer.

    Excludes those that are no longer scraped, as long as another one answers.
    """
    known = f"({recorded(LAST_ANSWER)} unless on (job, instance) {RECENT})"
    return f"(({known} and on (job, instance) up == 0) or ({known} unless on () {RECENT}))"


def silent_since() -> str:
    """Return the exporters that have stopped answering: since when, as text in a label `time`."""
    return f"({clock('time', recorded(LAST_ANSWER))} and on (instance) {silent()})"


def clock(label: str, moment: str, text: str = "$time") -> str:
    """Return one series per instance with a Unix time as text in a label; `$time` is the time."""
    parts = {"year": "1e8", "month": "1e6", "day_of_month": "1e4", "hour": "100", "minute": "1"}
    digits = " + ".join(f"{weight} * {part}({moment})" for part, weight in parts.items())
    counted = f'count_values by (instance) ("{label}", {digits})'
    pattern = "(....)(..)(..)(..)(..)"
    shown = text.replace("$time", "$1-$2-$3 $4:$5 UTC")
    return f'label_replace({counted}, "{label}", "{shown}", "{label}", "{pattern}")'


def held(expression: str) -> str:
    """Read an instant expression at `$held`: without an exporter, at its last answer.

    An expression with a subquery names the moment of its series itself.
    """
    expression = expression.replace(" @ end()", f" @ {HELD}")
    return expression if ":1" in expression else _SELECTOR.sub(rf"\1 @ {HELD}", expression)


def held_moment() -> str:
    """Return a query for `$held`: the end of the range while an exporter answers, else its last.

    Not `end()`: that of a query over time is earlier, at a whole step.
    """
    now = 'count_values("held", vector(time()))'
    # Not the recorded one: a Prometheus with another's samples has not recorded it yet.
    last = f'count_values("held", max(last_over_time({ANSWERS}[30d])))'
    return f"({now} and on () {ANSWERS}) or on () {last} or on () {now}"


def filter_workloads(expression: str, **matchers: str) -> str:
    """Keep results of workloads with this definition, such as `rw` or `block_size_bytes`."""
    on_labels = "job, instance, workload, direction"
    # Labels at the end of the range apply to all of it: earlier they may have been unknown.
    return f"{expression} and on ({on_labels}) {series(m.WORKLOAD_INFO, **matchers)} @ end()"


def large_blocks() -> str:
    """Return a query with a result if the rate of `$workload` is shown in bytes."""
    large = series(m.WORKLOAD_INFO, workload="$workload", block_size_bytes=LARGE_BLOCKS)
    return f"group({large} @ end())"


def in_own(iops: str, bandwidth: str) -> str:
    """Return the rate of `$workload` in operations for blocks below 64 KiB, otherwise in bytes."""
    return f"({bandwidth} and on () {large_blocks()} or {iops} unless on () {large_blocks()})"


def count_or_zero(condition: str, population: str) -> str:
    """Count the series that meet a condition: 0 if none does, no result without a population."""
    return f"count({condition}) or 0 * count({population})"


def cpu_per_io(**matchers: str) -> str:
    """Return the CPU time per I/O by case, in µs; imports of the past have no recorded ratio."""
    by = f"job, instance, {CASE_KEYS}"
    cores = series(f.HOST_CPU.metric, component="total", **matchers)
    return f"1e6 * {cores} / on ({by}) (sum by ({by}) ({series(f.IOPS.metric, **matchers)}) > 0)"


def label(name: str, text: str, expression: str = "vector(1)") -> str:
    """Add a label with a text to the series of an expression."""
    return f'label_replace({expression}, "{name}", "{text}", "", "")'


def if_empty(expression: str) -> str:
    """Return one series without labels if an expression has no result."""
    return f"vector(1) unless on () ({expression})"


def region(begin: str, end: str = "") -> str:
    """Return times from `begin` to `end` (default: now), which Grafana joins to a region.

    Witness: `processEvents` of grafana/grafana, packages/grafana-prometheus/src/annotations.ts at
    12.4.0 joins times that are at most one step apart. Labels must be the same at each step.
    """
    times = f"({begin} > time() or time() + 0 * {begin})"
    near = f"{begin} < time() + {REGION_STEP}"
    if end:
        times = f"({end} < time() or {times})"
        near += f" and {end} > time() - {REGION_STEP}"
    return f"({times} and {near})"


def changes_of(node: str, **matchers: str) -> str:
    """Return the open changes of a node, each once: its sentence changes with its runs."""
    changes = series(m.CHANGE_INFO, node=node_list_pattern(node), **matchers)
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

    Labels at the end of the range apply to all of it: earlier they may have been unknown. A
    `disk` is a configuration without its cache mode.
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


def highest(expression: str) -> str:
    """Return the same series over the whole range, described: the highest at its end."""
    ten = f"{expression} and topk({MAX_SERIES}, {expression} @ end())"
    return with_descriptions(f"({ten})")


def factors(**matchers: str) -> str:
    """Return after / before for the metrics of which less is better, such as latency and CPU."""
    return f"(1 - {_with_metric('!~', **matchers)})"


def gains(**matchers: str) -> str:
    """Return after / before - 1 for the metrics of which more is better, such as throughput."""
    return _with_metric("=~", **matchers)


def _with_metric(matches: str, **matchers: str) -> str:
    chosen = series(m.CHANGE, **matchers).removesuffix("}")
    return f'{chosen},metric{matches}"{MORE_IS_BETTER}"}}'


def coded(gain: str, factor: str = "") -> str:
    """Return changes as `signed_mappings` shows them: -40 is 40% less, 1000167 is ×1.67."""
    parts = [f"round(100 * ({gain}))"] if gain else []
    parts += [f"{FACTOR_CODE} + round(100 * ({factor}))"] if factor else []
    return f"({' or '.join(parts)})"


def plus(expression: str) -> str:
    """Keep improvements, in percent."""
    return f"100 * (({expression}) >= 0)"


def minus(expression: str) -> str:
    """Keep regressions, in percent and without their sign."""
    return f"-100 * (({expression}) < 0)"
