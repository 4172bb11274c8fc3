"""Source of the dashboards in grafana/dashboards/; metric names come from the catalog."""
