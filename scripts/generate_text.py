"""Write the JSON schemas, the generated pages of docs/, and the grants in the script for a node.

`--check` compares the files instead.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from key_tables import keys_text
from node_grants import SCRIPT, with_grants

from pvebench.config.settings import schema_text
from pvebench.metrics.catalog import CATALOG
from pvebench.model.durability import Durability
from pvebench_fleet.wire import runs_schema_text
from pvebench_fleet.wire import schema_text as fleet_schema_text
from pvebench_lab.cli.durability import table

ROOT = Path(__file__).resolve().parents[1]


def metrics_text() -> str:
    """Return docs/metrics.md."""
    rows = [
        f"| `{metric.exposed}` | {metric.kind} | {', '.join(metric.labels)} | {metric.help} |"
        for metric in CATALOG.values()
    ]
    head = (
        "# Metrics\n\nGenerated from `metrics/catalog.py` and `model/figures.py` by `make "
        "generate`.\n\n"
        "`/metrics` also has the `process_*` metrics of the exporter.\n\n"
        "For annotations, use one point per change, in milliseconds at its start, with its "
        "summary. To select the changes\nthat are open at the right edge of a panel, add "
        "`@ end()` after both names:\n\n"
        "```\n1000 * pvebench_change_since_timestamp_seconds\n"
        "  * on (job, instance, change) group_left (summary, severity) pvebench_change_info\n"
        "```\n\n"
        "For environment periods, use `1000 * pvebench_environment_start_timestamp_seconds`. "
        "`pvebench_environment_change_info`\nhas the changed facts.\n\n"
        "| Name | Type | Labels | Meaning |\n|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def with_durability(page: str) -> str:
    """Return docs/durability.md with the table of the results of `make durability`."""
    results = json.loads((ROOT / "tests/golden/durability/results.json").read_text("utf-8"))
    lines = "\n".join(table([Durability.from_json(json.dumps(row)) for row in results]))
    mark = re.compile(r"(?<=<!-- table -->\n).*(?=<!-- end -->)", re.DOTALL)
    return mark.sub(lambda _: f"{lines}\n", page)


FILES = {
    "docs/durability.md": with_durability((ROOT / "docs/durability.md").read_text("utf-8")),
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
