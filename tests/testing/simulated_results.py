"""Results of configurations with known true values, as a view of the store."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np

from pvebench.advice.gate_statistic import Series
from pvebench.drivers.clocks import START
from pvebench.model.definition import Definition
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.workload import Direction
from pvebench.store.live_results import PlannedCase, Trend, View
from pvebench.store.records import Point
from testing.packs import quick

ENVIRONMENT = "e" * 16
HOUR = 3600.0


def case(slug: str, **parameters: int | str) -> Definition:
    """Return a case of storage `local`; a slug is `scsi.raw.none.iothread-1`."""
    plain = Definition.of(quick()[1].cases[0])
    bus, form, cache, *more = slug.split(".")
    options = {
        **plain.options,
        **dict(part.split("-", 1) for part in more),
        "bus": bus,
        "format": form,
        "cache": cache,
    }
    load = {"rw": "randwrite", "bs": 4096, "iodepth": 1, **parameters}
    write = "write" in str(load["rw"])
    name = "-".join(str(value) for value in load.values())
    return replace(
        plain,
        storage="local",
        bus=bus,
        format=form,
        cache=cache,
        scenario=f"local.{slug}",
        workload=name,
        title=name.replace("-", " "),
        options=options,
        parameters=load,
        directions=(Direction.WRITE if write else Direction.READ,),
    )


def series(before: Sequence[float], after: Sequence[float]) -> Series:
    """Return the logarithms of one case on both sides of an upgrade, one run an hour."""
    sides = {"before": np.array(before), "after": np.array(after)}
    return Series(name="case", labels={}, **sides, interval=HOUR)


def trend(
    level: float, noise: random.Random, *, runs: int = 10, sd: float = 0.03, ok: bool = True
) -> Trend:
    """Return runs around a true value; `sd`: standard deviation of their logarithms."""
    points = tuple(
        Point(
            noise.randrange(10**9),
            START + timedelta(hours=place),
            ENVIRONMENT,
            Direction.WRITE,
            level * math.exp(noise.gauss(0, sd)),
            ok,
        )
        for place in range(runs)
    )
    return Trend("iops", tuple(sorted(points, key=lambda point: point.run)))


def view_of(
    cases: Iterable[tuple[Definition, Trend]], facts: Mapping[str, str] | None = None
) -> View:
    """Return the view of these cases, in one environment with these facts."""
    known = list(cases)
    planned = {
        one.name: PlannedCase(key=one.name, definition=one, every_seconds=HOUR) for one, _ in known
    }
    period = EnvironmentPeriod(
        node="lab",
        environment=ENVIRONMENT,
        slug="e",
        facts=facts or {"accel": "kvm"},
        started=START,
        finished=START,
    )
    trends = {one.name: values for one, values in known}
    return View(planned=planned, trends=trends, periods=(period,))
