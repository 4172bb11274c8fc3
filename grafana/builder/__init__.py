"""Source of the dashboards in grafana/dashboards/: `boards` has one module for each of them."""
