"""Statistics of results: steady state, noise, changes, their size and their causes. No I/O."""
