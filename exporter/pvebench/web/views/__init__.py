"""Values for the templates of the web UI."""
