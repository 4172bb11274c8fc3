"""Rooms to the outside behind the Protocols of `model.ports`."""
