"""Write the JSON schemas and docs/metrics.md; `--check` compares instead."""

from __future__ import annotations

import sys
from pathlib import Path

from pvebench.config.schema import schema_text
from pvebench.metrics.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[1]


def metrics_text() -> str:
    """Return docs/metrics.md."""
    rows = [
        f"| `{metric.exposed}` | {metric.kind} | {', '.join(metric.labels)} | {metric.help} |"
        for metric in CATALOG.values()
    ]
    head = (
        "# Metrics\n\nGenerated from `exporter/pvebench/metrics/catalog.py` by `make generate`.\n\n"
        "Beside these the page has the `process_*` metrics of the exporter itself.\n\n"
        "| name | type | labels | meaning |\n|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


FILES = {
    "scenarios/schema/pack.schema.json": schema_text("pack"),
    "scenarios/schema/settings.schema.json": schema_text("settings"),
    "docs/metrics.md": metrics_text(),
}


def main() -> int:
    """Write or compare; return the exit code."""
    differing = []
    for name, text in FILES.items():
        path = ROOT / name
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            differing.append(name)
    if differing:
        print(f"differ from their source: {', '.join(differing)}; run make generate")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
