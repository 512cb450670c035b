"""Runs read back from disk, and shown."""
