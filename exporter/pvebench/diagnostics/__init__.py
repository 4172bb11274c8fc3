"""Diagnostics: check, doctor, and the path of metrics to Prometheus and Grafana."""
