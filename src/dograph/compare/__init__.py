"""Several mixers beside each other, over several seeds."""
