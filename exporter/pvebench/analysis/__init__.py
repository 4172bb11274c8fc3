"""Statistics of results: noise, changes and causes, in the order of `judge.py`. No I/O."""
