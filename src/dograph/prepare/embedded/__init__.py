"""Corpora that need no download."""
