"""Results for people: tables, files, one HTML page."""
