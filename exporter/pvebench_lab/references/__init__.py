"""Reference series: published tables, imported files, and their consistency checks."""
