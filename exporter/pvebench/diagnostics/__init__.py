"""Diagnostics: doctor, check, and the way of metrics to Prometheus and Grafana."""
