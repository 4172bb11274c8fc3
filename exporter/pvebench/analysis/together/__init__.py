"""What belongs together: steps become changes, each told once."""
