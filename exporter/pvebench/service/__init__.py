"""A running instance: its parts, its workers, and housekeeping between two runs."""
