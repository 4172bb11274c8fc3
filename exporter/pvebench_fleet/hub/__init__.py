"""The centre of a fleet: takes results of many sites, judges and compares them; PostgreSQL."""
