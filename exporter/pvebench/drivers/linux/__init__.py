"""Facts of a Linux machine from /proc, /sys, block devices, control groups, node_exporter."""
