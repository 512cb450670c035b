"""The paper's claims as numbers: sources that merge in gradient space, and balance over sources."""
