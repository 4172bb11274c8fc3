"""Source of the dashboards in grafana/dashboards/: typed Python, names from the metrics catalogue."""
