"""Metrics of states, collectors, the text of `/metrics`; `model.run_metrics` has those of runs."""
