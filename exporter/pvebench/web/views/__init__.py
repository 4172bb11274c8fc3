"""Values for the pages of the web UI."""
