"""Reference results: published tables and user tables, with consistency checks."""
