"""Judging numbers: steadiness, what is normal for a case, what moved, by how much. No I/O."""
