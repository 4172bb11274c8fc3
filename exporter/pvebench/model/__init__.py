"""Domain values and rules. No I/O; standard library only."""
