"""Runs and models looked at: what the commands losses, graph, explain, inspect and eval show."""
