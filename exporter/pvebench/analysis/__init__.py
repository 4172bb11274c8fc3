"""Change detection: levels, change points, event effects, groups of cases. No I/O."""
