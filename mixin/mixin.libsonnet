// Monitoring mixin: the rules and dashboards of pvebench, for a jsonnet build of your monitoring.
{
  prometheusAlerts+:: std.parseYaml(importstr '../prometheus/rules/alerts.yml'),
  prometheusRules+:: std.parseYaml(importstr '../prometheus/rules/pvebench.yml'),
  grafanaDashboards+:: {
    'before-after-upgrade.json': import '../grafana/dashboards/before-after-upgrade.json',
    'case-detail.json': import '../grafana/dashboards/case-detail.json',
    'compare.json': import '../grafana/dashboards/compare.json',
    'configuration-matrix.json': import '../grafana/dashboards/configuration-matrix.json',
    'diskmark.json': import '../grafana/dashboards/diskmark.json',
    'operations.json': import '../grafana/dashboards/operations.json',
    'overview.json': import '../grafana/dashboards/overview.json',
    'wall.json': import '../grafana/dashboards/wall.json',
  },
}
