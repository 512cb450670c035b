"""Mixers inside other people's trainers."""
