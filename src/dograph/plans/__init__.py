"""From the mixtures and losses of runs that were made to the mixture of one that was not."""
