"""Command line: commands, shared options, logging."""
