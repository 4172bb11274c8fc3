"""The command line: one module a command, named after it."""
