"""HTTP: /metrics, health, web UI, API."""
