"""Scrape job, rules and dashboards for an existing Prometheus and Grafana."""

from __future__ import annotations
