"""What a run leaves behind, as texts: definition, environment, samples, evidence. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.model.definition import Definition
from pvebench.model.run import Sample
from pvebench.store import Store
from pvebench.web.texts import show_value

EVIDENCE_FIRST: Final = ("effective", "error", "stuck", "job.fio", "command", "output")
_SECRETS: Final = re.compile(
    r"(?P<name>PVEAPIToken=|PVEAuthCookie=|CSRFPreventionToken[=:]\s*"
    r"|\b(?:password|passphrase|api[_-]?key)\b[\"']?\s*[=:]\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A sample as three texts."""

    name: str
    about: str
    value: str


def in_order(evidence: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the evidence with what is looked at first in front."""
    first = [name for name in EVIDENCE_FIRST if name in evidence]
    rest = sorted(evidence.keys() - set(first))
    return tuple((name, without_secrets(evidence[name])) for name in (*first, *rest))


def without_secrets(text: str) -> str:
    """Return a text with what looks like a secret taken out.

    Drivers keep secrets out of evidence; this is the second line, where the evidence leaves.
    """
    return _SECRETS.sub(r"\g<name>[hidden]", text)


def environments(store: Store) -> dict[str, dict[str, str]]:
    """Return digest -> facts, with the environment's short name among them."""
    return {
        str(entry["digest"]): {
            "environment": entry["slug"],
            "node": entry["node"],
            **entry["facts"],
        }
        for entry in store.environments()
    }


def definition_texts(definition: Definition) -> dict[str, dict[str, str]]:
    """Return a definition as group -> option -> text, whatever options there are."""
    data = definition.as_data()
    workload = data["workload"]
    plain = {key: value for key, value in workload.items() if key not in ("parameters", "steady")}
    own = {"scale": definition.scale} if definition.scale != 1.0 else {}
    groups = {
        "Scenario": {**data["labels"], **data["scenario"]},
        "Workload": {**plain, **data["workload"]["parameters"], **own},
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


def sample_rows(samples: Sequence[Sample]) -> tuple[SampleRow, ...]:
    """Return samples in a stable order."""
    ordered = sorted(samples, key=lambda one: (one.metric, str(one.direction or ""), one.part))
    return tuple(
        SampleRow(
            sample.metric.replace("_", " "),
            " ".join(part for part in (str(sample.direction or ""), _part(sample)) if part),
            show_value(sample.value, sample.unit),
        )
        for sample in ordered
    )


def _part(sample: Sample) -> str:
    return f"p{sample.part}" if sample.metric.endswith("percentile") else sample.part
