"""Files for an existing Prometheus and Grafana: scrape jobs, rules, dashboards."""

from __future__ import annotations
