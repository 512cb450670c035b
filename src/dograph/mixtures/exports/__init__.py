"""Mixtures as configuration text of other trainers: one file each.

Every `export(mixture, places)` takes weights by source name and, by the same names, where each
source lies (a path, or "hf:NAME" for a dataset of the Hugging Face hub); sources without a place
get an obvious placeholder. Ours are shares of training tokens: each text says what its trainer
counts instead.
"""
