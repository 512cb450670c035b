"""Tokens made elsewhere, used where they are."""
