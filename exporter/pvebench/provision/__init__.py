"""What a Prometheus and a Grafana get that are there already: jobs, rules, dashboards."""

from __future__ import annotations
