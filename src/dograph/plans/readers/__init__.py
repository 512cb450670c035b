"""The layouts in which people keep mixtures and losses of their runs, one file each."""
