"""dograph bench: the cost of a step in each sketch mode, relative to a plain step."""
