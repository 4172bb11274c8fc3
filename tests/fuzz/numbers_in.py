"""Which numbers stand in a text: what a parser publishes must be made of them."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterator

from pvebench.model.run import Sample
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Workload
from pvebench.workloads import Parsed
from pvebench.workloads.fio_report import read_report

_FORMS = tuple(
    re.compile(rf"[+-]?(?:\d+(?:{mark}\d+)?|{mark}\d+)(?:[eE][+-]?\d+)?") for mark in ("[.]", "[,]")
)
"""With a point, with a comma; a comma may as well stand between two numbers."""
_SAME = 1e-9
_OF_JOBS = ("_min", "_max", "_percentile")
"""Metrics that are of one job even where there are several."""


class NumbersIn:
    """The numbers of a text, whatever else it is."""

    def __init__(self, text: str) -> None:
        tokens = {token for form in _FORMS for token in form.findall(text)}
        self._all = sorted({float(token.replace(",", ".")) for token in tokens})

    def __iter__(self) -> Iterator[float]:
        return iter(self._all)

    def __contains__(self, value: float) -> bool:
        slack = _SAME * abs(value)
        at = bisect.bisect_left(self._all, value - slack)
        return at < len(self._all) and self._all[at] <= value + slack


def check_traced(workload: Workload, output: str, parsed: Parsed) -> None:
    """Fail unless each published number stands in the output, up to its unit.

    Rates, sizes and the like may also be the product or quotient of published ones that do;
    those of several of fio's jobs are sums and means, and only their ends are held to it.
    """
    there = NumbersIn(output)
    several = workload.tool == "fio" and len(read_report(output).jobs) > 1
    for sample in parsed.samples:
        if sample.metric.endswith("_variation") or sample.metric == "clat_histogram":
            continue
        if several and not sample.metric.endswith(_OF_JOBS):
            continue
        scales = _SCALES[workload.tool](sample, workload)
        if workload.tool == "sysbench" and sample.metric == "sync_operations":
            # A rate, of all threads, times the time of the run.
            scales = tuple(1 / one.value for one in parsed.samples if one.metric == "runtime")
        if not any(sample.value * scale in there for scale in scales):
            made = (abs(sample.value - one) <= 1e-6 * one for one in _made_of(sample, parsed))
            assert any(made), f"{sample} is not in the output"
    if not several:
        _check_histograms(parsed, there)


def _check_histograms(parsed: Parsed, there: NumbersIn) -> None:
    """Fail unless all buckets together hold a number that stands in the output, as bins do not."""
    counted = [one for one in parsed.samples if one.metric == "clat_histogram"]
    for direction in {one.direction for one in counted}:
        held = {one.part: one.value for one in counted if one.direction is direction}
        seconds = held.pop("sum")
        count = sum(held.values())
        assert count in there, f"{count} operations are not in the output"
        assert seconds / count * 1e9 in there, f"a mean of {seconds / count} s is not in the output"


def _made_of(sample: Sample, parsed: Parsed) -> Iterator[float]:
    """Yield what a number would be that was worked out from others of its run."""
    values = {s.metric: s.value for s in parsed.samples if s.direction is sample.direction}
    operations, size = values.get("operations"), values.get("bytes")
    seconds = values.get("runtime")
    rates = {"iops": operations, "bandwidth": size}
    if sample.metric in rates and seconds and rates[sample.metric]:
        yield (rates[sample.metric] or 0.0) / seconds
    totals = {"operations": values.get("iops"), "bytes": values.get("bandwidth")}
    if sample.metric in totals and seconds:
        yield (totals[sample.metric] or 0.0) * seconds
    if sample.metric == "clat_mean" and seconds and operations:
        yield seconds / operations


_Scales = Callable[[Sample, Workload], tuple[float, ...]]


def _fio(sample: Sample, _: Workload) -> tuple[float, ...]:
    return {"guest_cpu": (100.0,), "runtime": (1000.0,)}.get(sample.metric, (1.0, 1e9))


def _per_block(sample: Sample, workload: Workload) -> tuple[float, ...]:
    """Return the scales of tools that say operations, of which bytes are worked out."""
    block = float(workload.parameters["bs"])
    return (1.0, 1 / block, 1000.0) if sample.metric in ("bandwidth", "bytes") else (1.0, 1000.0)


_SCALES: dict[str, _Scales] = {
    "fio": _fio,
    "ioping": lambda *_: (1.0, 1e9),
    "sysbench": _per_block,
    "bonnie++": lambda *_: (1.0, 1 / KIB, 100.0),
    "hdparm": lambda *_: (1.0, 1 / KIB, 1 / MIB),
    "dd": _per_block,
}
