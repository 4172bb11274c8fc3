"""The hub's database: the only package with psycopg."""
