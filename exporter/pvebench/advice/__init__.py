"""Advice from the results: upgrade outlook, best configurations, canary, audit of VMs."""
