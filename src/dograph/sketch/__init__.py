"""From a batch to one sketch a sample: random projections of per-sample gradients."""
