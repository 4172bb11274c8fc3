"""Dashboards, one module for each."""
