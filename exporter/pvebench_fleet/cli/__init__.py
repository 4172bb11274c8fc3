"""Commands of `pvebench_fleet`."""
