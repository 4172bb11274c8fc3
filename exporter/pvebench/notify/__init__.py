"""Notifications: planning, texts, the queue and delivery, without delaying runs."""
