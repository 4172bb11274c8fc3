"""Results for people: tables, files, one HTML page; and the tables that others published."""
