"""Presentation of results: text, tables, CSV, HTML report."""
