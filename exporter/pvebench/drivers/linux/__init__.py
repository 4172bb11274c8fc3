"""Facts about a Linux machine: /proc, /sys, block devices, control groups, node_exporter."""
