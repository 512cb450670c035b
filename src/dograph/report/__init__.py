"""Runs as one HTML page that opens from disk, as figures for a paper, and live during training."""
