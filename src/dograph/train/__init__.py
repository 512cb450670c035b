"""Weights to updates to logs: the step, the loop around it, the run directory."""
