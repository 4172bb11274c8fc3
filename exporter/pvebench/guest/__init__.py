"""Benchmark guest: content, build and verification of its image."""
