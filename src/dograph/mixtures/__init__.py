"""Mixtures as things to keep: files with provenance, published ones, exports to other trainers."""
