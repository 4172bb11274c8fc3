"""Commands of `pvebench_lab`."""
