"""Write the JSON schemas, what is generated in docs/, and the grants in the script for a node.

`--check` compares the files instead.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Final

from key_lists import keys_text
from node_grants import SCRIPT, with_grants
from reference_lists import addresses_text, commands_text

from pvebench.config.settings import schema_text
from pvebench.metrics.state_metrics import CATALOG
from pvebench.model.durability import Durability
from pvebench.model.figure import Metric
from pvebench_fleet.wire import runs_schema_text
from pvebench_fleet.wire import schema_text as fleet_schema_text
from pvebench_lab.cli.durability import table
from pvebench_lab.windows.powershell import check_script, setup_script

ROOT = Path(__file__).resolve().parents[1]


CASE_LABELS: Final = ("node", "storage", "bus", "cache", "format", "scenario", "workload")
LEAST_OF_A_SECTION: Final = 3
"""Metrics that share their labels, from which on they get a section of their own."""
METRICS_HEAD: Final = """# Metrics

Generated from `metrics/state_metrics.py` and `model/run_metrics.py` by `make generate`.

`/metrics` also has the `process_*` metrics of the exporter. Metrics are gauges unless another
type is given; those that end in `_info` are always 1. The *case labels* are `node`, `storage`,
`bus`, `cache`, `format`, `scenario` and `workload`.

For annotations, use one point per change, in milliseconds at its start, with its summary. To
select the changes that are open at the right edge of a panel, add `@ end()` after both names:

```
1000 * pvebench_change_since_timestamp_seconds
  * on (job, instance, change) group_left (summary, severity) pvebench_change_info
```

For environment periods, use `1000 * pvebench_environment_start_timestamp_seconds`.
`pvebench_environment_change_info` has the changed facts.
"""


def metrics_text() -> str:
    """Return docs/metrics.md: a section for each set of labels that several metrics share."""
    sections: dict[tuple[str, ...], list[Metric]] = {}
    for metric in CATALOG.values():
        sections.setdefault(metric.labels, []).append(metric)
    single = [
        metric for few in sections.values() if len(few) < LEAST_OF_A_SECTION for metric in few
    ]
    lines = [METRICS_HEAD]
    for labels, metrics in sections.items():
        if len(metrics) >= LEAST_OF_A_SECTION:
            lines += [f"## Labels: {_labels(labels)}", "", *map(_entry, metrics), ""]
    lines += ["## Other labels", ""]
    lines += [_entry(metric, _labels(metric.labels)) for metric in single]
    return "\n".join(lines) + "\n"


def _labels(labels: tuple[str, ...]) -> str:
    """Return the names of labels, those of a case as one."""
    if labels[: len(CASE_LABELS)] == CASE_LABELS:
        return ", ".join(["case labels", *labels[len(CASE_LABELS) :]])
    return ", ".join(labels) or "none"


def _entry(metric: Metric, *details: str) -> str:
    kinds = [] if metric.kind == "gauge" else [metric.kind]
    about = "; ".join((*kinds, *details))
    # The head says it once.
    text = metric.help.replace(", always 1", "") if "_info" in metric.name else metric.help
    return f"- `{metric.exposed}`{f' ({about})' if about else ''}: {text}"


def durability_text() -> str:
    """Return the results of `make durability`: equal rows as one, equal columns in a sentence."""
    results = json.loads((ROOT / "tests/golden/durability/results.json").read_text("utf-8"))
    head, _, *rows = (
        line.strip("| ").split(" | ")
        for line in table([Durability.from_json(json.dumps(row)) for row in results])
    )
    columns = [{row[place] for row in rows} for place in range(len(head))]
    same = [
        f"{name} {min(cells)}" for name, cells in zip(head, columns, strict=True) if len(cells) == 1
    ]
    shown = [place for place, cells in enumerate(columns) if place and len(cells) > 1]
    names: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        names.setdefault(tuple(row[place] for place in shown), []).append(row[0])
    lines = [
        [head[0], *(head[place] for place in shown)],
        ["---"] * (len(shown) + 1),
        *([", ".join(names[cells]), *cells] for cells in names),
    ]
    cells = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{cells}\n\nIn every row: {'; '.join(same)}."


def with_part(name: str, mark: str, text: str) -> str:
    """Return a page of docs/ with the part between `<!-- mark -->` and `<!-- end -->` replaced."""
    page = (ROOT / "docs" / name).read_text("utf-8")
    part = re.compile(rf"(?<=<!-- {mark} -->\n).*(?=<!-- end -->)", re.DOTALL)
    return part.sub(lambda _: f"{text}\n", page)


FILES = {
    "docs/durability.md": with_part("durability.md", "table", durability_text()),
    "docs/cli.md": with_part("cli.md", "commands", f"\n{commands_text()}\n"),
    "docs/api.md": with_part("api.md", "addresses", f"\n{addresses_text()}\n"),
    "scenarios/schema/pack.schema.json": schema_text("pack"),
    "scenarios/schema/settings.schema.json": schema_text("settings"),
    "docs/pvebench-fleet-1.schema.json": fleet_schema_text(),
    "docs/pvebench-runs-1.schema.json": runs_schema_text(),
    "docs/metrics.md": metrics_text(),
    "docs/settings-keys.md": keys_text(
        "Settings keys",
        "[Configuration](configuration.md#settings-file) explains the keys; for a cluster, see "
        "[Proxmox VE](proxmox.md#settings).",
        schema_text("settings"),
    ),
    "docs/pack-keys.md": keys_text(
        "Pack keys", "[Packs](packs.md) explains the keys.", schema_text("pack")
    ),
    SCRIPT: with_grants((ROOT / SCRIPT).read_text("utf-8")),
    "docs/windows/check.ps1": check_script(),
    "docs/windows/setup.ps1": setup_script(),
}


def main() -> int:
    """Write or compare the files; return the exit code."""
    differing = []
    for name, text in FILES.items():
        path = ROOT / name
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            differing.append(name)
    if differing:
        print(f"generated files are out of date: {', '.join(differing)}; run make generate")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
