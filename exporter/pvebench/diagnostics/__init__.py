"""Diagnostics: doctor, check, path of metrics to Prometheus and Grafana."""
