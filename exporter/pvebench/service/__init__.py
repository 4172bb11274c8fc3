"""An instance: put together from its settings, its workers, what is done between two runs."""
