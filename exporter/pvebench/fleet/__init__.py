"""A site's side of a fleet: the protocol `pvebench-fleet/1` and the thread that sends results."""
