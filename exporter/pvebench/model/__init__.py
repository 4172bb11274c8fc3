"""Values and rules of the domain. No I/O; standard library only."""
