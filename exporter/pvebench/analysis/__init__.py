"""Pure judging of numbers: steadiness, spread. No I/O."""
