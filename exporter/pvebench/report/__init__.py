"""Presentation of results: text, tables, CSV, XLSX, HTML report."""
