"""Notifications about changes, planned here; `store.outbox` keeps each once per receiver."""
