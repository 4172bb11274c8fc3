"""What others measured: published tables, the user's own, whether their rows hold together."""
