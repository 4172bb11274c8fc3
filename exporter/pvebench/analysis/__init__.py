"""Judging: what is normal for a case, what moved, by how much, and why. Pure: no I/O, no clock."""
