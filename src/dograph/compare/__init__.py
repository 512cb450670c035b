"""Comparing mixers over several seeds, with paired differences and their intervals."""
