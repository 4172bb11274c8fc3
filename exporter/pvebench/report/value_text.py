"""Text forms of values, states and the data of a run. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final

from pvebench.model.definition import Definition
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.model.run_metrics import DEVICE_SHARE, FIGURES, OPERATION_TIME, was_canceled
from pvebench.model.status import Phase, State
from pvebench.model.units import show_bytes, show_clock, show_latency, show_rate, show_span
from pvebench.model.workload import Direction
from pvebench.store.store import Store

# --- values, times and states ---

STATES: Final[dict[State, str]] = {
    State.IDLE: "waiting",
    State.RECONFIGURING: "preparing",
    State.WARMUP: "warming up",
    State.RUNNING: "measuring",
    State.COLLECTING: "collecting",
    State.PAUSED: "paused",
    State.ERROR: "error",
}
PHASES: Final[dict[Phase, str]] = {
    Phase.BOOT: "booting the guest",
    Phase.ATTACH: "attaching the disk",
    Phase.FILL: "filling the volume with random data",
    Phase.SETTLE: "waiting for the disk to settle",
    Phase.RAMP: "warming up",
    Phase.MEASURE: "measuring",
    Phase.COLLECT: "reading the results back",
}


def outcome_text(outcome: Outcome) -> str:
    """Return the display text of an outcome, such as `not steady`."""
    return outcome.value.replace("_", " ")


def show_value(value: float, unit: Unit) -> str:
    """Format a value in a base unit: `9,072 IOPS`, `35.4 MiB/s`, `6.59 ms`."""
    show = _SHOW.get(unit)
    # New workloads may add units: show their name rather than no value.
    return show(value) if show else f"{value:,.6g} {unit.value.replace('_', ' ')}"


def _count(value: float) -> str:
    return f"{value / 1e6:,.2f} M" if abs(value) >= 1e6 else f"{value:,.0f}"


_SHOW: Final[dict[Unit, Callable[[float], str]]] = {
    Unit.IOPS: lambda value: f"{_count(value)} IOPS",
    Unit.BYTES_PER_SECOND: show_rate,
    Unit.BYTES: show_bytes,
    Unit.SECONDS: show_latency,
    Unit.RATIO: lambda value: f"{value * 100:{'.3g' if abs(value) < 9.995 else ',.0f'}}%",
    Unit.CORES: lambda value: f"{value:.3g} cores",
    Unit.OPERATIONS: lambda value: f"{_count(value)} ops",
    Unit.CELSIUS: lambda value: f"{value:.0f} °C",
}


def show_spread(ratio: float) -> str:
    """Format a coefficient of variation: `±12%`; below 10% with one decimal."""
    percent = ratio * 100
    return f"±{percent:.0f}%" if percent >= 9.95 else f"±{percent:.1f}%"


def show_age(seconds: float) -> str:
    """Format an age in seconds in its largest unit: `3 min ago`."""
    return f"{show_span(seconds)} ago"


def show_moment(moment: datetime) -> str:
    """Format a time to the second, with its time zone."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def show_when(moment: datetime, now: datetime) -> str:
    """Format a time with its distance: `12:30 UTC, in 3 min`."""
    seconds = (moment - now).total_seconds()
    return f"{show_clock(moment, now)}, {f'in {show_span(seconds)}' if seconds >= 1 else 'now'}"


def iso(moment: datetime) -> str:
    """Format a time as ISO 8601 in UTC, to the second."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")


# --- data of a run ---

EVIDENCE_FIRST: Final = ("effective", "error", "stuck", "job.fio", "command", "output")
_SECRETS: Final = re.compile(
    r"(?P<name>PVEAPIToken=|PVEAuthCookie=|CSRFPreventionToken[=:]\s*"
    r"|\b(?:password|passphrase|api[_-]?key)\b[\"']?\s*[=:]\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)",
    re.IGNORECASE,
)


def in_order(evidence: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the evidence without secrets, the most important files first."""
    first = [name for name in EVIDENCE_FIRST if name in evidence]
    rest = sorted(evidence.keys() - set(first))
    return tuple((name, without_secrets(evidence[name])) for name in (*first, *rest))


def without_secrets(text: str) -> str:
    """Replace everything that looks like a secret.

    Drivers already keep secrets out of evidence; this is a second protection before it is shown.
    """
    return _SECRETS.sub(r"\g<name>[hidden]", text)


def environments(store: Store) -> dict[str, dict[str, str]]:
    """Return digest -> facts, including the short name of the environment."""
    return {
        str(entry["digest"]): {
            "environment": entry["slug"],
            "node": entry["node"],
            **entry["facts"],
        }
        for entry in store.environments()
    }


def definition_texts(definition: Definition) -> dict[str, dict[str, str]]:
    """Return a definition as group -> option -> text, with all its options."""
    data = definition.as_data()
    workload = data["workload"]
    plain = {key: value for key, value in workload.items() if key not in ("parameters", "steady")}
    scale = {"scale": definition.scale} if definition.scale != 1.0 else {}
    groups = {
        "Scenario": {**data["labels"], **data["scenario"]},
        "Workload": {**plain, **data["workload"]["parameters"], **scale},
    }
    return {
        group: {key: _option(value) for key, value in options.items()}
        for group, options in groups.items()
    }


def _option(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value)
    return json.dumps(value)


def sample_rows(samples: Sequence[Sample]) -> tuple[tuple[str, str, str], ...]:
    """Return name, description and value of samples as text, in a stable order."""
    ordered = sorted(samples, key=attrgetter("key"))
    rows = tuple(
        (
            _name(sample.metric),
            " ".join(part for part in (str(sample.direction or ""), _part(sample)) if part),
            _value(sample),
        )
        for sample in ordered
    )
    canceled = (OPERATION_TIME.text, "", "canceled at the end of the run")
    return (*rows, canceled) if was_canceled(samples) else rows


def _name(metric: str) -> str:
    # Runs of other versions may have more figures.
    figure = FIGURES.get(metric)
    return figure.text if figure else metric.replace("_", " ")


def _value(sample: Sample) -> str:
    if sample.metric.endswith("_recovery") and not sample.value:
        return "no dip below 50%"
    if sample.metric == DEVICE_SHARE.name and sample.value > 1:
        done = "written" if sample.direction is Direction.WRITE else str(sample.direction)
        return f"{sample.value:.3g} bytes per byte {done}"
    return show_value(sample.value, sample.unit)


def _part(sample: Sample) -> str:
    return f"p{sample.part}" if sample.metric.endswith("percentile") else sample.part
