"""The only SQL: runs, samples, evidence, environments, decisions, notifications, journal."""
