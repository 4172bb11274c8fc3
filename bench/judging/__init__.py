"""Series with known changes, the methods compared, and how they are scored."""
